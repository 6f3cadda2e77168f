"""What peers can take of a server: turns of its event loop, handshakes, connections, memory, time."""

import logging
import socket
import ssl
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import httpx
import pytest

from cdfl import wire
from cdfl.server.auth import Tokens
from cdfl.server.byte_limits import ByteLimit, ReplyLimit
from cdfl.server.connection_limit import CONNECTION_BYTES, MOST_WAITING, PIECE, ConnectionLimit
from cdfl.server.limits import Limits
from cdfl.server.metrics import Metrics
from cdfl.server.rate_limits import LogLimit, Turns

from ..certificate import make_certificate
from .live import FAST, Live, near, wait_for

CALM = replace(FAST, idle_seconds=60.0)
HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def plain(server, address="127.0.0.1"):
    return socket.create_connection(("127.0.0.1", server.port), timeout=10, source_address=(address, 0))


def is_closed(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@contextmanager
def client_at(server, address):
    """A client whose requests come from this address."""
    with httpx.Client(base_url=server.url, transport=httpx.HTTPTransport(local_address=address)) as client:
        yield client


class Clock:
    """An event loop without events: time passes when it is told."""

    def __init__(self):
        self.now, self.later = 0.0, []

    def time(self):
        return self.now

    def call_later(self, wait, function, *arguments):
        self.later.append((self.now + wait, function, arguments))

    def turn(self):
        """Call what is next."""
        self.now, function, arguments = self.later.pop(0)
        function(*arguments)


# -- 2: requests of strangers


@pytest.mark.slow
def test_pipelined_requests_wait_in_small_numbers(tmp_path):
    """A quarter of a megabyte of requests on a connection that reads nothing."""
    most = held = 0
    with Live(tmp_path, limits=CALM) as server, ExitStack() as stack:
        for _ in range(5):
            deaf = stack.enter_context(plain(server))
            deaf.settimeout(0.2)
            flood = HEALTHZ * 7000
            for begin in range(0, len(flood), PIECE):
                try:
                    deaf.sendall(flood[begin : begin + PIECE])
                except OSError:  # refused: that is the point
                    break
                most = max([most, *(len(each.pipeline) for each in server.server.connections)])
                held = max([held, *(each.held for each in server.server.connections)])
        assert most <= MOST_WAITING
        assert held <= CONNECTION_BYTES <= 2**20
        assert server.http.get("/healthz").status_code == 200


def test_requests_start_at_a_rate():
    started, loop, turns = [], Clock(), Turns(rate=100.0)
    for number in range(1000):
        turns.ask("peer", number, lambda number=number: started.append(number), loop)
    assert len(started) <= 10  # at most so many in one turn of the loop
    while loop.now < 1.0:
        before = len(started)
        loop.turn()
        assert len(started) - before <= 10
    assert 90 <= len(started) <= 120
    assert started == sorted(started)


def test_addresses_take_turns():
    started, loop, turns = [], Clock(), Turns(rate=100.0)
    for number in range(1000):
        turns.ask("many", number, lambda: started.append("many"), loop)
    turns.ask("one", 0, lambda: started.append("one"), loop)
    before = len(started)
    while "one" not in started:
        loop.turn()
    assert len(started) - before <= 3


def test_who_has_gone_takes_no_turn():
    started, loop, turns = [], Clock(), Turns(rate=10.0)
    for number in range(1000):
        turns.ask("peer", number, lambda: started.append("gone"), loop)
    for number in range(1000):
        turns.leave("peer", number)
    assert len(turns) == 0
    turns.ask("peer", "last", lambda: started.append("here"), loop)
    loop.turn()
    assert started[-1] == "here"


@pytest.mark.slow
def test_requests_of_closed_connections_are_forgotten(tmp_path):
    with Live(tmp_path, limits=replace(CALM, strangers_per_second=5.0)) as server:
        strangers = server.server.connections.strangers
        for _ in range(100):
            with plain(server) as gone:
                gone.sendall(HEALTHZ)
        wait_for(lambda: len(strangers) <= 1)


@pytest.mark.slow
def test_one_good_token_does_not_open_the_connection_for_everything(tmp_path):
    """After a client's request the next one starts at once; what is no client's, or above its rate, takes its turn."""
    limits = replace(CALM, requests_per_second=0.001, burst=2)
    with Live(tmp_path, limits=limits, is_open=False) as server:
        token = Tokens(server.store.database).create("car-7")
        asked, strangers = [], server.server.connections.strangers
        ask = strangers.ask
        strangers.ask = lambda *arguments: (asked.append(1), ask(*arguments))
        mine = {"Authorization": f"Bearer {token}"}
        found = []
        for headers in (mine, mine, {}, mine, mine, {"Authorization": "Bearer wrong"}):
            before = len(asked)
            status = server.http.get("/v1/clients/me", headers=headers).status_code
            found.append((status, len(asked) - before))
        assert found == [(200, 1), (200, 0), (401, 0), (429, 1), (429, 1), (401, 1)]


@pytest.mark.slow
def test_a_peer_that_takes_all_connections_closes_none_of_others(tmp_path):
    """All places are held by requests that wait, so none is idle; newcomers and clients of other addresses get in."""
    limits = replace(CALM, connections=20, strangers_per_second=20.0)
    with Live(tmp_path, limits=limits) as server, ExitStack() as stack, client_at(server, "127.0.0.2") as calm:
        assert calm.get("/healthz").status_code == 200
        (kept,) = server.server.connections
        for _ in range(60):
            stack.enter_context(plain(server, "127.0.0.3")).sendall(HEALTHZ * MOST_WAITING)
        wait_for(lambda: len(list(server.server.connections)) == 20)
        assert kept in list(server.server.connections)
        for address in ("127.0.0.2", "127.0.0.4"):
            with client_at(server, address) as newcomer:
                assert newcomer.get("/healthz").status_code == 200
        assert calm.get("/healthz").status_code == 200
        assert kept in list(server.server.connections)


def test_who_must_go(monkeypatch):
    """Of the peer with most connections: idle for a second, then a stranger's, then another one that waits."""
    limit, loop = ConnectionLimit(Limits(connections=3), Metrics()), Clock()
    monkeypatch.setattr("cdfl.server.connection_limit.asyncio.get_running_loop", lambda: loop)

    class Peer:
        accepted, is_known, is_there = None, False, True

        def __init__(self, address):
            self.loop, self.address = loop, address
            limit.enter(self)

        def give_up(self):
            limit.leave(self)
            self.is_there = False

    other, first, second = Peer("other"), Peer("peer"), Peer("peer")
    loop.now = 2.0
    third = Peer("peer")  # `first` has been idle longest
    assert [each.is_there for each in (other, first, second, third)] == [True, False, True, True]
    limit.works(second)
    limit.works(third)
    second.is_known = True
    fourth = Peer("peer")  # none is idle but the new one
    assert [each.is_there for each in (other, second, third, fourth)] == [True, True, False, True]
    limit.works(fourth)
    fourth.is_known = True
    assert not Peer("peer").is_there  # all are clients'
    assert len(limit) == 3


@pytest.mark.slow
def test_a_stream_with_a_request_behind_it_ends_when_its_peer_has_gone(tmp_path):
    with Live(tmp_path, limits=CALM) as server:
        with plain(server) as peer:
            peer.sendall(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n" + HEALTHZ)
            wait_for(lambda: server.server.notifier.num_streams == 1)
            wait_for(lambda: any(each.pipeline for each in server.server.connections))
        wait_for(lambda: server.server.notifier.num_streams == 0)


# -- 3: handshakes, and lines of the log


@pytest.mark.slow
def test_silent_handshakes_are_counted_and_the_oldest_given_up(tmp_path):
    certificate = make_certificate(tmp_path)
    with Live(tmp_path / "store", tls=certificate, limits=replace(CALM, handshakes=8)) as server, ExitStack() as stack:
        silent = [stack.enter_context(plain(server)) for _ in range(40)]
        wait_for(lambda: sum(is_closed(each) for each in silent) >= 32)
        assert len(server.server.connections) <= 8
        assert server.http.get("/healthz").status_code == 200  # it shakes hands at once


def unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@pytest.mark.slow
def test_handshakes_start_at_a_rate(tmp_path):
    certificate = make_certificate(tmp_path)
    limits = replace(CALM, handshakes_per_second=0.1)
    with Live(tmp_path / "store", tls=certificate, limits=limits) as server, ExitStack() as stack:
        waiting = server.server.connections.handshakes
        *_, last = [stack.enter_context(plain(server)) for _ in range(5)]
        wait_for(lambda: len(waiting) == 4)
        last.settimeout(0.5)
        with pytest.raises(TimeoutError):  # it is not answered before its turn
            unverified().wrap_socket(last)


@pytest.mark.slow
def test_a_socket_without_a_connection_is_closed_and_counted_no_more(tmp_path, caplog):
    """As when the certificate cannot be read just then."""
    with Live(tmp_path / "store", tls=make_certificate(tmp_path), limits=CALM) as server:
        listener = server.server.servers[0]
        tls, listener._tls = listener._tls, lambda: 1 / 0
        with plain(server) as peer:
            wait_for(lambda: is_closed(peer))
        listener._tls = tls
        assert "could not be set up" in caplog.text
        wait_for(lambda: len(server.server.connections) == 0)
        assert server.http.get("/healthz").status_code == 200


def test_a_log_has_so_many_lines_a_second():
    now = [0.0]
    limit = LogLimit(rate=5.0, burst=10.0, clock=lambda: now[0])
    flood = logging.LogRecord("cdfl.server", logging.WARNING, "app.py", 1, "no", (), None)
    passed = 0
    for _ in range(10_000):
        now[0] += 0.001
        passed += limit.filter(flood)
    assert passed <= 10 + 5 * 10
    assert limit.filter(logging.LogRecord("cdfl.server", logging.WARNING, "maintenance.py", 1, "lost", (), None))


# -- 4: replies that nobody reads, uploads that never end


class Reader:
    """A connection that counts how often it was closed."""

    def __init__(self):
        self.closed = 0

    def give_up(self):
        self.closed += 1


def test_replies_that_are_not_read_stay_within_their_bytes():
    limit = ReplyLimit(100)
    deaf = [Reader() for _ in range(200)]
    for number, reader in enumerate(deaf):
        limit.begin(reader, f"car-{number}", 30)
        assert limit.bytes <= 100
    assert sum(reader.closed for reader in deaf) == 197
    assert not any(reader.closed for reader in deaf[-3:])
    limit.progress(deaf[-3])  # it reads, so another one goes first
    limit.begin(Reader(), "new", 30)
    assert (deaf[-3].closed, deaf[-2].closed) == (0, 1)


def test_a_client_has_one_reply_at_a_time():
    limit, first, second = ReplyLimit(10**9), Reader(), Reader()
    limit.begin(first, "car-7", 30)
    limit.begin(second, "car-7", 30)
    assert (first.closed, second.closed, limit.bytes) == (1, 0, 30)
    assert not limit.progress(first)
    limit.end(first, "car-7")  # what was given up ends later, and ends no other
    assert limit.progress(second)
    limit.end(second, "car-7")
    assert limit.bytes == 0


def test_uploads_on_their_way_stay_within_their_bytes():
    limit, given_up = ByteLimit[str](100), []
    for _ in range(10):
        for name in ("slow", "steady"):
            limit.add(name, 4, lambda name=name: given_up.append(name))
    limit.add("new", 40, lambda: given_up.append("new"))
    assert (given_up, limit.bytes) == (["slow"], 80)


@pytest.mark.slow
def test_an_upload_that_hangs_makes_room(tmp_path):
    with Live(tmp_path, limits=replace(CALM, arriving_bytes=2000)) as server, plain(server) as hanging:
        server.model("slow")
        server.model("quick")
        hanging.sendall(
            f"POST /v1/updates HTTP/1.1\r\nHost: x\r\nCDFL-Client: slow\r\nCDFL-Base-Epoch: 0\r\nIdempotency-Key: k\r\n"
            f"Content-Type: {wire.CONTENT_TYPE}\r\nContent-Length: 100000\r\n\r\n".encode()
            + bytes(1900)
        )
        places = lambda: list((server.store.blobs.folder / "spool").iterdir())  # noqa: E731
        wait_for(places)
        assert server.update(near(server, 0), "quick").status_code == 200
        assert b" 503 " in hanging.recv(2**16)
        wait_for(lambda: not places())


# -- 9: slow, but steady


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "is_slow"), [(25_000, False), (2_100, False), (1_000, True), (0, True)])
def test_a_steady_reader_is_not_cut_off(tmp_path, rate, is_slow):
    """Swept once a second for two minutes while its answer is read at so many bytes a second."""
    limits = replace(CALM, stall_seconds=30.0, least_rate=2000.0, idle_seconds=30.0)
    with Live(tmp_path, limits=limits) as server, plain(server) as peer:
        wait_for(lambda: list(server.server.connections))
        (connection,) = server.server.connections
        limit, loop = connection.limit, Clock()
        size, began = 100_000, connection.loop.time()

        class Transport:
            written, is_aborted = size, False

            def get_write_buffer_size(self):
                return max(0, size - rate * (loop.now - began))

            def abort(self):
                Transport.is_aborted = True

        real = connection.transport, connection.loop
        loop.now = began
        connection.transport, connection.loop = Transport(), loop
        limit.waits(connection)  # nothing is left to answer: only to read
        while connection.transport.get_write_buffer_size() and not Transport.is_aborted:
            loop.now += 1
            limit.sweep(loop.now)
        assert Transport.is_aborted is is_slow
        connection.transport, connection.loop = real
        peer.close()
