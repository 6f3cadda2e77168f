"""Strangers: whatever they send, it is refused with one sentence, changes nothing, and keeps nobody out."""

import asyncio
import json
import pickle
import resource
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import httpx
import pytest
import torch
from starlette.requests import Request
from torch import nn
from torch.nn.functional import mse_loss

from cdfl import wire
from cdfl.core import Settings
from cdfl.server.byte_limits import ByteLimit
from cdfl.server.connection_limit import MOST_HEAD, MOST_WAITING
from cdfl.server.limits import Limits
from cdfl.server.uploads import Body

from .live import FAST, LAYOUT, Live, near, of_server, tiny_instance, wait_for
from .toy import same_state, stored_blobs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Live(tmp_path_factory.mktemp("store")) as server:
        server.model()
        yield server


@pytest.fixture
def unharmed(server):
    """After the test everything is as before: state, journal, blobs, queue."""
    before, blobs = server.engine.state, stored_blobs(server.store)
    yield server
    assert same_state(server.engine.state, before)
    assert server.store.entries(0) == []
    assert stored_blobs(server.store) == blobs
    assert list((server.store.blobs.folder / "spool").iterdir()) == []
    assert server.engine._depth == 0
    assert server.http.get("/readyz").status_code == 200


def header_and_data(body: bytes) -> tuple[dict, bytes]:
    (length,) = struct.unpack("<Q", body[:8])
    return json.loads(body[8 : 8 + length]), body[8 + length :]


def with_header(text: str | dict, data: bytes, length: int | None = None) -> bytes:
    raw = (text if isinstance(text, str) else json.dumps(text)).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def corpus() -> dict[str, tuple[int, bytes]]:
    """Name, status, body."""
    good = wire.encode_model(torch.linspace(-1, 1, LAYOUT.size), LAYOUT)
    header, data = header_and_data(good)
    name = LAYOUT.names[0]
    twice = json.dumps(header)[:-1] + f', "{name}": {json.dumps(header[name])}}}'
    shaped = header | {name: header[name] | {"shape": [4]}}
    renamed = {("other" if key == name else key): value for key, value in header.items()}
    double = header | {name: header[name] | {"dtype": "F64"}}
    beyond = header | {name: header[name] | {"data_offsets": [10**12, 10**12 + 16]}}
    surrogate = header | {name: header[name] | {"shape": "\ud800"}}
    bodies = {
        "characters that UTF-8 has not": (422, with_header(surrogate, data)),
        "empty": (400, b""),
        "truncated": (400, good[:-1]),
        "cut in the header": (400, good[:20]),
        "too long": (400, good + b"\0"),
        "random bytes": (400, b"\x07" * 500),
        "a pickle": (400, pickle.dumps({"weight": [1.0]})),
        "header lies about its length": (400, with_header(header, data, length=2**63)),
        "header lies about its length, a little": (400, with_header(header, data, length=60_000)),
        "tensors beyond the body": (400, with_header(beyond, data)),
        "duplicate names": (400, with_header(twice, data)),
        "deep JSON": (400, with_header("[" * 50_000, data)),
        "wrong shape": (422, with_header(shaped, data)),
        "wrong name": (422, with_header(renamed, data)),
        "wrong dtype": (422, with_header(double, data)),
        "no tensors": (422, with_header({}, b"")),
        "oversized": (413, good + bytes(2**20 + 1)),
    }
    for value in ("nan", "inf", "-inf"):
        vector = torch.zeros(LAYOUT.size)
        vector[3] = float(value)
        bodies[value] = (422, good[: -4 * LAYOUT.size] + vector.numpy().tobytes())
    negative_variance = torch.linspace(-1, 1, LAYOUT.size)
    negative_variance[-1] = -5.0
    bodies["no finite loss"] = (422, wire.encode_model(negative_variance, LAYOUT))
    bodies["absurd size"] = (422, wire.encode_model(torch.full((LAYOUT.size,), 1e38), LAYOUT))
    return bodies


