"""A server that is told to stop: it answers what is under way, and waits for nobody else."""

import signal
import socket
import ssl
import threading
import time

import pytest

from cdfl import wire
from cdfl.server import connection_limit

from ..certificate import make_certificate
from .live import Live, near, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(params=["http", "https"])
def tls(request, tmp_path):
    return None if request.param == "http" else make_certificate(tmp_path)


def connect(server, tls):
    """A connection of which the client's end stays open, whatever the server says."""
    plain = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    if tls is None:
        return plain
    return ssl.create_default_context(cafile=tls[0]).wrap_socket(plain, server_hostname="127.0.0.1")


def ask(connection, method, path, *headers):
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"{wire.CLIENT}: car-7", *headers]
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())


def seconds_to_stop(server):
    begun = time.monotonic()
    server.server.should_exit = True
    server._thread.join(timeout=60)
    return time.monotonic() - begun


def test_idle_connections_do_not_delay_it(tmp_path, tls):
    """Over TLS a closed connection waits half a minute for its peer to say goodbye."""
    with Live(tmp_path / "store", tls=tls) as server, connect(server, tls) as used, connect(server, tls):
        ask(used, "GET", "/healthz")
        assert used.recv(1000).startswith(b"HTTP/1.1 200")
        assert seconds_to_stop(server) < 15


@pytest.fixture
def handlers():
    """What signals do, as it was."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_once(tmp_path, number, handlers):
    live = Live(tmp_path / "store")
    with live._taken, live.store, live.server.serving(live._taken):
        threading.Timer(0.2, signal.raise_signal, (number,)).start()
        live.server.stop_on_signals()
        live.server.wait_until_stopped()
        assert live.server.stopped.is_set()
        live.server.finish()
        live.engine.close()
        signal.raise_signal(number)  # once more, while the process ends: it is no KeyboardInterrupt


def test_a_web_server_that_cannot_run_is_reported(tmp_path):
    live = Live(tmp_path / "store")
    live._taken.close()  # there is nothing to listen on
    with live.store, pytest.raises(OSError, match=r"closed|descriptor"), live.server.serving(live._taken):
        pass
    live.engine.close()


def test_an_upload_under_way_is_answered(tmp_path, tls, monkeypatch):
    monkeypatch.setattr(connection_limit, "CLOSING_SECONDS", 0.2)
    with Live(tmp_path / "store", tls=tls) as server, connect(server, tls) as slow, connect(server, tls):
        server.model()
        body = near(server, 0)
        length = f"Content-Length: {len(body)}"
        kind = f"Content-Type: {wire.CONTENT_TYPE}"
        ask(slow, "POST", "/v1/updates", f"{wire.BASE_EPOCH}: 0", f"{wire.KEY}: slow", kind, length)
        slow.sendall(body[:50])
        wait_for(lambda: [each for each in server.server.connections if each.is_busy])
        server.server.should_exit = True
        time.sleep(1.5)  # longer than those that are done are given
        slow.sendall(body[50:])
        assert slow.recv(1000).startswith(b"HTTP/1.1 200")
        assert seconds_to_stop(server) < 15
        assert server.engine.state.epoch == 1
