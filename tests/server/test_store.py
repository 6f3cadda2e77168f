"""What the store promises while nothing goes wrong, on both databases."""

import threading
import time
from dataclasses import replace

import pytest
from sqlalchemy.exc import IntegrityError

from cdfl.core import Settings
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreDamaged, StoreError, StoreUnavailable
from cdfl.server.store_records import Retention
from cdfl.wire import encode_model

from .toy import (
    LAYOUT,
    SETTINGS,
    Toy,
    find,
    first_state,
    keep,
    reject,
    same_state,
    some_entry,
    stored_blobs,
    was_sent,
)


def reopened(store, where, retention=None):
    store.close()
    return Store.open(*where, retention)


def test_an_empty_store(store):
    assert store.recover() is None
    assert store.epoch is None
    assert store.snapshots() == store.entries(after=0) == []
    assert store.num_clients() == 0
    assert store.client("car-7") is None
    assert find(store, "car-7", "key") is None
    assert not was_sent(store, "car-7", 0)
    store.check()
    store.commit([])
    with pytest.raises(ValueError, match="nothing was begun; call begin or recover first"):
        store.commit([(some_entry(epoch=1), b"reply")])
    with pytest.raises(StoreError, match="the store is empty; start a server with `cdfl serve` first"):
        store.layout()


def test_a_closed_store(store):
    store.close()
    for attempt in (store.check, store.num_clients, lambda: store.record_sent("car-7", 0)):
        with pytest.raises(StoreUnavailable, match="the store was closed"):
            attempt()
    store.drop("upload-1")
    store.close()


def test_what_was_begun_comes_back(store, where):
    state = first_state()
    store.begin(state, LAYOUT, SETTINGS)
    with pytest.raises(ValueError, match="the store holds a server at epoch 0"):
        store.begin(state, LAYOUT, SETTINGS)
    with reopened(store, where) as again:
        recovered = again.recover()
        assert same_state(recovered.state, state)
        assert recovered.state.num_parameters == 12
        assert (recovered.layout, recovered.settings, recovered.replayed) == (LAYOUT, SETTINGS, 0)


def test_an_upload_is_kept_to_the_last_bit(toy, store):
    (entry,) = toy.upload("car-7", key="first")
    (kept,) = store.entries(after=0)
    assert kept == replace(entry, reply=kept.reply)
    assert find(store, "car-7", "first") == kept
    assert find(store, "car-7", "second") is find(store, "car-8", "first") is None
    record = store.client("car-7")
    assert (record.uploads, record.last) == (1, kept)
    assert record.memory.mixture.tolist() == list(entry.mixture)
    assert record.memory.defence == entry.verdict.client
    assert record.since == entry.received
    assert store.num_clients() == 1
    assert store.epoch == 1


def test_the_reply_is_kept_byte_for_byte_until_the_next_one(toy, store):
    _, entry, reply = toy.take(toy.state, "car-7", "first")
    body = encode_model(reply.personal_model, LAYOUT, "float16")
    store.commit([(entry, body)])
    first = find(store, "car-7", "first")
    assert store.read_reply(first) == body
    store.commit([(some_entry(epoch=2, client_id="car-8"), b"another client"), (some_entry(epoch=3), b"next")])
    assert find(store, "car-7", "first").reply is None
    assert len(stored_blobs(store, "reply")) == 2
    assert store.read_reply(first) is None  # the blob is gone as well
    assert store.read_reply(store.client("car-7").last) == b"next"
    assert store.read_reply(store.client("car-8").last) == b"another client"


def test_two_uploads_of_one_client_in_a_group(toy, store):
    toy.upload("car-7", "car-8", "car-7")
    assert store.client("car-7").uploads == 2
    assert [entry.reply is None for entry in store.entries(after=0)] == [True, False, False]
    assert len(stored_blobs(store, "reply")) == 2


def test_uploads_that_moved_nothing_are_not_kept(toy, store):
    for _ in range(7):
        toy.upload("car-7")
    (late,) = toy.upload("car-8", base_epoch=0)
    assert late.outcome == "deprecated"
    assert store.entries(after=7)[0].upload is None
    assert len(stored_blobs(store, "upload")) == 7