@pytest.mark.parametrize("name", corpus())
def test_bodies(unharmed, name):
    status, body = corpus()[name]
    assert unharmed.refused(unharmed.update(body))[0] == status


@pytest.mark.parametrize("name", corpus())
def test_the_same_packed(unharmed, name):
    status, body = corpus()[name]
    response = unharmed.update(wire.compress(body), headers={"Content-Encoding": "zstd"})
    assert unharmed.refused(response)[0] == status


@pytest.mark.parametrize(
    ("status", "options"),
    [
        (400, {"base_epoch": -1}),
        (400, {"base_epoch": "1e3"}),
        (400, {"base_epoch": 10**30}),
        (409, {"base_epoch": 1}),
        (409, {"base_epoch": 10**17}),
        (409, {"client_id": "never-seen"}),
        (400, {"key": ""}),
        (400, {"key": "x" * 129}),
        (400, {"key": "two words"}),
        (400, {"client_id": "x" * 65}),
        (400, {"client_id": "../../etc"}),
        (400, {"params": {"dtype": "float64"}}),
        (415, {"headers": {"Content-Type": "application/x-python-pickle"}}),
        (415, {"headers": {"Content-Encoding": "gzip"}}),
        (400, {"headers": {"Content-Encoding": "zstd"}}),  # which it is not
        (400, {"client_id": ""}),
    ],
)
def test_headers(unharmed, status, options):
    response = unharmed.update(wire.encode_model(torch.zeros(LAYOUT.size), LAYOUT), **options)
    assert unharmed.refused(response)[0] == status


@pytest.mark.parametrize("missing", [wire.BASE_EPOCH, wire.KEY, "Content-Type", wire.CLIENT])
def test_missing_headers(unharmed, missing):
    headers = {wire.BASE_EPOCH: "0", wire.KEY: "k", wire.CLIENT: "car-7", "Content-Type": wire.CONTENT_TYPE}
    del headers[missing]
    response = unharmed.http.post("/v1/updates", content=b"x", headers=headers)
    assert unharmed.refused(response)[0] == {"Content-Type": 415, wire.CLIENT: 401}.get(missing, 400)


def test_a_bomb(unharmed):
    """Two gigabytes of zeros in a few kilobytes: refused before they are anywhere."""
    packed = wire.compress(bytes(2 * 10**9))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    response = unharmed.update(packed, headers={"Content-Encoding": "zstd"})
    assert unharmed.refused(response)[0] == 413
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_a_chunked_body_that_is_too_long(unharmed):
    def endless():
        for _ in range(100):
            yield bytes(2**16)

    assert unharmed.refused(unharmed.update(endless()))[0] == 413


def test_one_that_does_not_end_at_all(tmp_path):
    with Live(tmp_path, limits=Limits(idle_seconds=0.5)) as server, Raw(server) as endless:
        server.model()
        endless.begin(None, more="Transfer-Encoding: chunked\r\n")

        def send_for_ever():
            while True:
                endless.socket.sendall(b"10000\r\n" + bytes(2**16) + b"\r\n")

        with pytest.raises(ConnectionError):
            send_for_ever()
        assert server.engine.state.epoch == 0


class Raw:
    """A connection that says what it likes."""

    def __init__(self, server: Live) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=10)

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def begin(self, length: int | None, client_id: str = "car-7", key: str = "raw", more: str = "") -> "Raw":
        declared = "" if length is None else f"Content-Length: {length}\r\n"
        self.socket.sendall(
            f"POST /v1/updates HTTP/1.1\r\nHost: x\r\nCDFL-Client: {client_id}\r\nCDFL-Base-Epoch: 0\r\n"
            f"Idempotency-Key: {key}\r\nContent-Type: {wire.CONTENT_TYPE}\r\n{declared}{more}\r\n".encode()
        )
        return self

    def answer(self) -> str:
        """The head of the first answer, and its body where that is short."""
        said = ""
        while "\r\n\r\n" not in said or ("json" in said and not said.endswith("}")):
            piece = self.socket.recv(2**16).decode("latin-1")
            if not piece:
                break
            said += piece
        return said

    def is_closed(self) -> bool:
        """Has the other end gone?"""
        self.socket.setblocking(False)
        try:
            return self.socket.recv(1) == b""
        except BlockingIOError:
            return False
        except ConnectionError:
            return True


