"""The journal run again, against what the server had computed; and what `verify` notices."""

import shutil
from dataclasses import replace

import pytest
import torch

from cdfl.core import Settings, Verdict
from cdfl.core.estimate import means_after
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreDamaged, StoreError
from cdfl.server.store_records import Retention
from cdfl.server.tables import journal, snapshots
from cdfl.server.verify import verify
from cdfl.wire import body_parts, encode_model

from .toy import LAYOUT, SETTINGS, Toy, first_state, keep, same_state, some_entry, stored_blobs

pytestmark = pytest.mark.slow

KEEP_ALL = Retention(keep_snapshots=100, keep_uploads=True)
PICKY = Settings(max_staleness=6, guard=True)
RELATIVE = PICKY.replace(measures="relative")
both = pytest.mark.parametrize("settings", [PICKY, RELATIVE], ids=["plain", "relative"])


@pytest.fixture
def store(where):
    with Store.open(*where, KEEP_ALL) as store:
        yield store


def lively(store, settings=PICKY) -> Toy:
    """A server at epoch 30 with uploads of every outcome, and snapshots of epochs 0, 12 and 24."""
    toy, place = Toy(store, settings=settings), 0

    def upload(name, **options):
        toy.upload(name, **options)
        if toy.state.epoch in (12, 24):
            toy.snapshot()

    while toy.state.epoch < 30:
        upload(f"car-{place % 7}", base_epoch=max(0, toy.state.epoch - 2))
        if place % 3 == 2 and toy.state.epoch < 30:
            toy.upload("late", base_epoch=max(0, toy.state.epoch - 9))
            upload("bad", away=9.0)
        place += 1
    outcomes = {entry.outcome for entry in store.entries(after=0)}
    assert outcomes == {"applied", "deprecated", "rejected"} or not store.retention.keep_uploads
    return toy


@pytest.fixture(scope="module")
def lively_folders(tmp_path_factory):
    return tmp_path_factory.mktemp("lively")


@pytest.fixture
def copy_of_lively(lively_folders, tmp_path):
    """Return a function that opens a copy of a lively store on SQLite: what verify finds depends on no database."""
    opened = []

    def copy(settings=PICKY):
        original = lively_folders / settings.estimate.measures
        if not original.exists():
            with Store.open(original, retention=KEEP_ALL) as store:
                lively(store, settings)
        shutil.copytree(original, tmp_path / "copy")
        opened.append(Store.open(tmp_path / "copy", retention=KEEP_ALL))
        return opened[-1]

    yield copy
    for store in opened:
        store.close()


@pytest.fixture
def lively_store(copy_of_lively):
    return copy_of_lively()


def at(store, epoch):
    """The entry that led to an epoch."""
    return next(entry for entry in store.entries(after=0) if entry.epoch == epoch)


@both
def test_each_entry_leads_from_one_state_to_the_next(store, settings):
    """Through `core` once more, with the recorded decision and with a new one: the same bits."""
    toy = Toy(store, settings=settings)
    recorded = anew = toy.state
    outcomes = set()
    for turn in range(60):
        base_epoch = max(0, toy.state.epoch - (9 if turn % 5 == 4 else 0))
        away = 9.0 if turn % 3 == 2 else 0.0
        name = "bad" if away else f"car-{turn % 6}"
        state, entry, reply = toy.take(toy.state, name, f"key-{turn}", base_epoch, away=away)
        store.commit([(entry, body_parts(reply.personal_model, LAYOUT))])
        toy.state = state
        lean = entry if entry.outcome == "applied" else replace(entry, upload=None, base=None)
        recorded, repeated = store.replay(recorded, lean, settings, LAYOUT)
        anew, again = store.replay(anew, entry, settings, LAYOUT, anew=True)
        assert same_state(recorded, state)
        assert same_state(anew, state)
        for answer in (repeated, again):
            assert torch.equal(answer.mixture, reply.mixture)
            assert answer.verdict == reply.verdict
            assert torch.equal(answer.personal_model, reply.personal_model) or entry.outcome == "rejected"
        assert torch.equal(again.personal_model, reply.personal_model)
        outcomes |= {entry.outcome, "bounded" if entry.verdict.bounds != (1.0, 1.0) else ""}
    assert outcomes >= {"applied", "deprecated", "rejected", "bounded"}
    assert bool(toy.state.estimator_memory.any()) == (settings is RELATIVE)


