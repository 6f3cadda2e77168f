"""What is forgotten is gone: from every table, from every blob, from the bytes of the database file."""

import pytest
import sqlalchemy as sa

from cdfl.core import Verdict
from cdfl.server.auth import Tokens
from cdfl.server.maintenance import Maintenance
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreUnavailable
from cdfl.server.store_records import Retention
from cdfl.server.tables import TABLES

from .test_store_faults import BreakingCommit
from .toy import Toy, reject, same_state, stored_blobs, was_sent

NAME = "car-of-somebody"


def everything(store) -> str:
    with store.reading() as connection:
        return "\n".join(
            str(tuple(row)) for table in TABLES.sorted_tables for row in connection.execute(sa.select(table))
        )


@pytest.mark.parametrize("keep_uploads", [False, True])
@pytest.mark.parametrize("snapshot_first", [False, True])
def test_everything_of_a_client_is_removed(where, keep_uploads, snapshot_first):
    with Store.open(*where, Retention(keep_uploads=keep_uploads)) as store:
        toy = Toy(store)
        token = Tokens(store.database).create(NAME)
        store.record_sent(NAME, 0)
        for _ in range(8):
            toy.upload("car-7", NAME)
        (last,) = toy.upload(NAME, base_epoch=0)
        assert last.outcome == "deprecated"
        if snapshot_first:
            toy.snapshot()
        own = [entry for entry in store.entries(after=0) if entry.client_id == NAME]
        numbers = [str(list(each)) for entry in own for each in (entry.mixture, entry.losses, entry.distances) if each]
        assert len(numbers) == 3 * 8 + 1
        assert all(number in everything(store) for number in numbers)
        store.ask_to_forget(NAME)
        assert store.asked_to_forget() == [NAME]
        assert store.knows(NAME)

        assert store.forget(NAME, toy.state)

        assert not store.knows(NAME)
        assert store.client(NAME) is None
        assert Tokens(store.database).claim(token) is None
        assert store.asked_to_forget() == []
        assert not was_sent(store, NAME, 0)
        left = everything(store)
        assert NAME not in left
        assert not [number for number in numbers if number in left]
        assert store.num_clients() == 1
        kept = [entry for entry in store.entries(after=0) if entry.upload]
        assert len(stored_blobs(store, "upload")) == len(kept)
        assert len(stored_blobs(store, "reply")) == 1
        assert len(store.entries(after=0)) == 17  # the journal still says that there was somebody
        assert not store.forget(NAME, toy.state)
    with Store.open(*where) as store:
        recovered = store.recover()
        assert same_state(recovered.state, toy.state)
        assert recovered.replayed == 0


def test_what_harm_it_did_is_forgotten(store):
    toy = Toy(store)
    reject(toy, NAME)
    assert max(store.client(NAME).memory.defence[-2:]) > 0  # its blames
    store.forget(NAME, toy.state)
    forgotten = [entry for entry in store.entries(after=0) if entry.client_id == ""]
    assert {(entry.verdict, entry.last_mixture, entry.last_defence) for entry in forgotten} <= {(Verdict(), None, ())}
    assert {(entry.base_epoch, entry.staleness) for entry in forgotten} <= {(0, 0)}
    assert not [entry for entry in store.entries(after=0) if entry.outcome == "rejected"]
    (entry,) = toy.upload(NAME)
    assert (entry.last_mixture, entry.last_defence) == (None, ())


def test_the_files_of_sqlite_do_not_remember_either(tmp_path):
    with Store.open(tmp_path) as store:
        toy = Toy(store)
        store.record_sent(NAME, 0)
        toy.upload(NAME, key="key-of-somebody")
        toy.upload("car-7")
        assert [path for path in tmp_path.glob("store.db*") if NAME.encode() in path.read_bytes()]
        store.forget(NAME, toy.state)
        for path in tmp_path.glob("store.db*"):
            assert NAME.encode() not in path.read_bytes()
            assert b"key-of-somebody" not in path.read_bytes()
            assert b"car-7" in path.read_bytes() or path.name != "store.db"


def test_nobody_else_loses_anything(where):
    with Store.open(*where) as store:
        toy = Toy(store)
        toy.upload("car-7", NAME)
        toy.upload("car-7")
        before = store.client("car-7")
        reply = store.read_reply(before.last)
        store.forget(NAME, toy.state)
        after = store.client("car-7")
        assert (after.uploads, after.last.mixture, after.last.key) == (2, before.last.mixture, before.last.key)
        assert store.read_reply(after.last) == reply
        toy.upload(NAME)  # who comes back is a newcomer
        assert store.client(NAME).uploads == 1


def test_a_token_alone_and_a_name_nobody_knows(where):
    with Store.open(*where) as store:
        token = Tokens(store.database).create(NAME)
        assert store.forget(NAME, None)  # nothing was begun yet
        assert Tokens(store.database).claim(token) is None
        assert not store.forget("nobody", None)


def test_recovery_must_not_need_what_is_forgotten(where):
    with Store.open(*where) as store:
        toy = Toy(store)
        old = toy.state
        toy.upload(NAME)
        for state, came in ((None, "there is none"), (old, "it is at epoch 0")):
            with pytest.raises(ValueError, match=f"the state must be the newest, of epoch 1; {came}"):
                store.forget(NAME, state)
        assert store.client(NAME).uploads == 1


def test_listeners_are_told_also_if_the_commit_seemed_to_fail(where, monkeypatch):
    """The client is gone from the store then, and nothing asks for it again."""
    now, told = [0.0], []
    with Store.open(*where) as store:
        toy = Toy(store)
        toy.upload("car-7")
        toy.snapshot()
        maintenance = Maintenance(store, 100, clock=lambda: now[0], on_forget=told.append)
        store.ask_to_forget("car-7")
        breaking = BreakingCommit(store, reaches=True)
        breaking.armed = False
        monkeypatch.setattr(store.blobs, "sync_folder", lambda: setattr(breaking, "armed", True))  # before the last one
        now[0] = 2.0
        with pytest.raises(StoreUnavailable):
            maintenance.run_due(toy.state)
        assert store.client("car-7") is None
        now[0] = 4.0
        maintenance.run_due(toy.state)
        assert told == ["car-7"]
        maintenance.finish(toy.state)