def test_no_length(unharmed):
    with Raw(unharmed) as raw:
        assert " 411 " in raw.begin(None).answer()


@pytest.mark.parametrize("line", ["Content-Length: x", "Content-Length: -1", "Content-Length: 5\r\nContent-Length: 6"])
def test_lengths_that_are_none(unharmed, line):
    with Raw(unharmed) as raw:
        assert " 400 " in raw.begin(None, more=line + "\r\n").answer()


def test_a_connection_that_is_cut_in_mid_upload(unharmed):
    with Raw(unharmed) as raw:
        raw.begin(400)
        raw.socket.sendall(b"x" * 100)
        wait_for(lambda: list((unharmed.store.blobs.folder / "spool").iterdir()))
    wait_for(lambda: not list((unharmed.store.blobs.folder / "spool").iterdir()))


def test_less_than_declared_then_silence(tmp_path):
    with Live(tmp_path, limits=Limits(stall_seconds=0.3)) as server, Raw(server) as raw:
        server.model()
        raw.begin(400)
        raw.socket.sendall(b"x" * 100)
        said = raw.answer()
        assert " 408 " in said
        assert "too slowly, 100 bytes so far" in said


def test_a_byte_now_and_then_delays_nobody_and_ends(tmp_path):
    with Live(tmp_path, limits=Limits(stall_seconds=1.0, least_rate=2000.0)) as server, Raw(server) as slow:
        for name in ("slow", "quick"):
            server.model(name)
        slow.begin(400, "slow")
        begun = time.monotonic()
        slow.socket.sendall(b"x")
        assert server.update(near(server, 0), "quick").headers[wire.OUTCOME] == "applied"
        quick = time.monotonic() - begun
        slow.socket.settimeout(0.05)
        said = b""
        while not said:
            assert time.monotonic() - begun < 10
            slow.socket.sendall(b"x")  # it never stalls
            with suppress(TimeoutError):
                said = slow.socket.recv(2**16)
        assert b" 408 " in said
        assert quick < 1.0 < time.monotonic() - begun


def test_a_new_attempt_takes_the_place_of_one_that_hangs(tmp_path):
    """A device lost its network in mid-upload; it must not wait for the server to notice."""
    with Live(tmp_path) as fresh, Raw(fresh) as hanging:
        fresh.model()
        hanging.begin(400, key="key-1")
        wait_for(lambda: list((fresh.store.blobs.folder / "spool").iterdir()))
        assert fresh.update(near(fresh, 0), key="key-1").headers[wire.OUTCOME] == "applied"
        assert " 409 " in hanging.answer()
        assert fresh.engine.state.epoch == 1


def test_the_same_upload_many_times_at_once_counts_once(tmp_path):
    """A proxy that sends twice, a device that asks again too soon: all but the newest body give way."""
    with Live(tmp_path) as fresh, ThreadPoolExecutor(8) as devices:
        fresh.model()
        body = near(fresh, 0)
        for turn in range(10):
            answers = list(devices.map(lambda _, turn=turn: fresh.update(body, key=f"key-{turn}"), range(8)))
            assert {answer.status_code for answer in answers} <= {200, 409}
            assert all(answer.status_code == 200 or answer.headers["Retry-After"] for answer in answers)
            assert len({answer.content for answer in answers if answer.status_code == 200}) == 1
        assert fresh.engine.state.epoch == 10