def test_recovery_measures_nothing_again(store):
    """Distances are sums of many numbers, which another machine adds up in another order."""
    toy = Toy(store, settings=RELATIVE)
    before = toy.state
    (entry,) = toy.upload("car-7")
    told = replace(entry, losses=(0.25, 0.5, 1.0), loss_gaps=(0.5, 0.25, 0.125), distances=(1.0, 2.0, 3.0))
    after, _ = store.replay(before, told, RELATIVE, LAYOUT)
    begin = torch.zeros(3, 3, dtype=torch.float64)
    assert torch.equal(after.estimator_memory, means_after(begin, told.measures, epoch=1))
    assert torch.equal(after.cluster_models, toy.state.cluster_models)


def test_what_cannot_be_replayed(store):
    def refused(words, settings=SETTINGS, **changes):
        entry = some_entry(**{"epoch": 1, "outcome": "applied", "base_epoch": 0} | changes)
        with pytest.raises(StoreDamaged, match=words):
            store.replay(first_state(), entry, settings, LAYOUT)

    name = keep(store, encode_model(torch.zeros(LAYOUT.size), LAYOUT))
    refused("entry 1 is missing, the next one is 2", epoch=2)
    refused("entry 1 cannot be replayed: its client was forgotten", client_id="")
    refused("the upload of entry 1 is missing")
    refused("the model that the upload of entry 1 was trained from is missing", upload=name)
    refused("the upload of entry 1 was deprecated; the stored settings make it applied", outcome="deprecated")


@both
def test_everything_is_as_it_should_be(store, settings):
    lively(store, settings)
    done = []
    result = verify(store, lambda *told: done.append(told))
    assert result.findings == []
    count = len(store.entries(after=0))
    assert (result.first, result.last, result.entries, result.snapshots) == (0, 30, count, 2)
    assert result.replies == len(stored_blobs(store, "reply")) >= 8
    assert verify(store, tolerance=1e-9).findings == []
    assert sorted(set(done)) == [(epoch, 30) for epoch in range(1, 31)]


def test_by_default_the_newest_snapshot_is_as_far_back_as_it_goes(where):
    with Store.open(*where) as store:
        lively(store)
        result = verify(store)
        assert (result.first, result.entries, result.findings) == (24, len(list(store.all_entries(24))), [])


@both
def test_hyperparameters_that_changed(store, settings):
    toy = lively(store, settings)
    slow = Settings(base_rate=0.05)
    for changed in (slow, slow.replace(measures="relative"), PICKY, slow.replace(measures="relative")):
        usual, toy.settings = toy.state.estimator_memory, changed
        store.snapshot(toy.state, changed)
        toy.upload("car-1", "car-2")
        toy.upload("car-1")
        assert torch.equal(toy.state.estimator_memory, usual) == (changed.estimate.measures == "plain")
        assert same_state(store.recover().state, toy.state)
    assert verify(store).findings == []


@both
def test_a_rollback_brings_everything_back(store, settings):
    toy = Toy(store, settings=settings)
    toy.upload("car-1", "car-2", "car-3")
    toy.snapshot()
    there = toy.state
    toy.upload("car-1", "car-2")
    assert not same_state(toy.state, there)
    store.rollback(3)
    assert same_state(store.recover().state, there)
    toy.state = there
    toy.upload("car-3", "car-1")
    assert same_state(store.recover().state, toy.state)
    assert verify(store).findings == []


@pytest.mark.parametrize("kind", ["upload", "base", "reply", "snapshot"])
def test_a_flipped_bit_in_any_blob_is_found(lively_store, kind):
    for name in stored_blobs(lively_store, kind)[:4]:
        path = lively_store.blobs.folder / name
        whole = path.read_bytes()
        place = len(whole) - 21  # inside the tensors
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        findings = verify(lively_store).findings
        assert len(findings) == 1
        assert name in findings[0]
        path.write_bytes(whole)
    assert verify(lively_store).findings == []


