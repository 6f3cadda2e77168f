"""Data are synced before they are acknowledged: who does what in which order."""

import psycopg
import pytest

from cdfl.server.store import Store

from .disk import Disk
from .toy import Toy, stored_blobs


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
    disk.log.clear()
    toy.upload("car-7", "car-8", "car-9")
    acknowledged = list(disk.log)
    names = [name for entry in store.entries(after=0) for name in (entry.upload, entry.reply)]
    assert len(names) == 6
    committed = acknowledged.index(("commit", ""))
    settled = max(place for place, step in enumerate(acknowledged) if step == ("fsync", "blobs"))
    for name in names:
        renamed = acknowledged.index(("replace", name))
        assert renamed < settled < committed  # the folder knows the name before the database does
        assert (disk.folder / name).stat().st_ino in disk.synced
    assert disk.unsettled == {}
    assert [step for step, _ in acknowledged].count("commit") == 1


def test_a_group_needs_few_syncs(store, disk):
    """One a file, and one for the folder, however many they are; the transaction is one more, the database's own."""
    toy = Toy(store)
    disk.log.clear()
    toy.upload(*[f"car-{number}" for number in range(10)])
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
    toy.upload("car-7", "car-8")
    toy.snapshot()
    assert seen == [True] * (3 + 2 * 2 + 3)  # models of clusters, uploads and replies, models of clusters


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