def test_a_body_that_was_given_up_is_not_taken_even_if_all_of_it_is_there(tmp_path):
    """Nothing is waited for, so no time runs out."""

    async def receive():
        return {"type": "http.request", "body": b"all of it", "more_body": False}

    body = Body(Request({"type": "http", "method": "POST", "headers": []}, receive), Limits(), ByteLimit(1000))
    body.give_up(wire.ConflictError("a newer one has come"))
    with pytest.raises(wire.ConflictError, match="a newer one"):
        asyncio.run(body.spool(tmp_path / "spool", 100))


class TestConnections:
    def test_thousands_of_idle_ones_keep_nobody_out(self, tmp_path):
        with Live(tmp_path, limits=Limits(connections=300)) as server, ExitStack() as idle:
            server.model()
            for _ in range(2000):
                last = idle.enter_context(Raw(server)).socket.getsockname()
            # Until then the connection of `model` may be closed just as it is used again.
            wait_for(lambda: last in [connection.client for connection in list(server.server.connections)])
            assert server.update(near(server, 0)).headers[wire.OUTCOME] == "applied"
            with httpx.Client(base_url=server.url) as newcomer:
                assert newcomer.get("/healthz").status_code == 200
            wait_for(lambda: len(list(server.server.connections)) <= 300)

    def test_one_that_says_nothing_and_one_that_never_ends_its_header(self, tmp_path):
        with Live(tmp_path, limits=Limits(idle_seconds=0.5)) as server, Raw(server) as silent, Raw(server) as trickling:
            begun = time.monotonic()
            trickling.socket.sendall(b"GET /healthz HTTP/1.1\r\n")
            closed = False
            while not closed:
                assert time.monotonic() - begun < 10
                time.sleep(0.05)
                try:
                    trickling.socket.sendall(b"X-A: b\r\n")
                except OSError:
                    closed = True
                closed = closed or trickling.is_closed()
            assert time.monotonic() - begun > 0.4
            wait_for(silent.is_closed)

    def test_a_busy_one_is_not_closed_for_a_new_one(self, tmp_path):
        with Live(tmp_path, limits=Limits(connections=1, stall_seconds=5)) as server:
            server.model()
            server.http.close()
            wait_for(lambda: not list(server.server.connections))
            body = near(server, 0)
            with Raw(server) as busy:
                busy.begin(len(body))
                wait_for(lambda: [each for each in server.server.connections if each.is_known])
                with Raw(server) as other:
                    wait_for(other.is_closed)
                busy.socket.sendall(body)
                assert " 200 " in busy.answer()

    def test_a_client_that_does_not_read_its_answer(self, tmp_path):
        """Sixteen megabytes do not fit into the buffers of a socket."""
        sample = torch.zeros(1, 2000), torch.ones(1, 2000)
        large = tiny_instance(
            model=nn.Linear(2000, 2000),
            loss=mse_loss,
            clusters=of_server([sample], [sample], None),
            settings=Settings(shared_epochs=0, separate_epochs=0),
        )
        with Live(tmp_path, large, limits=Limits(stall_seconds=0.5)) as server, Raw(server) as deaf:
            deaf.socket.sendall(b"GET /v1/model HTTP/1.1\r\nHost: x\r\nCDFL-Client: deaf\r\n\r\n")
            wait_for(lambda: server.server.connections.replies.bytes)
            wait_for(lambda: not server.server.connections.replies.bytes)
            assert server.model("other").status_code == 200

    @pytest.mark.parametrize(
        "words",
        [
            b"\x16\x03\x01 hello\r\n\r\n",
            b"GET /healthz HTTP/9.9\r\n\r\n",
            b"GET h\xe9 HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"POST /v1/updates HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        ],
    )
    def test_words_that_are_not_http(self, server, words):
        with Raw(server) as raw:
            raw.socket.sendall(words)
            assert " 400 " in raw.answer()
            wait_for(raw.is_closed)

    @pytest.mark.parametrize("kind", ["one long value", "many short ones", "a long address", "a trailer"])
    def test_a_header_that_grows_and_grows(self, unharmed, kind):
        beginnings = {
            "one long value": b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: ",
            "many short ones": b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
            "a long address": b"GET /healthz?",
            "a trailer": b"POST /v1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Long: ",
        }
        piece = b"X-Short: 1\r\n" if kind == "many short ones" else b"x" * 12
        with Raw(unharmed) as raw:
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_HEAD)  # by itself it grows to megabytes
            raw.socket.sendall(beginnings[kind])
            sent = 0
            with suppress(ConnectionError):
                while sent < 100 * MOST_HEAD:
                    raw.socket.sendall(100 * piece)
                    sent += 100 * len(piece)
            assert sent < 100 * MOST_HEAD  # the buffers of the sockets take some

    def test_a_header_that_is_long(self, unharmed):
        kept = {"X-Long": "x" * (MOST_HEAD - 1000)}
        assert unharmed.http.get("/healthz", headers=kept).status_code == 200


