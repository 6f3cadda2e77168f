"""A store that goes away and comes back: what the operator reads, and what a quiet server does meanwhile."""

import logging
import os
import signal
import time
from contextlib import contextmanager

import psycopg
import pytest

from cdfl.server import app, database
from cdfl.server.engine import Engine
from cdfl.server.maintenance import PRUNE_SECONDS, RETRY_SNAPSHOT_SECONDS, Maintenance, Outage
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreUnavailable
from cdfl.server.store_records import Retention
from cdfl.server.upload_losses import Evaluators

from .live import Live, near, wait_for
from .toy import LAYOUT, SETTINGS, Toy, evaluate, first_state, stored_blobs

pytestmark = pytest.mark.slow

AWAY, BACK = "the store is unavailable: ", "the store is back, after "


def warnings(caplog):
    """What stands in the server's log, from warnings on."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def away(*_, **__):
    raise StoreUnavailable("no route to host")


def test_it_is_told_once_and_for_how_long(caplog):
    now = [0.0]
    outage = Outage(clock=lambda: now[0])
    outage.end()
    assert not outage.is_on
    for _ in range(3):
        outage.begin(StoreUnavailable("no route to host"))
    now[0] = 75.2
    outage.end()
    outage.end()
    assert warnings(caplog) == [
        f"{AWAY}no route to host; clients are asked to try again later",
        f"{BACK}75 s; nothing was lost",
    ]


def test_a_database_that_goes_away_is_told_twice_not_every_second(postgres, tmp_path, caplog):
    with Store.open(postgres.new_schema(), tmp_path / "blobs") as store:
        store.begin(first_state(), LAYOUT, SETTINGS)
        engine = Engine(first_state(), LAYOUT, SETTINGS, store, Evaluators(None, evaluate))
        with postgres.away():
            wait_for(lambda: engine.outage.is_on)
            time.sleep(2.5)
        wait_for(lambda: not engine.outage.is_on)
        engine.close()
    first, last = warnings(caplog)
    assert first.startswith(f"{AWAY}the database cannot be used now: ")
    assert last.startswith(BACK)


def test_requests_that_are_refused_do_not_repeat_it(tmp_path, caplog, monkeypatch):
    with Live(tmp_path) as server:
        with monkeypatch.context() as patch:
            patch.setattr(server.store, "client", away)
            patch.setattr(server.store, "check", away)  # what says that it is back
            assert [server.model().status_code for _ in range(5)] == [503] * 5
            time.sleep(1.5)
            assert [line.partition(": ")[0] for line in warnings(caplog)] == ["the store is unavailable"]
        wait_for(lambda: not server.engine.outage.is_on)
        assert server.model().status_code == 200
    assert len(warnings(caplog)) == 2


# -- PostgreSQL is there, and does not answer


@pytest.fixture
def on_postgres(postgres, tmp_path, monkeypatch):
    """A server on PostgreSQL that waits for others as long as a test can; and the schema of its store."""
    monkeypatch.setattr(database, "CHECK_SECONDS", 1)
    monkeypatch.setattr(app, "CHECK_SECONDS", 3.0)
    url = postgres.new_schema()
    impatient = url + "%20-clock_timeout%3D1s"
    with Live(impatient, blobs=tmp_path / "blobs") as server:
        yield server, url


@contextmanager
def locked(url, table, mode):
    """Somebody else works on a table: an index is made, the table is changed or written anew."""
    with psycopg.connect(url) as other:
        other.execute(f"LOCK TABLE {table} IN {mode} MODE")
        yield
        other.rollback()


@pytest.mark.parametrize("mode", ["ACCESS EXCLUSIVE", "SHARE"])
def test_a_table_that_somebody_has_locked_is_an_outage(on_postgres, caplog, mode):
    server, url = on_postgres
    server.model("car-7")
    assert server.update(near(server, 0), "car-7").status_code == 200
    upload = near(server, 1)
    with locked(url, "journal", mode):
        wait_for(lambda: server.http.get("/readyz").status_code == 503)  # it is believed to be fine for a moment
        assert server.engine.outage.is_on
        response = server.update(upload, "car-7", base_epoch=1, key="two")
        assert (response.status_code, response.headers["Retry-After"]) == (503, "2")
        if mode == "ACCESS EXCLUSIVE":  # else a newcomer needs nothing that is locked
            assert server.model("car-8").status_code == 503
        assert server.engine.outage.is_on  # whatever can still be read and written
    wait_for(lambda: not server.engine.outage.is_on)
    assert server.http.get("/readyz").status_code == 200
    assert server.store.client("car-7").uploads == server.engine.state.epoch == 1
    assert server.update(upload, "car-7", base_epoch=1, key="two").status_code == 200
    assert server.update(upload, "car-7", base_epoch=1, key="two").status_code == 200  # once more, and counts once
    assert server.store.client("car-7").uploads == server.engine.state.epoch == 2
    assert [line.partition(": ")[0].partition(",")[0] for line in warnings(caplog)] == [
        "the store is unavailable",
        "the store is back",
    ]


def test_a_lock_in_the_middle_of_a_commit_changes_nothing(postgres, tmp_path):
    url = postgres.new_schema()
    with Store.open(url + "%20-clock_timeout%3D1s", tmp_path / "blobs") as store:
        toy = Toy(store)
        toy.upload("car-7")
        before = stored_blobs(store)
        with locked(url, "clients", "SHARE"), pytest.raises(StoreUnavailable, match="due to lock timeout"):
            toy.upload("car-7")  # the journal has it already when it comes to the clients
        assert store.entries(after=1) == []
        assert stored_blobs(store) == before
        toy.upload("car-7")
        assert store.client("car-7").uploads == 2


def test_a_statement_without_end_is_an_outage(postgres, tmp_path):
    with Store.open(postgres.new_schema() + "%20-cstatement_timeout%3D1s", tmp_path / "blobs") as store:
        with pytest.raises(StoreUnavailable, match="due to statement timeout"), store.reading() as connection:
            connection.exec_driver_sql("SELECT pg_sleep(20)")
        store.check()


def test_what_postgres_is_told(postgres, tmp_path):
    with Store.open(postgres.new_schema(), tmp_path / "blobs") as store, store.reading() as connection:
        told = {
            name: connection.exec_driver_sql(f"SHOW {name}").scalar() for name in ("lock_timeout", "statement_timeout")
        }
    assert told == {"lock_timeout": "5s", "statement_timeout": "30s"}


def test_a_database_that_is_frozen_is_not_ready(on_postgres):
    server, _ = on_postgres
    with server.store.writing() as connection:
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: server.http.get("/readyz").status_code == 503)
        assert server.http.get("/healthz").status_code == 200
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: server.http.get("/readyz").status_code == 200)


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path, retention=Retention(keep_replies=3600)) as store:
        yield store


def test_replies_expire_on_a_quiet_server(store, monkeypatch):
    toy = Toy(store)
    toy.upload("car-7")
    now = [0.0]
    maintenance = Maintenance(store, snapshot_every=100, clock=lambda: now[0])
    later = time.time() + 3700
    monkeypatch.setattr("cdfl.server.store.time.time", lambda: later)
    now[0] = PRUNE_SECONDS - 1
    maintenance.run_due(toy.state)
    assert len(stored_blobs(store, "reply")) == 1
    now[0] = PRUNE_SECONDS

    def is_pruned() -> bool:
        maintenance.run_due(toy.state)  # again and again, as the server does: another thread may still be at work
        return stored_blobs(store, "reply") == []

    wait_for(is_pruned)
    maintenance.finish(toy.state)


@pytest.mark.parametrize(("method", "words"), [("snapshot", "no snapshot of"), ("prune", "old data were not deleted")])
def test_what_fails_is_tried_again_later(store, method, words, caplog, monkeypatch):
    toy = Toy(store)
    toy.upload("car-7")
    now, tried = [0.0], []
    maintenance = Maintenance(store, snapshot_every=1 if method == "snapshot" else 100, clock=lambda: now[0])
    monkeypatch.setattr(store, method, lambda *_: (tried.append(now[0]), away()))
    pause = RETRY_SNAPSHOT_SECONDS if method == "snapshot" else PRUNE_SECONDS
    for now[0] in (0.0, 1.0, 2.0, pause + 1.0, pause + 2.0):
        maintenance.run_due(toy.state)
        wait_for(maintenance._work.done if maintenance._work else lambda: True)
    monkeypatch.undo()
    maintenance.finish(toy.state)
    assert tried == ([0.0] if method == "snapshot" else []) + [pause + 1.0]
    assert [line.startswith(words) for line in warnings(caplog)] == [True] * len(tried)
