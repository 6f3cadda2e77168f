"""Databases that go away, full and read-only disks, commits of which nobody knows whether they were made."""

import os
import sqlite3
import subprocess
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
import sqlalchemy as sa

from cdfl.server.auth import Tokens
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreDamaged, StoreUnavailable

from .toy import LAYOUT, Toy, find, keep, same_state, spooled, stored_blobs, was_sent

# -- PostgreSQL goes away


def test_a_database_that_goes_away_and_comes_back(postgres, tmp_path):
    with Store.open(postgres.new_schema(), tmp_path / "blobs") as store:
        toy = Toy(store)
        toy.upload("car-7")
        before = stored_blobs(store)
        with postgres.away():
            for attempt in (
                lambda: toy.upload("car-7"),
                lambda: store.client("car-7"),
                lambda: store.record_sent("car-8", 1),
                lambda: store.snapshot(toy.state),
                lambda: Tokens(store.database).create("car-8"),
                store.check,
            ):
                with pytest.raises(StoreUnavailable, match="the database cannot be used now: "):
                    attempt()
        assert store.client("car-7").uploads == 1
        assert stored_blobs(store) == before
        toy.upload("car-7", key="key-1")  # the key of the upload that failed
        store.check()
        assert store.client("car-7").uploads == 2
        assert same_state(store.recover().state, toy.state)


