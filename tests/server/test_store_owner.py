"""A store has one owner. A second one is refused, a dead one is no obstacle, a lost one notices."""

import logging
import os
import signal
import subprocess
import sys

import psycopg
import pytest

from cdfl import wire
from cdfl.server import maintenance
from cdfl.server.database_engine import without_password
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreBusy, StoreError, StoreLost, StoreUnavailable

from .live import Live, near
from .toy import Toy, same_state, stored_blobs

pytestmark = pytest.mark.slow

OWN_AND_WAIT = """
import sys
from cdfl.server.store import Store
store = Store.open(sys.argv[1], sys.argv[2])
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_process(where):
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", OWN_AND_WAIT, *map(str, where)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "open\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_owner_is_refused_until_the_first_is_gone(where):
    with Store.open(*where) as first:
        words = rf"the store is in use \(process {os.getpid()} on .*, since 20.*\); stop that server first"
        with pytest.raises(StoreBusy, match=words):
            Store.open(*where)
        Toy(first).upload("car-7")  # and has lost nothing by it
        with Store.open(*where, own=False) as reader:
            assert reader.client("car-7").uploads == 1
    with Store.open(*where) as second:
        assert second.client("car-7").uploads == 1


def test_a_killed_owner_is_no_obstacle(where, other_process):
    with pytest.raises(StoreBusy, match=f"process {other_process.pid} on "):
        Store.open(*where)
    other_process.send_signal(signal.SIGKILL)
    other_process.wait()
    Store.open(*where).close()


def test_database_and_blobs_belong_together(where, tmp_path, store_url):
    with Store.open(*where) as store:
        toy = Toy(store)
        toy.upload("car-7")
        kept = stored_blobs(store)
    with pytest.raises(StoreError, match=f"the blobs of this store are not in {tmp_path}/elsewhere; name their place"):
        Store.open(where[0], tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(StoreError, match="the place for the blobs holds those of another store"):
        Store.open(tmp_path / "new", where[1])
    with Store.open(*where) as store:
        assert stored_blobs(store) == kept
        assert same_state(store.recover().state, toy.state)


@pytest.mark.parametrize(
    ("database", "words"),
    [
        ("mysql://me@host/name", "the database is a mysql one; expected sqlite:///FILE or postgresql://"),
        (
            "nonsense://me:secret@x",
            "the database is a nonsense one; expected sqlite:///FILE or postgresql://USER@HOST/NAME",
        ),
        ("sqlite://", "an SQLite database in memory would lose everything; expected sqlite:///FILE"),
        ("postgresql://me:secret@host:abc/name", r"^the port in the URL of the database \(--store\) is not a number"),
        ("postgresql://me:secret@host/name?port=abc", r"^the URL of the database \(--store\) cannot be used: .*port"),
        (
            "postgresql://me:secret@127.0.0.1/name?bogus=1",
            r"the URL of the database \(--store\) cannot be used: .*bogus[^\n]*$",
        ),
        ("://", "expected sqlite:///FILE or postgresql://USER@HOST/NAME"),
    ],
)
def test_other_databases(database, words, tmp_path):
    with pytest.raises(StoreError, match=words):
        Store.open(database, tmp_path)


def test_a_database_needs_a_place_for_blobs(store_url):
    with pytest.raises(StoreError, match="a database URL needs a place for the blobs, too"):
        Store.open(store_url)


def test_nobody_else_may_read_any_file(tmp_path):
    with Store.open(tmp_path) as store:
        Toy(store).upload("car-7")
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert len(files) >= 8
        assert {path.name: oct(path.stat().st_mode & 0o077) for path in files if path.stat().st_mode & 0o077} == {}


def test_a_place_is_shown_without_its_password(tmp_path):
    assert without_password("postgresql://me:secret@host/name") == "postgresql+psycopg://me:***@host/name"
    assert without_password(tmp_path) == str(tmp_path)


# -- PostgreSQL: the lock lives and dies with a connection


@pytest.fixture
def apart(postgres, tmp_path):
    return postgres.new_schema(), tmp_path / "blobs"


def cut_connection(postgres, store):
    """What a firewall or a failover does: the connection of the owner is gone, without a word."""
    store.database._connection.exec_driver_sql("SELECT 1")
    pid = store.database._connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
    postgres.execute(f"SELECT pg_terminate_backend({pid}, 5000)")


def test_the_owner_comes_back_after_its_connection_was_cut(postgres, apart):
    with Store.open(*apart) as store:
        toy = Toy(store)
        toy.upload("car-7")
        cut_connection(postgres, store)
        toy.upload("car-7")
        assert store.client("car-7").uploads == 2
        with pytest.raises(StoreBusy):  # the lock was taken again
            Store.open(*apart)


def test_an_owner_that_was_replaced_must_stop(postgres, apart):
    with Store.open(*apart) as first:
        toy = Toy(first)
        toy.upload("car-7")
        cut_connection(postgres, first)
        with Store.open(*apart) as second:
            Toy(second).upload("car-8")
            for attempt in (lambda: toy.upload("car-7"), first.check, lambda: first.record_sent("car-9", 1)):
                with pytest.raises(StoreLost, match=rf"taken over by another server \(process {os.getpid()} on"):
                    attempt()
        with pytest.raises(StoreLost):  # also when the other one has gone again
            toy.upload("car-7")
    with Store.open(*apart) as third:
        assert [entry.client_id for entry in third.entries(after=0)] == ["car-7", "car-8"]


@pytest.fixture
def replaced(postgres, apart):
    """A server whose store has another owner now, which it does not know."""
    with Live(apart[0], blobs=apart[1]) as server:
        server.model("car-7")
        assert server.update(near(server, 0), "car-7").status_code == 200
        cut_connection(postgres, server.store)
        with Store.open(*apart):
            yield server


def assert_it_stops(server, caplog):
    server._thread.join(timeout=20)
    assert not server._thread.is_alive()
    assert server.engine.lost.startswith("the store was taken over by another server (process ")
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert said == [f"the server must stop: {server.engine.lost}"]  # once


@pytest.mark.parametrize("path", ["/v1/model", "/readyz"])
def test_a_server_that_was_replaced_stops_at_the_next_request(replaced, caplog, path):
    assert replaced.http.get(path, headers={wire.CLIENT: "car-8"}).status_code == 503
    assert_it_stops(replaced, caplog)


@pytest.mark.parametrize("chore", ["PRUNE_SECONDS", "SNAPSHOT_SECONDS"])
def test_a_server_that_was_replaced_stops_unasked(replaced, caplog, monkeypatch, chore):
    monkeypatch.setattr(maintenance, chore, 0.0)
    assert_it_stops(replaced, caplog)


def test_an_owner_waits_for_its_own_ghost(postgres, apart):
    """The database may hold the lock of a dead connection for a while."""
    with Store.open(*apart) as store:
        toy = Toy(store)
        cut_connection(postgres, store)
        with psycopg.connect(apart[0], autocommit=True) as ghost:
            ghost.execute("SELECT pg_advisory_lock(%s, hashtext(current_schema()))", (0x6364666C,))
            with pytest.raises(StoreUnavailable, match="has not yet noticed that the old connection"):
                toy.upload("car-7")
        toy.upload("car-7")
        assert store.epoch == 1


def test_a_schema_that_does_not_exist(postgres, tmp_path):
    with pytest.raises(StoreError, match="the tables of the store cannot be created: no schema has been selected"):
        Store.open(f"{postgres.url}&options=-csearch_path%3Dnowhere", tmp_path)


def test_stores_may_share_a_database(postgres, tmp_path):
    with (
        Store.open(postgres.new_schema(), tmp_path / "one") as one,
        Store.open(postgres.new_schema(), tmp_path / "two") as two,
    ):
        Toy(one).upload("car-7")
        assert two.client("car-7") is None
