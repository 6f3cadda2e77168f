"""Requests over real sockets, retries and waits."""

import socket
import ssl
import threading
from contextlib import suppress
from email.utils import formatdate
from time import time

import httpx
import pytest
import torch

from cdfl import wire
from cdfl.client import Client, Retry, ServerAwayError
from cdfl.core import flatten

from ..certificate import make_certificate
from .site import Site
from .toy import ToyServer, make_data, make_model

pytestmark = pytest.mark.slow


@pytest.fixture
def site(server):
    site = Site(server)
    yield site
    site.close()


def connect(site, **settings):
    settings = {"sleep": lambda seconds: None, "local_epochs": 1} | settings
    return Client(site.url, make_model(), "car-7", **settings)


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "zstd"])
def test_real_socket(site, compress):
    with connect(site, compress=compress) as client:
        client.join()
        for number in range(3):
            assert client.update(make_data(seed=number)).epoch == number + 1
        expected = torch.tensor(client.mixture, dtype=torch.float32) @ site.server.state.cluster_models
        assert torch.equal(flatten(client.model), expected)


@pytest.mark.parametrize("spoil", ["no answer", "cut"])
def test_an_interrupted_answer_is_retried(site, spoil):
    with connect(site) as client:
        client.join()
        site.spoil = [spoil, spoil]
        assert client.update(make_data()).outcome == "applied"
    assert len(site.server.applied) == 1
    assert [request.method for request in site.server.requests] == ["GET", "POST", "POST", "POST"]


def test_connection_refused(server):
    site = Site(server)
    site.close()
    with connect(site) as client, pytest.raises(ServerAwayError, match=r"does not answer: .*refused"):
        client.join()


def test_timeout():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with (
            Client(url, make_model(), "car-7", timeout=0.1, retry=Retry(attempts=2, first_wait=0)) as client,
            pytest.raises(ServerAwayError, match="timed out"),
        ):
            client.join()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_certificates(server, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    site, waits = Site(server, context), []
    try:
        with (
            connect(site, sleep=waits.append) as client,
            pytest.raises(ServerAwayError, match=r"CERTIFICATE.*name a self-signed certificate with verify=FILE"),
        ):
            client.join()
        assert waits == []  # trying again would not help
        trusted = ssl.create_default_context(cafile=str(certificate[0]))
        for verify in (certificate[0], str(certificate[0]), trusted):
            with connect(site, verify=verify) as client:
                assert client.update(make_data()).outcome == "applied"
    finally:
        site.close()


def test_the_wrong_scheme_gives_a_hint(server, certificate):
    """The client uses http and the server https, and the reverse."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    for site, words in (
        (Site(server), "it seems to speak plain http: try http://127.0.0.1:"),
        (Site(server, context), "if it speaks TLS, try https://127.0.0.1:"),
    ):
        scheme, rest = site.url.split("://")
        wrong = f"{'http' if scheme == 'https' else 'https'}://{rest}"
        try:
            with (
                Client(wrong, make_model(), "car-7", retry=Retry(attempts=1)) as client,
                pytest.raises(ServerAwayError, match=f"{wrong} does not answer: .*; {words}"),
            ):
                client.join()
        finally:
            site.close()


def test_no_hint_after_the_server_has_answered(site):
    with connect(site, retry=Retry(attempts=1)) as client:
        client.join()
        site.is_off = True
        with pytest.raises(
            ServerAwayError, match=r"does not answer: Server disconnected without sending a response\.$"
        ):
            client._connection.fetch_model()


def test_a_missing_token_gives_a_hint(make_client):
    server = ToyServer(tokens={"word": "car-7"})
    hint = "; this client has no token: pass one with token=, --token or CDFL_TOKEN"
    with pytest.raises(wire.UnauthorizedError, match=f"the token is unknown{hint}"):
        make_client(server.transport).join()
    with pytest.raises(wire.UnauthorizedError, match=r"the token is unknown$"):
        make_client(server.transport, token="another").join()  # noqa: S106


def test_white_space_around_a_token_is_removed(make_client):
    server = ToyServer(tokens={"word": "car-7"})
    transport = server.transport
    assert make_client(transport, token=" word\r\n").join().outcome == "joined"  # noqa: S106  as a file may hold it


@pytest.mark.parametrize("token", ["", " \n", "two words", "two\nlines", "t\u00f6k", "x" * 513, b"word", 7])
def test_an_invalid_token_is_refused_and_not_shown(make_client, token):
    with pytest.raises(ValueError, match="the token ") as caught:
        make_client(token=token)
    assert not str(token).strip() or str(token).strip() not in str(caught.value)
    assert caught.value.__cause__ is None


def test_another_model_than_the_servers_is_named(make_client):
    words = r"not this client's: the body lacks 'weight', 'bias' and has .*; use the same model on both"
    with pytest.raises(wire.UnfitError, match=words):
        make_client(model=torch.nn.Linear(2, 2)).join()


def answering(*answers):
    """A transport that gives these answers, then the server's."""
    server, left = ToyServer(), list(answers)

    def handle(request):
        return left.pop(0) if left else server.handle(request)

    return httpx.MockTransport(handle)


def waits_of(make_client, *answers, **settings):
    waits = []
    client = make_client(answering(*answers), sleep=waits.append, **settings)
    client.join()
    return waits


def busy(retry_after=None, status=503):
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return httpx.Response(status, headers=headers, json={"detail": "busy"})


def test_waits_double_and_are_random(make_client):
    for _ in range(20):
        waits = waits_of(make_client, *[busy()] * 4)
        assert [0.5 <= wait / 0.5 / 2**number <= 1 for number, wait in enumerate(waits)] == [True] * 4
    assert len({round(wait, 6) for _ in range(5) for wait in waits_of(make_client, busy())}) == 5


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 409])
def test_retry_after_in_seconds(make_client, status):
    assert waits_of(make_client, busy("7", status)) == [7.0]