def test_readers_survive_a_restart(postgres, tmp_path):
    with Store.open(postgres.new_schema(), tmp_path / "blobs") as store:
        Toy(store).upload("car-7")
        readers = [threading.Thread(target=store.client, args=("car-7",)) for _ in range(8)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        with postgres.away():
            pass
        assert store.client("car-7").uploads == 1  # with connections that were pooled before


def test_a_database_that_is_not_there_at_the_start(tmp_path):
    with pytest.raises(StoreUnavailable, match="the database cannot be used now: "):
        Store.open(f"postgresql://cdfl@/postgres?host={tmp_path}", tmp_path / "blobs")


# -- a connection that breaks while a transaction is being committed


class BreakingCommit:
    """Loses the connection at the next COMMIT: before it reaches the database, or before its answer comes back."""

    def __init__(self, store: Store, *, reaches: bool) -> None:
        self.armed = True
        when = "after_cursor_execute" if reaches else "before_cursor_execute"
        sa.event.listen(store.database.engine, when, self)

    def __call__(self, connection, cursor, statement, parameters, context, executemany):
        if statement == "COMMIT" and self.armed:
            self.armed = False
            connection.invalidate()
            raise sa.exc.OperationalError(statement, None, Exception("the connection is lost"))


@pytest.mark.parametrize("reaches", [False, True])
def test_a_commit_in_doubt_is_taken_back(where, reaches):
    with Store.open(*where) as store:
        toy = Toy(store)
        toy.upload("car-7")
        toy.join("car-8")
        before, last = stored_blobs(store), store.client("car-7").last
        BreakingCommit(store, reaches=reaches)
        with pytest.raises(StoreUnavailable, match="the connection is lost"):
            toy.upload("car-7", "car-8", key=None)
        # The clients were told that it failed, so it has not happened, whoever asks.
        assert store.client("car-7").uploads == 1
        assert store.client("car-7").last == last
        assert store.client("car-8").uploads == 0
        assert find(store, "car-8", "key-2") is None
        assert not was_sent(store, "car-8", 3)
        assert store.entries(after=1) == []
        assert stored_blobs(store) == before  # what they were sent is as it was
        toy.upload("car-7", "car-8")
        assert store.client("car-7").uploads == 2
        assert store.client("car-8").uploads == 1
        assert same_state(store.recover().state, toy.state)


def test_a_server_that_dies_in_doubt_finds_what_was_committed(where):
    with Store.open(*where) as store:
        toy = Toy(store)
        BreakingCommit(store, reaches=True)
        with pytest.raises(StoreUnavailable):
            toy.upload("car-7", key="first")
    with Store.open(*where) as store:
        assert store.epoch == 1
        entry = find(store, "car-7", "first")  # the same request gets the answer it did not get
        assert len(store.read_reply(entry)) > LAYOUT.size * 4
        assert store.recover().state.epoch == 1


def test_in_doubt_while_the_database_stays_away(postgres, tmp_path):
    with Store.open(postgres.new_schema(), tmp_path / "blobs") as store:
        toy = Toy(store)
        BreakingCommit(store, reaches=True)
        with pytest.raises(StoreUnavailable):
            toy.upload("car-7")
        with postgres.away():
            for attempt in (lambda: store.client("car-7"), lambda: toy.upload("car-7")):
                with pytest.raises(StoreUnavailable):
                    attempt()
        assert store.client("car-7").uploads == 0
        toy.upload("car-7")
        assert store.epoch == 1


def test_a_snapshot_in_doubt_keeps_its_models(where):
    with Store.open(*where) as store:
        toy = Toy(store)
        toy.upload("car-7")
        BreakingCommit(store, reaches=True)
        with pytest.raises(StoreUnavailable):
            toy.snapshot()
        assert same_state(store.recover().state, toy.state)
        toy.snapshot()
    with Store.open(*where) as store:
        assert [kept.epoch for kept in store.snapshots()] == [0, 1]
        assert len(stored_blobs(store, "snapshot")) == 6


# -- disks


@pytest.fixture
def small_disk(tmp_path):
    """A file system of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:  # noqa: S603
        pytest.skip("only who may mount file systems can make a small one")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S603, S607


@pytest.fixture(params=["both", "blobs only"])
def on_small_disk(request, small_disk, tmp_path):
    database = small_disk if request.param == "both" else tmp_path
    with Store.open(f"sqlite:///{database}/store.db", small_disk / "blobs") as store:
        yield store


def next_to(entry, **changes):
    return replace(entry, epoch=entry.epoch + 1, key="next", reply=None, base=None, **changes)


@contextmanager
def read_only(folder):
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)  # noqa: S603, S607
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)  # noqa: S603, S607


def fill(folder):
    with (folder / "full").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)


def test_a_full_disk(on_small_disk, small_disk):
    store = on_small_disk
    toy = Toy(store)
    toy.upload("car-7")
    before = stored_blobs(store)
    name = keep(store, b"came before the disk was full")
    fill(small_disk)
    entry = store.client("car-7").last
    with pytest.raises(StoreUnavailable, match="No space left on device"):
        store.commit([(next_to(entry, upload=name), b"x" * 100_000)])
    with pytest.raises(StoreUnavailable, match="No space left on device"):
        store.snapshot(toy.state)
    with pytest.raises(StoreUnavailable, match=r"No space left on device|disk is full"):
        store.check()
    assert store.epoch == 1
    assert store.client("car-7").last == entry
    assert stored_blobs(store) == before
    (small_disk / "full").unlink()
    store.check()
    toy.upload("car-7")
    toy.snapshot()
    assert same_state(store.recover().state, toy.state)


def test_a_read_only_folder(small_disk, tmp_path):
    with Store.open(f"sqlite:///{tmp_path}/store.db", small_disk / "blobs") as store:
        toy = Toy(store)
        toy.upload("car-7")
        store.check()
        name = keep(store, b"upload")
        with read_only(small_disk):
            with pytest.raises(StoreUnavailable, match="Read-only file system"):
                store.check()
            with pytest.raises(StoreUnavailable, match="Read-only file system"):
                store.commit([(next_to(store.client("car-7").last, upload=name), b"reply")])
            assert store.client("car-7").uploads == 1
            assert store.read_reply(store.client("car-7").last)
            assert name in stored_blobs(store)  # it could not be deleted
        store.check()
        toy.upload("car-7")
        assert store.epoch == 2
        assert name not in stored_blobs(store)


def test_a_read_only_database(postgres, tmp_path):
    """What a failover to a standby looks like."""
    with Store.open(postgres.new_schema(), tmp_path / "blobs") as store:
        toy = Toy(store)
        for attempt in (store.check, lambda: toy.upload("car-7")):
            store.database._connected().exec_driver_sql("SET default_transaction_read_only = on")
            with pytest.raises(StoreUnavailable, match="in a read-only transaction"):
                attempt()
        toy.upload("car-7")  # by a new connection
        assert store.epoch == 1


def test_a_database_that_sqlite_has_found_read_only(tmp_path):
    """It opens such a file read-only, for as long as the connection lasts."""
    with Store.open(tmp_path) as store:
        toy = Toy(store)
        engine = store.database.engine
        store.database._disconnect()

        def open_so(*_):
            return sqlite3.connect(f"file:{tmp_path}/store.db?mode=ro", uri=True, check_same_thread=False)

        sa.event.listen(engine, "do_connect", open_so)
        for attempt in (store.check, lambda: toy.upload("car-7"), lambda: toy.upload("car-7")):
            with pytest.raises(StoreUnavailable, match="attempt to write a readonly database"):
                attempt()
        assert store.client("car-7") is None  # which leaves a connection in the pool
        sa.event.remove(engine, "do_connect", open_so)
        store.check()
        toy.upload("car-7")
        assert store.epoch == 1


# -- what a crash leaves


def test_what_nobody_speaks_of_is_swept_at_the_start(where):
    with Store.open(*where) as store:
        toy = Toy(store)
        toy.upload("car-7")
        kept = stored_blobs(store)
        keep(store, b"never committed")
        spooled(store, b"never complete")
        (store.blobs.folder / "notes.txt").write_text("not ours")
    with Store.open(*where) as store:
        assert stored_blobs(store) == sorted([*kept, "notes.txt"])
        assert list((store.blobs.folder / "spool").iterdir()) == []
        assert same_state(store.recover().state, toy.state)


def test_a_database_that_is_no_database(tmp_path):
    (tmp_path / "store.db").write_bytes(b"a" * 5000)
    with pytest.raises(StoreDamaged, match="the database cannot be read: file is not a database; restore a backup"):
        Store.open(tmp_path)


def test_a_missing_snapshot(where):
    with Store.open(*where) as store:
        Toy(store)
        name = stored_blobs(store, "snapshot")[0]
        store.blobs.delete([name])
        with pytest.raises(StoreDamaged, match=f"the blob {name} is missing; restore it from a backup, or go back"):
            store.recover()