def change(store, epoch, **changes):
    """Overwrite fields of an entry."""
    entry = at(store, epoch)
    with store.writing() as connection:
        row = replace(entry, **changes).to_row()
        connection.execute(journal.update().where(journal.c.number == entry.number).values(row))


@pytest.mark.parametrize(
    ("field", "value", "epoch", "words"),
    [
        ("mixture", (0.1, 0.2, 0.7), 7, "entry 7: mixture was (0.1, 0.2, 0.7), a replay gives ("),
        ("rates", (0.0, 0.0, 0.1), 7, "entry 7: rates was (0.0, 0.0, 0.1), a replay gives ("),
        ("losses", (9.0, 9.0, 8.0), 6, "entry 6: mixture was"),
        ("loss_gaps", (9.0, 9.0, 8.0), 7, "entry 7: loss_gaps was"),
        ("staleness", 5, 7, "entry 7: staleness was 5, a replay gives "),
        (
            "verdict",
            Verdict(seen=(0.5, None), client=(1.0,)),
            7,
            "entry 7: entry 7 cannot be replayed:",
        ),
        ("last_defence", (7.0,), 7, "entry 7: verdict was"),
        ("distances", (1.0, 2.0, 3.0), 7, "entry 7: distances was (1.0, 2.0, 3.0), a replay gives ("),
        ("outcome", "rejected", 7, "entry 7: outcome was rejected, a replay gives applied"),
        ("cluster_losses", (0.5, 0.5, 0.5), 12, "snapshot 12: cluster_losses is not what a replay gives"),
    ],
)
def test_a_changed_row_is_found(copy_of_lively, field, value, epoch, words):
    store = copy_of_lively(RELATIVE)
    assert at(store, epoch).outcome == "applied"
    change(store, epoch, **{field: value})
    findings = verify(store).findings
    assert any(finding.startswith(words) for finding in findings), findings


def test_a_changed_snapshot_is_found(copy_of_lively):
    store = copy_of_lively(RELATIVE)
    (snapshot,) = (each for each in store.snapshots() if each.epoch == 12)
    with store.writing() as connection:
        changed = snapshots.update().where(snapshots.c.epoch == 12)
        connection.execute(changed.values(state=snapshot.state | {"estimator_memory": [[1.0] * 3] * 3}))
    assert "snapshot 12: estimator_memory is not what a replay gives" in verify(store).findings


def test_a_change_in_the_last_bit_is_found_and_may_be_tolerated(lively_store):
    entry = at(lively_store, 7)
    nearly = (
        torch.tensor(entry.mixture[0], dtype=torch.float64).nextafter(torch.tensor(1.0)).item(),
        *entry.mixture[1:],
    )
    change(lively_store, 7, mixture=nearly)
    assert len(verify(lively_store).findings) >= 1
    assert not [finding for finding in verify(lively_store, tolerance=1e-9).findings if finding.startswith("entry")]


def test_distances_of_other_hardware_may_be_tolerated(lively_store):
    entry = at(lively_store, 7)
    rounded = tuple(distance * (1 + 1e-6) for distance in entry.distances)
    change(lively_store, 7, distances=rounded)
    (finding,) = verify(lively_store).findings
    assert finding.startswith("entry 7: distances was")
    assert verify(lively_store, tolerance=1e-5).findings == []


def test_after_something_unreadable_it_goes_on_at_the_next_snapshot(lively_store):
    entry = at(lively_store, 4)
    lively_store.blobs.delete([entry.upload])
    result = verify(lively_store)
    assert result.findings == [
        f"entry 4: the blob {entry.upload} is missing; restore it from a backup, or go back with `cdfl rollback`"
    ]
    assert result.snapshots == 1  # that of epoch 24; that of 12 had nothing to be compared with


