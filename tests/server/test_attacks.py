"""One token, or none, must not hurt the others. Each test fails without the mend of what was found once."""

import asyncio
import hashlib
import json
import multiprocessing
import socket
import sqlite3
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cdfl import wire
from cdfl.server.auth import Tokens
from cdfl.server.engine_startup import open_engine
from cdfl.server.fingerprint import fingerprints_of
from cdfl.server.maintenance import Scrub
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreBusy
from cdfl.server.uploads import NUM_THREADS, Uploads

from .live import FAST, LAYOUT, Live, decoded, near, tiny_instance, wait_for
from .toy import Toy, same_state

pytestmark = pytest.mark.slow
CALM = replace(FAST, idle_seconds=60.0)


def plain(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


# -- 5: forgotten or revoked while an upload waits


@pytest.mark.parametrize("how", ["forget", "revoke", "expire"])
def test_what_is_withdrawn_while_an_upload_waits_holds(tmp_path, how):
    with Live(tmp_path, is_open=False) as server:
        tokens = Tokens(server.store.database)
        token = tokens.create("car-7", seconds=3600.0)
        headers = {"Authorization": f"Bearer {token}"}
        server.model(headers=headers)
        body, gate, evaluate = near(server, 0), threading.Event(), server.engine.evaluation.evaluate
        waits = threading.Event()

        class Slow:
            def of_each(self, vectors):
                waits.set()
                assert gate.wait(20)
                return evaluate.of_each(vectors)

        server.engine.evaluation.evaluate = Slow()
        answers = []
        thread = threading.Thread(target=lambda: answers.append(server.update(body, headers=headers)))
        thread.start()
        assert waits.wait(10)
        if how == "forget":
            server.store.ask_to_forget("car-7")
            wait_for(lambda: server.store.client("car-7") is None)
        elif how == "revoke":
            tokens.revoke("car-7")
        else:
            with server.store.writing() as connection:
                connection.exec_driver_sql("UPDATE tokens SET expires = 1.0")
        gate.set()
        thread.join()
        assert server.refused(answers[0])[0] == 401
        assert server.engine.state.epoch == 0
        assert server.store.entries(0) == []
        if how == "forget":
            assert server.store.client("car-7") is None
            wait_for(lambda: not any(name.startswith("upload") for name in server.store.blobs.names()))


# -- 7: events that cannot be linked


def test_others_learn_neither_who_nor_what_nor_from_which_epoch(tmp_path):
    with Live(tmp_path, is_open=False) as server:
        mine, other = (Tokens(server.store.database).create(name) for name in ("car-7", "watcher"))
        mine, other = ({"Authorization": f"Bearer {token}"} for token in (mine, other))
        server.model(headers=mine)
        assert server.update(near(server, 0), headers=mine).status_code == 200
        seen = {}
        for name, headers in (("own", mine), ("other", other)):
            with server.http.stream("GET", "/v1/events", headers=headers | {"Last-Event-ID": "0"}) as response:
                line = next(line for line in response.iter_lines() if line.startswith("data: "))
            seen[name] = json.loads(line.removeprefix("data: "))
        assert seen["other"].keys() == {"number", "epoch", "outcome"}
        assert {"client_id", "staleness", "mixture"} <= seen["own"].keys()
        status = server.http.get("/v1/status", headers=other).json()
        assert status["cluster_losses"] is status["cluster_epochs"] is None


# -- 10: stored replies


@pytest.mark.parametrize("damage", ["flip", "empty", "delete"])
def test_a_damaged_reply_is_not_served(tmp_path, damage):
    with Live(tmp_path) as server:
        server.model()
        body = near(server, 0)
        first = server.update(body)
        assert server.update(body).content == first.content
        (name,) = (name for name in server.store.blobs.names() if name.startswith("reply"))
        path = server.store.blobs.folder / name
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.unlink()
        if damage != "delete":
            path.write_bytes(data if damage == "flip" else b"")
        status, words = server.refused(server.update(body))
        assert (status, "GET /v1/model" in words) == (410, True)  # the client then fetches a model, and drops nothing
        assert server.engine.state.epoch == 1


def test_digests_go_both_ways(tmp_path):
    with Live(tmp_path) as server:
        reply = server.model()
        assert wire.sha256_in(reply.headers[wire.DIGEST]) == hashlib.sha256(reply.content).hexdigest()
        body = near(server, 0)
        wrong = server.update(body, headers={wire.DIGEST: wire.digest_header("0" * 64)})
        assert server.refused(wrong)[0] == 503  # damaged on the way: it should be sent again
        assert server.engine.state.epoch == 0
        right = {wire.DIGEST: wire.digest_header(hashlib.sha256(body).hexdigest())}
        assert server.update(body, headers=right).status_code == 200


def test_the_scrub_finds_damage_once(tmp_path, caplog):
    with Store.open(tmp_path) as store:
        Toy(store).upload("car-7")
        damaged = []
        scrub = Scrub(store, lambda: damaged.append(1))
        names = store.all_blobs()
        path = store.blobs.folder / names[0]
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        for _ in range(3 * len(names)):
            scrub.step()
        assert damaged == [1]
        assert names[0] in caplog.text


# -- 11: the write lock of SQLite


def _hold(path, ready, done):
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    ready.set()
    done.wait(60)
    connection.execute("ROLLBACK")


def test_reads_do_not_wait_for_a_writer_of_another_process(tmp_path, monkeypatch):
    monkeypatch.setattr("cdfl.server.database_engine.WAIT_FOR_WRITERS", 0.5)
    monkeypatch.setattr("cdfl.server.database.TURN_SECONDS", 0.5)
    with Live(tmp_path) as server:
        server.model()
        context = multiprocessing.get_context("spawn")
        ready, done = context.Event(), context.Event()
        other = context.Process(target=_hold, args=(str(tmp_path / "store.db"), ready, done))
        other.start()
        try:
            assert ready.wait(60)
            uploading = threading.Thread(target=lambda: server.update(near(server, 0)))
            uploading.start()
            for _ in range(5):
                begun = time.monotonic()
                assert server.http.get("/v1/clients/me", headers={wire.CLIENT: "car-7"}).status_code == 200
                assert time.monotonic() - begun < 10
        finally:
            done.set()
            other.join()
        uploading.join()


def test_reads_have_threads_of_their_own():
    """Those that write may all wait for the lock."""
    engine = SimpleNamespace(store=None, limits=FAST, layout=LAYOUT)

    async def ask():
        uploads, gate = Uploads(engine), threading.Event()
        writing = [asyncio.create_task(uploads.in_thread(gate.wait, 30.0)) for _ in range(2 * NUM_THREADS)]
        await asyncio.sleep(0)
        try:
            return await asyncio.wait_for(uploads.read(lambda: "an answer"), 10.0)
        finally:
            gate.set()
            await asyncio.gather(*writing)

    assert asyncio.run(ask()) == "an answer"


# -- 12: one dtype, one restart, one store


def test_a_reply_that_does_not_fit_is_sent_as_it_is(tmp_path):
    """The upload counts, so the answer must come."""
    with Live(tmp_path) as server:
        server.model()
        huge = server.engine.state.cluster_models + 1e6  # float16 ends at 65504
        server.engine.state = server.engine.state.replace(cluster_models=huge)
        response = server.model("other", params={"dtype": "float16"})
        assert response.status_code == 200
        assert float(decoded(response).max()) > 65504


def test_other_proxy_data_at_a_restart_are_noticed(tmp_path, caplog):
    with Store.open(tmp_path) as store:
        engine = open_engine(tiny_instance(), store)
        before = engine.state
        engine.close()
        again = open_engine(tiny_instance(), store)
        again.close()
        assert same_state(again.state, before)
        assert "changed since" not in caplog.text
        other = tiny_instance()
        other.proxy_sets = [(inputs + 1, targets) for inputs, targets in other.proxy_sets]
        changed = open_engine(other, store)
        changed.close()
        assert "proxy_sets changed since the last start" in caplog.text
        assert not torch.equal(changed.state.cluster_losses, before.cluster_losses)
        assert torch.equal(changed.state.cluster_models, before.cluster_models)


def test_another_network_with_the_same_tensors_is_noticed():
    one, other = tiny_instance(), tiny_instance(model=nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, eps=0.1)))
    assert one.layout == other.layout
    before, now = fingerprints_of(one), fingerprints_of(other)
    assert [name for name in now if now[name] != before[name]] == ["model"]


def test_deleting_a_lock_file_admits_no_second_server(tmp_path):
    with Store.open(tmp_path) as store:
        Toy(store)
        for path in tmp_path.glob("*lock*"):
            path.unlink()
        with pytest.raises(StoreBusy):
            Store.open(tmp_path)