def test_retry_after_as_a_date(make_client):
    (wait,) = waits_of(make_client, busy(formatdate(time() + 20, usegmt=True)))
    assert 15 < wait < 21


def test_a_long_retry_after_fails_at_once(make_client):
    waits = []
    client = make_client(answering(*[busy("3600")] * 5), sleep=waits.append)
    with pytest.raises(ServerAwayError, match="answered 503: busy") as caught:
        client.join()
    assert caught.value.retry_after == 3600
    assert waits == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx.Response(302, headers={"Location": "http://hotel/login"}), "answered 302"),
        (httpx.Response(200, text="<html>log in</html>"), "did not answer as a cdfl server: the header CDFL-Epoch"),
        (
            httpx.Response(200, headers={"CDFL-Epoch": "1", "CDFL-Mixture": "0.5,0.5"}, text="short"),
            "did not answer as a cdfl server",
        ),
        (httpx.Response(200, content=bytes(2**21)), "did not answer as a cdfl server"),
    ],
    ids=["redirect", "page", "short", "long"],
)
def test_an_answer_of_another_server_means_away(make_client, answer, words):
    client = make_client(httpx.MockTransport(lambda request: answer), retry=Retry(attempts=2))
    with pytest.raises(ServerAwayError, match=words):
        client.join()


def test_an_endless_answer_is_cut_off(make_client):
    read = []

    class Endless(httpx.SyncByteStream):
        def __iter__(self):
            while True:
                read.append(1)
                yield bytes(2**16)

    client = make_client(httpx.MockTransport(lambda request: httpx.Response(200, stream=Endless())), retry=Retry(1))
    with pytest.raises(ServerAwayError, match="the answer is longer than"):
        client.join()
    assert len(read) < 20


def test_a_decompression_bomb_is_refused(make_client):
    bomb = wire.compress(bytes(2**24))
    headers = {"CDFL-Epoch": "1", "CDFL-Mixture": "1.0", "Content-Encoding": "zstd"}

    def handle(request):
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(bomb))

    client = make_client(httpx.MockTransport(handle), compress=True, retry=Retry(1))
    with pytest.raises(ServerAwayError, match="the decompressed body has more than"):
        client.join()


def test_an_error_without_detail(make_client):
    client = make_client(httpx.MockTransport(lambda request: httpx.Response(403, text="no")))
    with pytest.raises(wire.ForbiddenError, match="Forbidden"):
        client.join()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"attempts": 0}, "attempts is 0; expected a whole number, 1 or more"),
        ({"attempts": -1}, "attempts is -1; expected"),
        ({"attempts": 1.5}, "attempts is 1.5; expected"),
        ({"first_wait": -1}, "first_wait is -1; expected a number, 0 or more"),
        ({"longest_wait": float("nan")}, "longest_wait is nan; expected a number, 0 or more"),
    ],
)
def test_invalid_retry_values_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        Retry(**given)


def test_waits_may_be_unlimited():
    assert Retry(longest_wait=float("inf")).wait(11, chance=1.0) == 512.0


PAGE = "<html>Request Entity Too Large</html>"


class Between:
    """A transport that passes requests on, or does what a bad proxy does."""

    def __init__(self, server):
        self.server, self.spoil = server, None

    def __call__(self, request):
        return self.server.handle(request) if self.spoil is None else self.spoil(request)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refusal_of_a_proxy_does_not_drop_the_upload(server, make_client, status):
    """Only a cdfl server, which says so in a header, can say that an upload will never be accepted."""
    between = Between(server)
    client = make_client(httpx.MockTransport(between))
    client.join()
    between.spoil = lambda request: httpx.Response(status, text=PAGE)
    assert client.update(make_data()) is None  # the server is away
    assert client.pending
    between.spoil = None
    assert client.flush().outcome == "applied"


def test_a_reply_with_nan_does_not_drop_the_upload(server, make_client):
    between = Between(server)
    client = make_client(httpx.MockTransport(between))
    client.join()

    def spoil(request):
        good = server.handle(request)
        headers = {name: value for name, value in good.headers.items() if name.startswith("cdfl")}
        return httpx.Response(200, headers=headers, content=good.read()[:-4] + b"\x00\x00\xc0\x7f")

    between.spoil = spoil
    with suppress(wire.WireError):
        client.update(make_data())
    assert client.pending
    between.spoil = None
    assert client.flush().outcome == "applied"


@pytest.mark.parametrize("body", ["[" * 100_000, '{"detail": ' + "[" * 100_000])
def test_odd_errors_are_errors_of_the_server(make_client, body):
    headers = [(b"Retry-After", "²".encode("latin-1"))]
    transport = httpx.MockTransport(lambda request: httpx.Response(503, headers=headers, text=body))
    with pytest.raises(ServerAwayError, match="answered 503"):
        make_client(transport).join()


def test_an_exchange_has_a_deadline(monkeypatch):
    """A peer that sends a byte now and then keeps no client for ever."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def trickle():
            peer, _ = listening.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                while not ended.wait(0.05):
                    try:
                        peer.sendall(b".")
                    except OSError:
                        return

        thread = threading.Thread(target=trickle)
        thread.start()
        monkeypatch.setattr("cdfl.client.connection.LEAST_RATE", 1e9)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            client = Client(url, make_model(), "car-7", timeout=0.5, retry=Retry(attempts=1))
            with client, pytest.raises(ServerAwayError, match="has not answered within"):
                client.join()
        finally:
            ended.set()
            thread.join()
