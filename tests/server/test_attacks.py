"""One token, or none, must not hurt the others. Each test fails without the mend of what was found once."""

import asyncio
import hashlib
import json
import logging
import multiprocessing
import socket
import sqlite3
import ssl
import subprocess
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import httpx
import pytest
import torch
from starlette.responses import PlainTextResponse

from cdfl import wire
from cdfl.server.auth import Access, Tokens
from cdfl.server.backup import backup
from cdfl.server.connections import CONNECTION_BYTES, MOST_WAITING, PIECE, ReplyLimit, Strangers
from cdfl.server.errors import StoreBusy
from cdfl.server.hosts import LOOPBACK, HostCheck
from cdfl.server.limits import LogLimit
from cdfl.server.maintenance import Scrub
from cdfl.server.run import open_engine
from cdfl.server.store import Store
from cdfl.server.verify import verify

from ..certificate import make_certificate
from .live import FAST, Live, decoded, near, tiny_setup, wait_for
from .toy import Toy, same_state

pytestmark = pytest.mark.slow
CALM = replace(FAST, idle_seconds=60.0)


def plain(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


# -- 2: pipelining


def test_pipelined_requests_wait_in_small_numbers(tmp_path):
    """A quarter of a megabyte of requests on a connection that reads nothing."""
    most = 0
    with Live(tmp_path, limits=CALM) as server, ExitStack() as stack:
        flood = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 7000
        for _ in range(5):
            deaf = stack.enter_context(plain(server))
            deaf.settimeout(0.2)
            for begin in range(0, len(flood), PIECE):
                try:
                    deaf.sendall(flood[begin : begin + PIECE])
                except OSError:  # refused: that is the point
                    break
                held = [len(each.pipeline) for each in list(server.server.connections._open)]
                most = max([most, *held])
        assert most <= MOST_WAITING
        assert server.http.get("/healthz").status_code == 200
    assert CONNECTION_BYTES <= 2**20


def test_strangers_take_turns():
    """Requests of connections without a client start at a rate; the event loop is never filled with them."""
    started, now, later = [], [0.0], []

    class Loop:
        def time(self):
            return now[0]

        def call_later(self, wait, function, *arguments):
            later.append((now[0] + wait, function, arguments))

    strangers, loop = Strangers(rate=100.0), Loop()
    for number in range(1000):
        strangers.admit(lambda number=number: started.append(number), loop)
    assert len(started) <= 10  # at most so many in one turn of the loop
    while later and now[0] < 1.0:
        now[0], function, arguments = later.pop(0)
        before = len(started)
        function(*arguments)
        assert len(started) - before <= 10
    assert 90 <= len(started) <= 120
    assert started == sorted(started)


# -- 3: handshakes


def test_silent_handshakes_are_counted_and_the_oldest_given_up(tmp_path):
    certificate = make_certificate(tmp_path)
    with Live(tmp_path / "store", tls=certificate, limits=replace(CALM, handshakes=8)) as server, ExitStack() as stack:
        silent = [stack.enter_context(plain(server)) for _ in range(40)]
        wait_for(lambda: sum(_is_closed(each) for each in silent) >= 32)
        assert len(server.server.connections._handshakes) <= 8
        assert server.http.get("/healthz").status_code == 200  # it shakes hands at once


def test_a_log_has_so_many_lines_a_second():
    now = [0.0]
    limit = LogLimit(rate=5.0, burst=10.0, clock=lambda: now[0])
    record = logging.LogRecord("cdfl.server", logging.WARNING, "", 0, "no", (), None)
    passed = 0
    for _ in range(10_000):
        now[0] += 0.001
        passed += limit.filter(record)
    assert passed <= 10 + 5 * 10
    error = logging.LogRecord("cdfl.server", logging.ERROR, "", 0, "lost", (), None)
    assert limit.filter(error)


def _is_closed(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


# -- 4: replies that nobody reads


class Reader:
    """A connection that counts how often it was aborted."""

    def __init__(self):
        self.transport, self.aborted = self, 0

    def abort(self):
        self.aborted += 1


def test_replies_that_are_not_read_stay_within_their_bytes():
    limit = ReplyLimit(100)
    deaf = [Reader() for _ in range(200)]
    for number, reader in enumerate(deaf):
        limit.begin(reader, f"car-{number}", 30)
        assert limit.bytes <= 100
    assert sum(reader.aborted for reader in deaf) == 197
    assert not any(reader.aborted for reader in deaf[-3:])
    limit.progress(deaf[-3])  # it reads, so another one goes first
    limit.begin(Reader(), "new", 30)
    assert (deaf[-3].aborted, deaf[-2].aborted) == (0, 1)


def test_a_client_has_one_reply_at_a_time():
    limit, first, second = ReplyLimit(10**9), Reader(), Reader()
    limit.begin(first, "car-7", 30)
    limit.begin(second, "car-7", 30)
    assert (first.aborted, second.aborted, limit.bytes) == (1, 0, 30)
    assert not limit.progress(first)


# -- 5: forgotten or revoked while an upload waits


@pytest.mark.parametrize("how", ["forget", "revoke", "expire"])
def test_what_is_withdrawn_while_an_upload_waits_holds(tmp_path, how):
    with Live(tmp_path, is_open=False) as server:
        tokens = Tokens(server.store.database)
        token = tokens.create("car-7", seconds=3600.0)
        headers = {"Authorization": f"Bearer {token}"}
        server.model(headers=headers)
        body, gate, evaluate = near(server, 0), threading.Event(), server.engine._evaluate_uploads
        waits = threading.Event()

        class Slow:
            def of_each(self, vectors):
                waits.set()
                assert gate.wait(20)
                return evaluate.of_each(vectors)

        server.engine._evaluate_uploads = Slow()
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


# -- 9: slow, but steady


@pytest.mark.parametrize(("rate", "is_slow"), [(25_000, False), (2_100, False), (1_000, True), (0, True)])
def test_a_steady_reader_is_not_cut_off(tmp_path, rate, is_slow):
    """Asked once a second for two minutes while a large reply is read at so many bytes a second."""
    with Live(tmp_path, limits=replace(CALM, stall_seconds=30.0, least_rate=2000.0)) as server, plain(server) as peer:
        wait_for(lambda: server.server.connections._open)
        (connection,) = server.server.connections._open
        size, now = 10**7, 0

        class Transport:
            written = size

            def get_write_buffer_size(self):
                return size - rate * now

        real, connection.transport = connection.transport, Transport()
        try:
            found = []
            for now in range(120):
                found.append(connection.reads_too_slowly(float(now)))
        finally:
            connection.transport = real
        assert any(found) is is_slow
        peer.close()


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
    monkeypatch.setattr("cdfl.server.database.WAIT_FOR_WRITERS", 0.5)
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
        engine = open_engine(tiny_setup(), store)
        before = engine.state
        engine.close()
        again = open_engine(tiny_setup(), store)
        again.close()
        assert same_state(again.state, before)
        assert "changed since" not in caplog.text
        other = tiny_setup()
        other.proxy_sets = [(inputs + 1, targets) for inputs, targets in other.proxy_sets]
        changed = open_engine(other, store)
        changed.close()
        assert "proxy_sets changed since the last start" in caplog.text
        assert not torch.equal(changed.state.cluster_losses, before.cluster_losses)
        assert torch.equal(changed.state.cluster_models, before.cluster_models)


def test_deleting_a_lock_file_admits_no_second_server(tmp_path):
    with Store.open(tmp_path) as store:
        Toy(store)
        for path in tmp_path.glob("*lock*"):
            path.unlink()
        with pytest.raises(StoreBusy):
            Store.open(tmp_path)


# -- 13 and identity


@pytest.mark.parametrize("token", ["two words", "tab\tinside", " ", "x" * 600, "naïve"])
def test_an_operator_token_that_no_request_could_send_is_refused(tmp_path, token):
    with Store.open(tmp_path) as store, pytest.raises(ValueError, match="CDFL_OPERATOR_TOKEN"):
        Access(Tokens(store.database), operator_token=token)


def test_white_space_around_an_operator_token_does_not_count(tmp_path):
    with Store.open(tmp_path) as store:
        access = Access(Tokens(store.database), operator_token=" secret\n")  # noqa: S106
        assert access.is_operator({"Authorization": "Bearer secret"})


def test_tokens_expire(tmp_path, monkeypatch):
    with Store.open(tmp_path) as store:
        tokens = Tokens(store.database)
        token, for_ever = tokens.create("car-7", seconds=60.0), tokens.create("car-8")
        assert tokens.claim(token).client_id == "car-7"
        later = time.time() + 61
        monkeypatch.setattr("cdfl.server.auth.time.time", lambda: later)
        assert tokens.claim(token) is None
        assert tokens.claim(for_ever).client_id == "car-8"


def test_failed_authentications_are_logged_with_their_address_and_counted(tmp_path, caplog):
    with Live(tmp_path, is_open=False, operator_token="boss") as server:  # noqa: S106
        for _ in range(3):
            assert server.model(headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert caplog.text.count("authentication failed from 127.0.0.1") == 3
        assert "wrong" not in caplog.text
        page = server.http.get("/metrics", headers={"Authorization": "Bearer boss"}).text
        assert "cdfl_auth_failures_total 3.0" in page
        assert server.http.get("/metrics").status_code == 401


def test_rejected_uploads_age_nobody(tmp_path):
    """One fast token: its uploads beyond its share are rejected, and the epoch stays."""
    with Live(tmp_path) as server:
        for name in ("fast", *(f"car-{number}" for number in range(8))):
            server.model(name)
        for number in range(8):
            server.update(near(server, number % 3, seed=number), f"car-{number}", 0, key="key")
        before = server.engine.state.epoch
        epoch, outcomes = 0, []
        for number in range(30):
            response = server.update(near(server, 0, seed=number), "fast", epoch, key=f"key-{number}")
            head = wire.ReplyHead.from_headers(response.headers)
            epoch = head.epoch
            outcomes.append(head.outcome)
        assert "rejected" in outcomes
        assert server.engine.state.epoch == before + outcomes.count("applied") < before + 30


def test_a_redirect_never_repeats_the_host(tmp_path):
    with Live(tmp_path) as server:
        for path in ("/v1/model/", "/docs/", "/metrics/", "//evil.example"):
            response = server.http.get(path, headers={"Host": "evil.example"}, follow_redirects=False)
            assert not response.is_redirect
            assert "evil.example" not in response.headers.get("location", "")


def test_a_local_server_answers_to_its_own_names_only(tmp_path):
    async def app(scope, receive, send):
        await PlainTextResponse("fine")(scope, receive, send)

    checked = httpx.ASGITransport(HostCheck(app, LOOPBACK))

    async def status(host):
        async with httpx.AsyncClient(transport=checked, base_url="http://localhost") as client:
            return (await client.get("/", headers={"Host": host})).status_code

    found = [asyncio.run(status(host)) for host in ("localhost:8000", "[::1]:8000", "127.0.0.1", "rebound.example")]
    assert found == [200, 200, 200, 421]


# -- TLS


def make_client_certificate(folder, name):
    """An authority, and a client's certificate that it signed."""

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)  # noqa: S603, S607

    new, of_authority = ["-newkey", "rsa:2048", "-nodes"], ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"]
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    openssl("req", *new, "-keyout", "client.key", "-out", "client.csr", "-subj", f"/CN={name}")
    openssl("x509", "-req", "-in", "client.csr", *of_authority, "-out", "client.pem")
    return folder / "ca.pem", folder / "client.pem", folder / "client.key"


def test_client_certificates(tmp_path):
    authority, certificate, key = make_client_certificate(tmp_path, "car-7")
    with Live(tmp_path / "store", tls=(*make_certificate(tmp_path), authority), is_open=False) as server:
        mine, other = (Tokens(server.store.database).create(name) for name in ("car-7", "car-8"))
        with pytest.raises(httpx.TransportError):
            server.http.get("/v1/model", headers={"Authorization": f"Bearer {mine}"})
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(certificate, key)
        with httpx.Client(base_url=server.url, verify=context) as known:
            assert known.get("/v1/model", headers={"Authorization": f"Bearer {mine}"}).status_code == 200
            assert known.get("/v1/model", headers={"Authorization": f"Bearer {other}"}).status_code == 403


def test_a_new_certificate_is_served_without_a_restart(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    certificate, key = make_certificate(first)
    with Live(tmp_path / "store", tls=(certificate, key)) as server:

        def served():
            return ssl.get_server_certificate(("127.0.0.1", server.port))

        assert served() == certificate.read_text()
        for old, new in zip((certificate, key), make_certificate(second), strict=True):
            old.write_bytes(new.read_bytes())
        assert served() == certificate.read_text()
        certificate.write_text("not a certificate")
        assert served() == (second / certificate.name).read_text()  # the last good one


# -- backup


def test_a_backup_of_a_running_server_is_a_store(tmp_path):
    with Live(tmp_path / "store") as server:
        server.model()
        for number in range(3):
            epoch = server.engine.state.epoch
            assert server.update(near(server, 0, number), base_epoch=epoch, key=f"key-{number}").status_code == 200
        with Store.open(tmp_path / "store", own=False) as reader:
            made = backup(reader, tmp_path / "copy")
        assert made.epoch == server.engine.state.epoch
        server.update(near(server, 0, 9), base_epoch=server.engine.state.epoch, key="later")
        with Store.open(tmp_path / "copy") as copy:
            assert verify(copy).findings == []
            assert copy.recover().state.epoch == made.epoch
            assert copy.client("car-7") is not None
    with pytest.raises(ValueError, match="is not an empty folder"), Store.open(tmp_path / "store", own=False) as reader:
        backup(reader, tmp_path / "copy")
