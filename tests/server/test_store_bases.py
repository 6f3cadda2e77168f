"""The models that uploads were trained from: where they come from, who shares them, and how long they are kept."""

import errno
import os
import time

import pytest
import sqlalchemy as sa

from cdfl.server.blobs import digest_in, digest_of
from cdfl.server.store import Store
from cdfl.server.store_records import Retention
from cdfl.server.tables import sent_models
from cdfl.server.verify import verify

from .toy import LAYOUT, SETTINGS, Toy, keep_sent, same_state, stored_blobs, was_sent


def base_of(store, epoch) -> bytes:
    (entry,) = store.entries(after=epoch - 1, limit=1)
    return store.blobs.read(entry.base)


def later(monkeypatch, seconds):
    now = time.time() + seconds
    monkeypatch.setattr("cdfl.server.store.time.time", lambda: now)


def test_it_is_what_the_client_was_given_or_replied(toy, store):
    given = toy.join("car-7")
    toy.upload("car-8")
    toy.upload("car-7", base_epoch=0)
    assert base_of(store, 2) == given
    reply = store.read_reply(store.client("car-7").last)
    toy.upload("car-8", base_epoch=1)
    toy.upload("car-7", base_epoch=2)
    assert base_of(store, 4) == reply
    refreshed = toy.join("car-8")
    assert refreshed != store.read_reply(store.client("car-8").last)
    toy.upload("car-8")
    assert base_of(store, 5) == refreshed
    assert verify(store).findings == []


def test_it_takes_no_room_of_its_own(toy, store):
    toy.upload("car-7")
    reply = store.client("car-7").last.reply
    inode = (store.blobs.folder / reply).stat().st_ino
    (entry,) = toy.upload("car-7")
    assert (store.blobs.folder / entry.base).stat().st_ino == inode
    assert digest_in(entry.base) == digest_in(reply) == digest_of(store.blobs.read(entry.base))
    assert reply not in stored_blobs(store)


def test_where_files_have_one_name_only_it_is_copied(toy, store, monkeypatch):
    def link(source, target):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr("os.link", link)
    given = toy.join("car-7")
    toy.upload("car-7")
    assert base_of(store, 1) == given
    assert same_state(store.recover().state, toy.state)


@pytest.mark.parametrize("keep_uploads", [False, True])
def test_it_is_kept_as_long_as_the_upload(where, keep_uploads):
    with Store.open(*where, Retention(keep_uploads=keep_uploads)) as store:
        toy = Toy(store)
        for _ in range(4):
            toy.upload("car-7", "car-8")
            toy.snapshot()
        toy.upload("car-7")
        (late,) = toy.upload("car-8", base_epoch=0)
        assert late.outcome == "deprecated"
        entries = store.entries(after=0)
        assert [entry.epoch for entry in entries if entry.base] == [entry.epoch for entry in entries if entry.upload]
        assert [entry.epoch for entry in entries if entry.base] == ([7, 8, 9, 10] if keep_uploads else [9])
        assert len(stored_blobs(store, "base")) == (4 if keep_uploads else 1)
        assert verify(store).findings == []


def test_newcomers_share_what_all_of_them_get(toy, store):
    for number in range(5):
        toy.join(f"car-{number}")
        toy.join(f"car-{number}")
    assert len(stored_blobs(store, "sent")) == 1
    for number in range(4):
        toy.upload(f"car-{number}", base_epoch=0)
    assert len(stored_blobs(store, "sent")) == 1  # somebody may come yet
    assert len({base_of(store, epoch) for epoch in range(1, 5)}) == 1
    store.forget("car-4", toy.state)
    assert stored_blobs(store, "sent") == []
    assert verify(store).findings == []


def test_of_what_a_client_was_given_the_last_is_kept(toy, store):
    toy.join("car-7")
    toy.upload("car-8")
    toy.join("car-7")
    (name,) = stored_blobs(store, "sent")
    with store.reading() as connection:
        assert connection.execute(sa.select(sent_models.c.epoch, sent_models.c.model)).all() == [(0, None), (1, name)]
    assert keep_sent(store, "car-7", 0) is None
    assert was_sent(store, "car-7", 0)


def test_what_was_sent_is_kept_for_a_while(toy, store, monkeypatch):
    toy.join("car-7")
    toy.upload("car-8")
    store.prune()
    assert keep_sent(store, "car-7", 0)
    assert keep_sent(store, "car-8", 1)
    later(monkeypatch, Retention().keep_replies + 60)
    store.prune()
    assert stored_blobs(store, "sent") == stored_blobs(store, "reply") == []
    assert keep_sent(store, "car-7", 0) is None
    toy.join("car-8")  # who asks again is given it again, of the same epoch
    assert keep_sent(store, "car-8", 1)
    toy.upload("car-7", base_epoch=0)  # and who does not is taken for what it would be given now
    assert same_state(store.recover().state, toy.state)
    assert verify(store).findings == []


def test_nobody_else_needs_what_is_forgotten(toy, store):
    toy.join("car-7")
    toy.join("car-8")
    toy.upload("car-9", "car-7", base_epoch=0)
    toy.join("car-7")
    shared = keep_sent(store, "car-8", 0)
    store.forget("car-7", toy.state)
    assert stored_blobs(store, "base") == [shared]
    assert len(stored_blobs(store, "sent")) == 1
    store.drop(shared)
    toy.upload("car-8", base_epoch=0)
    assert same_state(store.recover().state, toy.state)


def test_back_to_a_snapshot(toy, store):
    toy.join("car-7")
    toy.upload("car-8")
    toy.snapshot()
    kept = stored_blobs(store)
    toy.upload("car-9")
    toy.join("car-8")
    toy.upload("car-9", "car-9")
    store.rollback(1)
    assert stored_blobs(store) == kept
    assert keep_sent(store, "car-7", 0)
    assert keep_sent(store, "car-8", 1)


def test_a_short_journal_forgets_what_was_given_before_it(where):
    with Store.open(*where, Retention(keep_snapshots=1, keep_entries=10)) as store:
        toy = Toy(store)
        toy.join("car-9")
        for _ in range(30):
            toy.upload("car-7")
        toy.snapshot()
        assert stored_blobs(store, "sent") == []


def test_steps_towards_the_upload_need_nothing(where):
    with Store.open(*where, Retention(keep_uploads=True)) as store:
        toy = Toy(store, settings=SETTINGS.replace(cluster_step="towards"))
        store.record_sent("car-7", 0)
        toy.upload("car-7", "car-8")
        assert {name.partition("-")[0] for name in stored_blobs(store)} == {"store", "snapshot", "upload", "reply"}
        assert verify(store).findings == []
        along = toy.settings.replace(cluster_step="along")
        store.snapshot(toy.state, along)
        toy.settings = along
        toy.upload("car-7")
        assert same_state(store.recover().state, toy.state)
        assert verify(store).findings == []
        assert store.read_model(store.entries(after=2)[0].base, LAYOUT) is not None