class TestOrdinaryThings:
    """What any client may do, and few do."""

    def test_a_body_in_chunks_with_a_trailer(self, tmp_path):
        with Live(tmp_path) as server, Raw(server) as raw:
            server.model()
            body = near(server, 0)
            chunks = [body[begin : begin + 100] for begin in range(0, len(body), 100)]
            raw.begin(None, more="Transfer-Encoding: chunked\r\n")
            for chunk in chunks:
                raw.socket.sendall(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            raw.socket.sendall(b"0\r\nX-Checksum: 1\r\n\r\n")
            assert " 200 " in raw.answer()

    def test_asking_before_sending(self, tmp_path):
        with Live(tmp_path) as server, Raw(server) as raw:
            server.model()
            body = near(server, 0)
            raw.begin(len(body), more="Expect: 100-continue\r\n")
            assert raw.answer() == "HTTP/1.1 100 Continue\r\n\r\n"
            raw.socket.sendall(body)
            assert " 200 " in raw.answer()
            assert not raw.is_closed()

    def test_asking_in_vain(self, unharmed):
        """The body may come or not: what comes next on this connection could not be told from it."""
        with Raw(unharmed) as raw:
            raw.begin(2**40, more="Expect: 100-continue\r\n")
            assert " 413 " in raw.answer()
            wait_for(raw.is_closed)

    def test_a_connection_is_used_again_after_a_refusal(self, unharmed):
        with Raw(unharmed) as raw:
            for _ in range(3):
                raw.begin(3, client_id="never-seen")
                raw.socket.sendall(b"abc")
                assert " 409 " in raw.answer()

    def test_another_protocol_is_not_taken_up(self, unharmed):
        """As curl asks for HTTP/2."""
        ask = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
        with Raw(unharmed) as raw:
            for _ in range(2):
                raw.socket.sendall(ask)
                assert " 200 " in raw.answer()

    def test_requests_one_after_the_other_without_waiting(self, unharmed):
        with Raw(unharmed) as raw:
            raw.socket.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * MOST_WAITING)
            said = ""
            while said.count(" 200 ") < MOST_WAITING:
                heard = raw.socket.recv(2**16).decode()
                assert heard, f"the server hung up after {said}"
                said += heard
            assert said.count("alive") in (MOST_WAITING - 1, MOST_WAITING)  # the last body may be on its way


def test_a_disk_that_cannot_be_written(unharmed, monkeypatch, tmp_path):
    monkeypatch.setattr(unharmed.store, "spool", lambda: tmp_path / "gone" / "spool")
    response = unharmed.update(near(unharmed, 0))
    assert unharmed.refused(response)[0] == 503
    assert response.headers["Retry-After"] == "2"


def test_a_full_queue(tmp_path):
    with Live(tmp_path, limits=FAST) as server:
        server.model()
        server.engine._depth += server.engine.capacity
        response = server.update(near(server, 0))
        assert server.refused(response)[0] == 503
        assert response.headers["Retry-After"] == "2"
        server.engine._depth -= server.engine.capacity
        assert server.update(near(server, 0)).status_code == 200
