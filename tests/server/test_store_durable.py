"""Data are synced before they are acknowledged: who does what in which order."""

from contextlib import suppress

import psycopg
import pytest

from cdfl.server import database_engine, queries
from cdfl.server.store import Store
from cdfl.server.verify import verify

from .disk import AtOnce, Crash, Disk
from .toy import LAYOUT, SETTINGS, Toy, first_state, same_state, stored_blobs

pytestmark = pytest.mark.slow

RELATIVE = SETTINGS.replace(measures="relative")  # then there is more to remember


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """In place of the one that only pretends."""
    disk = Disk(tmp_path / "blobs", tmp_path / "graveyard")
    disk.install(monkeypatch)
    return disk


@pytest.fixture
def store(disk, store_url, tmp_path):
    with Store.open(store_url, tmp_path / "blobs") as store:
        disk.watch(store)
        yield store


def test_a_group_is_on_disk_before_it_is_acknowledged(store, disk):
    toy = Toy(store)
    toy.join("car-7")
    disk.log.clear()
    toy.upload("car-7", "car-8", "car-9")
    acknowledged = list(disk.log)
    names = [name for entry in store.entries(after=0) for name in (entry.upload, entry.base, entry.reply)]
    assert len(names) == 9
    committed = acknowledged.index(("commit", ""))
    settled = max(place for place, step in enumerate(acknowledged) if step == ("fsync", "blobs"))
    for name in names:
        (renamed,) = [place for place, step in enumerate(acknowledged) if step in (("replace", name), ("link", name))]
        assert renamed < settled < committed  # the folder knows the name before the database does
        assert (disk.folder / name).stat().st_ino in disk.synced
    assert disk.unsettled.keys().isdisjoint(names)
    assert [step for step, _ in acknowledged].count("commit") == 1


def test_a_group_needs_few_syncs(store, disk):
    """One a file, and one for the folder, however many they are; the transaction is one more, the database's own.

    What uploads were trained from is on disk already, and needs none.
    """
    toy = Toy(store)
    clients = [f"car-{number}" for number in range(10)]
    for client_id in clients:
        toy.join(client_id)
    disk.log.clear()
    toy.upload(*clients)
    assert sum(step == "link" for step, _ in disk.log) == 10
    assert sum(step == "fsync" for step, _ in disk.log) == 10 + 10 + 1
    assert sum(step == "commit" for step, _ in disk.log) == 1


def test_a_snapshot_is_on_disk_before_uploads_are_deleted(store, disk):
    toy = Toy(store)
    toy.upload("car-7", "car-8")
    uploads = stored_blobs(store, "upload")
    disk.log.clear()
    toy.snapshot()
    stored_blobs(store)
    steps = disk.log
    committed = steps.index(("commit", ""))
    models = store.snapshots()[-1].models
    settled = steps.index(("fsync", "blobs"))
    assert max(steps.index(("replace", name)) for name in models) < settled < committed
    deleted = [steps.index(("unlink", name)) for name in uploads]
    assert min(deleted) > [place for place, step in enumerate(steps) if step == ("commit", "")][1]  # that of prune


def test_a_file_is_synced_before_it_gets_its_name(disk, store, monkeypatch):
    seen = []

    def replace(source, target):
        seen.append(source.stat().st_ino in disk.synced)
        disk.replace(source, target)

    monkeypatch.setattr("os.replace", replace)
    toy = Toy(store)
    toy.join("car-7")
    toy.upload("car-7", "car-8")
    toy.snapshot()
    assert seen == [True] * (3 + 1 + 2 + 1 + 2 + 3)  # clusters, one given, uploads, one base, replies, clusters


ACTIONS = {
    "begin": (0, lambda toy: toy.store.begin(toy.state, LAYOUT, RELATIVE)),
    "upload": (7, lambda toy: toy.upload("car-7", "car-8")),
    "join": (5, lambda toy: toy.join("car-1")),
    "refresh": (5, lambda toy: toy.join("car-8")),
    "snapshot": (5, lambda toy: toy.snapshot()),
    "forget": (5, lambda toy: toy.store.forget("car-7", toy.state)),
    "rollback": (3, lambda toy: toy.store.rollback(3)),
}


@pytest.mark.parametrize("action", list(ACTIONS))
def test_the_power_may_be_cut_at_every_step(action, tmp_path, monkeypatch):
    """It is cut before each step of an action once, and after the last: the disk is then as after the step before.

    What comes back is the state before or after the action, never another.
    """
    epoch_after, act = ACTIONS[action]
    seen = set()
    for steps in range(100):
        folder = tmp_path / str(steps)
        folder.mkdir()
        disk = Disk(folder / "blobs", folder / "graveyard")
        with monkeypatch.context() as patched:
            disk.install(patched)
            patched.setattr(
                database_engine, "SQLITE", ("journal_mode = WAL", "synchronous = OFF")
            )  # that is not cut here
            store = Store.open(folder)
            store._writers = store._cleaner = AtOnce()
            disk.watch(store)
            toy, states = (empty if action == "begin" else filled)(store)
            disk.arm("crash before", steps)
            with suppress(Crash):
                act(toy)
            reached = disk.fault is None
            disk.disarm()
            store.database.close()
            disk.power_off()
            with Store.open(folder) as store:
                recovered = store.recover()
                seen.add(recovered and recovered.state.epoch)
                if recovered:
                    states[toy.state.epoch] = toy.state
                    assert recovered.state.epoch == 7 or same_state(recovered.state, states[recovered.state.epoch])
                    assert verify(store).findings == []
                    with store.reading() as connection:
                        spoken_of = queries.all_blobs(connection)
                    assert action == "forget" or spoken_of <= set(store.blobs.names())  # which deletes blobs first
        if not reached:
            break
    assert not reached
    assert steps > 3
    assert seen == {None if action == "begin" else 5, epoch_after}


def empty(store):
    toy = Toy.__new__(Toy)
    toy.store, toy.state = store, first_state()
    return toy, {}


def filled(store):
    """Five uploads, and a snapshot of epoch 3; all states by their epochs."""
    toy = Toy(store, settings=RELATIVE)
    states = {}
    for client_id in ("car-7", "car-8", "car-7", "car-9", "car-7"):
        toy.upload(client_id)
        states[toy.state.epoch] = toy.state
        if toy.state.epoch == 3:
            toy.snapshot()
    return toy, states


def test_sqlite_syncs_at_every_commit(real_disk, tmp_path):
    with Store.open(tmp_path) as store, store.writing() as writer, store.reading() as reader:
        for connection in (writer, reader):
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL


def test_postgresql_syncs_at_every_commit_whatever_its_default(postgres, tmp_path):
    url = postgres.new_schema()
    postgres.execute("ALTER ROLE cdfl SET synchronous_commit = off")
    try:
        with psycopg.connect(url) as plain:
            assert plain.execute("SHOW synchronous_commit").fetchone() == ("off",)
        with Store.open(url, tmp_path) as store, store.writing() as writer:
            assert writer.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
    finally:
        postgres.execute("ALTER ROLE cdfl RESET synchronous_commit")