def test_a_stopped_server_comes_back_bit_for_bit(toy, store, where):
    for place in range(20):
        toy.upload(*[f"car-{place % 3}", "car-9"][: 1 + place % 2], base_epoch=max(0, toy.state.epoch - 5))
        if place == 8:
            toy.snapshot()
    assert {entry.outcome for entry in store.entries(after=0)} == {"applied", "deprecated"}
    after = toy.store.snapshots()[-1].epoch
    told = []
    with reopened(store, where) as again:
        recovered = again.recover(lambda *done: told.append(done))
        assert same_state(recovered.state, toy.state)
        assert recovered.replayed == again.epoch - after == 30 - after
        assert told == [(done, 30 - after) for done in range(1, 31 - after)]
        going_on = Toy(again)
        going_on.upload("car-1")
        assert again.epoch == 31


def test_recovery_knows_what_the_guard_remembers(store, where):
    toy = Toy(store)
    bad = reject(toy)
    toy.upload(*(f"good-{number}" for number in range(8)))
    assert toy.state.defence_memory.numel() > 0
    blame = store.client("bad").memory.defence
    assert blame == bad.verdict.client != ()
    with reopened(store, where) as again:
        assert same_state(again.recover().state, toy.state)
        assert again.client("bad").memory.defence == blame


def test_a_rejected_upload_leaves_everything_but_the_journal_as_it_was(store, where):
    """It counts no epoch, its client keeps its model and may base the next upload on it, and the key is known."""
    toy = Toy(store)
    toy.join("bad")
    first = reject(toy)
    before, known = toy.state, store.client("bad", first.base_epoch)
    (entry,) = toy.upload("bad", key="again", away=9.0)
    assert (entry.outcome, entry.epoch, entry.number) == ("rejected", before.epoch, first.number + 1)
    assert toy.state is before
    assert (store.epoch, store.number) == (before.epoch, entry.number)
    kept = store.client("bad", first.base_epoch, "again")
    assert (kept.was_sent, kept.sent) == (known.was_sent, known.sent)
    assert kept.repeated == replace(entry, upload=None, base=None)
    assert (kept.repeated.reply, kept.repeated.reply_epoch) == (None, entry.base_epoch)
    assert not [name for name in stored_blobs(store, "upload") if name == entry.upload]
    toy.upload("good-1")
    with reopened(store, where) as again:
        assert same_state(again.recover().state, toy.state)
        assert (again.epoch, again.number) == (store.epoch, store.number)


def test_of_rejected_uploads_only_the_last_of_each_client_is_kept(store):
    """A fast client must not fill the journal, from which entries of others would have to go."""
    toy = Toy(store)
    reject(toy)
    for _ in range(5):
        last = toy.upload("bad", away=9.0)[0]
    store.prune()
    assert [entry.number for entry in store.entries(0) if entry.outcome == "rejected"] == [last.number]
    toy.upload("good-1")
    store.prune()
    assert store.client("bad").memory.defence == last.verdict.client
    toy.upload("bad", base_epoch=0)
    store.prune()
    assert not [entry for entry in store.entries(0) if entry.outcome == "rejected"]


def test_other_hyperparameters_are_in_force_from_a_snapshot_on(toy, store, where):
    toy.upload("car-7")
    slower = Settings(base_rate=0.01)
    store.snapshot(toy.state, slower)
    toy.settings = slower
    toy.upload("car-7")
    slowest = Settings(base_rate=0.001, sharpness=(3.0, 2.0))
    toy.snapshot()
    toy.upload("car-8")
    toy.snapshot()
    store.snapshot(toy.state, slowest)  # the same epoch once more
    toy.settings = slowest
    toy.upload("car-7")
    with reopened(store, where) as again:
        recovered = again.recover()
        assert same_state(recovered.state, toy.state)
        assert recovered.settings == slowest
        assert [kept.settings for kept in again.snapshots()][-2:] == [slower, slowest]


def test_a_journal_that_does_not_fit_its_settings_is_noticed(toy, store, where):
    toy.settings = Settings(max_staleness=0)  # a server that did not tell its store
    toy.upload("car-7")
    with reopened(store, where) as again:
        words = "the upload of entry 1 was deprecated; the stored settings make it applied"
        with pytest.raises(StoreDamaged, match=words):
            again.recover()