@pytest.mark.parametrize("harm", ["damaged", "missing"])
def test_snapshots_older_than_the_replay_are_read(where, harm):
    """`cdfl rollback` offers them, so they should be what was written."""
    with Store.open(*where, Retention(keep_days=0)) as store:  # it keeps no uploads that recovery does not need
        lively(store)
        assert (verify(store).first, verify(store).read) == (24, 2)
        (name, *_), epoch = store.snapshots()[0].models, store.snapshots()[0].epoch
        if harm == "missing":
            store.blobs.delete([name])
        else:
            (store.blobs.folder / name).write_bytes(b"")
        result = verify(store)
        (finding,) = result.findings
        assert finding.startswith(f"snapshot {epoch}: the blob {name} is {harm}")
        assert finding.endswith("; restore it from a backup; without it, `cdfl rollback` cannot go back to this epoch")
        assert (result.first, result.read, result.entries) == (24, 1, len(list(store.all_entries(24))))


def test_a_missing_entry_is_found(lively_store):
    with lively_store.writing() as connection:
        connection.execute(journal.delete().where(journal.c.epoch == 20))
    assert any("entry 20 is missing" in finding for finding in verify(lively_store).findings)


def test_the_snapshot_of_a_missing_entry_is_read(lively_store):
    (name, *_) = lively_store.snapshots()[-1].models
    lively_store.blobs.delete([name])
    with lively_store.writing() as connection:
        connection.execute(journal.delete().where(journal.c.epoch == 24))
    found = verify(lively_store).findings
    assert [finding.partition(":")[0] for finding in found] == ["entry 25", "snapshot 24"]
    assert f"the blob {name} is missing" in found[1]


def test_beside_a_running_server(where):
    """The server deletes what is about to be read; verify begins again at a newer snapshot."""
    with Store.open(*where) as store:
        toy = lively(store)
        with Store.open(*where, own=False) as reader:
            read = reader.read_model
            overtaken = []

            def slow(name, layout):
                if name.startswith("upload") and not overtaken:
                    overtaken.append(name)
                    toy.snapshot()
                    stored_blobs(store)
                return read(name, layout)

            reader.read_model = slow
            result = verify(reader)
            assert overtaken
            assert (result.first, result.entries, result.findings) == (30, 0, [])


def test_a_rejected_upload_that_is_deleted_meanwhile(store):
    toy = lively(store)
    rejected = next(entry for entry in store.entries(after=0) if entry.outcome == "rejected")
    everything, read = verify(store), store.read_model

    def slow(name, layout):
        if name == rejected.upload:
            with store.writing() as connection:
                connection.execute(journal.delete().where(journal.c.number == rejected.number))
            store.blobs.delete([name])
        return read(name, layout)

    store.read_model = slow
    result = verify(store)
    assert (result.entries, result.findings) == (everything.entries - 1, [])
    assert toy.state.epoch == result.last


def test_recovery_beside_a_running_server(where):
    with Store.open(*where) as store:
        toy = lively(store)
        with Store.open(*where, own=False) as reader:
            read = reader.read_model

            def slow(name, layout):
                if name.startswith("upload"):
                    reader.read_model = read
                    toy.snapshot()
                    stored_blobs(store)
                return read(name, layout)

            reader.read_model = slow
            recovered = reader.recover()
            assert same_state(recovered.state, toy.state)
            assert recovered.replayed == 0


def test_a_forgotten_client_leaves_the_rest_verifiable(store):
    toy = lively(store)
    name = at(store, 29).client_id
    store.forget(name, toy.state)
    toy.upload(name, "car-9")
    result = verify(store)
    assert (result.first, result.findings) == (30, [])


def test_an_empty_store_cannot_be_verified(store):
    with pytest.raises(StoreError, match="the store is empty"):
        verify(store)


def test_recovery_refuses_what_is_damaged(where):
    with Store.open(*where) as store:
        toy = Toy(store)
        (entry,) = toy.upload("car-7")
    path = where[1] / entry.upload
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with Store.open(*where) as store, pytest.raises(StoreDamaged, match=f"the blob {entry.upload} is damaged: its sha"):
        store.recover()
    with Store.open(*where) as store:
        store.rollback(0)
        assert same_state(store.recover().state, first_state())