def test_epochs_must_follow_each_other(toy, store):
    with pytest.raises(ValueError, match=r"the epochs of the group are \[2\]; expected them to follow on 0"):
        store.commit([(some_entry(epoch=2), b"")])
    with pytest.raises(ValueError, match=r"the epochs of the group are \[1, 3\]"):
        store.commit([(some_entry(epoch=1), b""), (some_entry(epoch=3), b"")])
    assert store.entries(after=0) == []


def test_a_group_is_kept_whole_or_not_at_all(toy, store, where):
    toy.upload("car-7", key="used")
    before = stored_blobs(store)
    _, good, _ = toy.take(toy.state, "car-8", "new")
    again = some_entry(epoch=3, key="used", upload=keep(store, b"upload"))
    with pytest.raises(IntegrityError):
        store.commit([(good, b"one"), (again, b"two")])
    assert store.epoch == 1
    assert store.client("car-8") is None
    assert store.client("car-7").uploads == 1
    assert stored_blobs(store) == before  # uploads and replies of the group are dropped
    toy.upload("car-8")


def test_a_dropped_upload_is_gone(store):
    name = keep(store, b"upload")
    assert store.blobs.read(name) == b"upload"
    store.drop(name)
    assert stored_blobs(store, "upload") == []
    assert store.blobs.read(name) is None


def test_base_epochs_are_those_a_client_was_sent(toy, store, where):
    store.record_sent("car-7", 0)
    toy.upload("car-8")
    toy.upload("car-7")
    assert store.client("car-9") is None
    store.record_sent("car-9", 2)
    store.record_sent("car-9", 2)
    assert store.client("car-9").last is None
    assert store.num_clients() == 3
    with reopened(store, where) as again:
        given = {name: [was_sent(again, name, epoch) for epoch in range(4)] for name in ("car-7", "car-8", "car-9")}
    assert given == {
        "car-7": [True, False, True, False],
        "car-8": [False, True, False, False],
        "car-9": [False, False, True, False],
    }


def test_of_many_given_epochs_the_newest_are_remembered(toy, store, where):
    with reopened(store, where, Retention(keep_sent_epochs=3)) as store:
        toy.store = store
        for epoch in range(6):
            store.record_sent("car-7", epoch)
            store.record_sent("car-8", 0)
            toy.upload("car-9")
        assert [was_sent(store, "car-7", epoch) for epoch in range(6)] == [False] * 3 + [True] * 3
        assert was_sent(store, "car-8", 0)


@pytest.mark.parametrize("keep_uploads", [False, True])
def test_a_snapshot_makes_uploads_unneeded(toy, store, where, keep_uploads):
    with reopened(store, where, Retention(keep_snapshots=2, keep_days=0, keep_uploads=keep_uploads)) as store:
        toy.store = store
        for _ in range(4):
            toy.upload("car-7", "car-8")
            toy.snapshot()
        toy.upload("car-7")
        assert [kept.epoch for kept in store.snapshots()] == [6, 8]
        kept = [entry.epoch for entry in store.entries(after=0) if entry.upload is not None]
        assert kept == ([7, 8, 9] if keep_uploads else [9])
        assert len(stored_blobs(store, "upload")) == len(kept)
        assert len(stored_blobs(store, "snapshot")) == 2 * 3
        assert len(stored_blobs(store, "reply")) == 2
        assert same_state(store.recover().state, toy.state)


def test_replies_are_kept_for_a_while(toy, store, monkeypatch):
    toy.upload("car-7", "car-8")
    store.prune()
    assert len(stored_blobs(store, "reply")) == 2
    later = time.time() + Retention().keep_replies + 60
    monkeypatch.setattr("cdfl.server.store.time.time", lambda: later)
    store.prune()
    assert stored_blobs(store, "reply") == []
    assert find(store, "car-7", "key-0").reply is None
    assert store.client("car-7").last is not None


def test_the_journal_is_shortened_but_nobody_is_forgotten(toy, store, where):
    with reopened(store, where, Retention(keep_snapshots=1, keep_entries=10)) as store:
        toy.store = store
        store.record_sent("car-9", 0)
        (seldom,) = toy.upload("car-8", key="seldom")
        for _ in range(30):
            toy.upload("car-7")
        toy.snapshot()
        epochs = [entry.epoch for entry in store.entries(after=0)]
        assert epochs == [1, *range(22, 32)]
        assert store.client("car-8").last.mixture == seldom.mixture
        assert find(store, "car-8", "seldom") is not None
        assert store.client("car-7").uploads == 30
        # An upload from before the journal could be one it has forgotten: it is refused, and cannot count twice.
        assert [was_sent(store, "car-7", epoch) for epoch in (1, 21, 22, 31)] == [False, False, True, True]
        assert not was_sent(store, "car-9", 0)
        assert store.client("car-9") is not None
    with Store.open(*where) as again:
        assert not was_sent(again, "car-7", 21)
        assert was_sent(again, "car-7", 22)
        assert same_state(again.recover().state, toy.state)


def test_entries_come_in_pieces(toy, store, monkeypatch):
    for _ in range(5):
        toy.upload("car-7")
    assert [entry.epoch for entry in store.entries(after=2)] == [3, 4, 5]
    assert [entry.epoch for entry in store.entries(after=0, limit=2)] == [1, 2]
    monkeypatch.setattr("cdfl.server.store_reader.PAGE", 2)
    assert [entry.epoch for entry in store.all_entries(0)] == [1, 2, 3, 4, 5]


def test_back_to_a_snapshot(toy, store, where):
    toy.upload("car-7", "car-8")
    toy.snapshot()
    then = toy.state
    for _ in range(3):
        toy.upload("car-7", "car-9")
    store.record_sent("car-8", 7)
    with pytest.raises(ValueError, match="there is no snapshot of epoch 1"):
        store.rollback(1)
    store.rollback(2)
    assert store.epoch == 2
    assert [was_sent(store, "car-7", epoch) for epoch in range(9)] == [epoch == 1 for epoch in range(9)]
    assert not was_sent(store, "car-8", 7)
    assert [store.client(name).uploads for name in ("car-7", "car-8", "car-9")] == [1, 1, 0]
    assert store.client("car-9").last is None
    assert stored_blobs(store, "upload") == []
    with reopened(store, where) as again:
        assert same_state(again.recover().state, then)
        Toy(again).upload("car-7", key="key-2")  # a key that was cut off is free again
        assert again.epoch == 3


def test_a_snapshot_that_breaks_before_the_answer_comes_deletes_nothing(toy, store):
    """`cdfl rollback` asks first, and an answer may take its time."""
    toy.upload("car-7")
    assert store.count_after(0) == (1, 1)
    store.blobs.delete(store.snapshots()[0].models[:1])
    with pytest.raises(StoreDamaged, match="the snapshot of epoch 0 cannot be read, so nothing was deleted"):
        store.rollback(0)
    assert (store.epoch, len(store.entries(after=0))) == (1, 1)


def test_many_read_while_one_writes(toy, store):
    toy.upload("car-7")
    stop, seen, failures = threading.Event(), [], []

    def read():
        try:
            while not stop.wait(0.01):
                record = store.client("car-7")
                seen.append(record.last.epoch)
                reply = store.read_reply(record.last)
                assert reply is None or reply.startswith(encode_model(toy.state.cluster_models[0], LAYOUT)[:8])
                assert was_sent(store, "car-7", record.last.epoch)
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for place in range(20):
        toy.upload("car-7", "car-8")
        if place % 5 == 4:
            toy.snapshot()
    stop.set()
    for reader in readers:
        reader.join()
    assert failures == []
    assert seen
    assert store.client("car-7").uploads == 21


def test_snapshots_may_be_taken_while_commits_go_on(toy, store, where):
    for _ in range(5):
        toy.upload("car-7")
        snapshot = threading.Thread(target=store.snapshot, args=(toy.state,))
        snapshot.start()
        for _ in range(4):
            toy.upload("car-8")
        snapshot.join()
    assert [kept.epoch for kept in store.snapshots()][-2:] == [16, 21]
    with reopened(store, where) as again:
        assert same_state(again.recover().state, toy.state)
