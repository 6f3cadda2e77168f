"""Clients and a real server, each in a process of its own, over real sockets."""

import signal
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import torch

from cdfl import wire
from cdfl.client import Client, Privacy, Retry, ServerAwayError
from cdfl.core import flatten

from .faults import FAULTS, BadNetwork, Killed
from .real import RealServer
from .test_connection import certificate  # noqa: F401  a fixture
from .toy import make_data, make_model


def nap(seconds):
    time.sleep(min(seconds, 0.05))


QUICK = Retry(attempts=5, first_wait=0.01, longest_wait=5.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = RealServer(tmp_path_factory.mktemp("server"), "--open", "--accept-all")
    server.start()
    yield server
    server.end()


def connect(server, client_id, **settings):
    settings = {"retry": QUICK, "learning_rate": 0.01, "batch_size": 8, "local_epochs": 2} | settings
    return Client(server.url, make_model(), client_id, **settings)


class BrokenLine(BadNetwork):
    """A real network that fails."""

    def __init__(self, *faults, kill=False):
        self.line = httpx.HTTPTransport()
        super().__init__(self.line.handle_request, faults, kill=kill)

    def close(self):
        self.line.close()


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "zstd"])
@pytest.mark.parametrize("dtype", list(wire.DTYPES))
def test_models_of_all_kinds(server, dtype, compress):
    before = server.status()["epoch"]
    with connect(server, f"kinds-{dtype}-{compress}", dtype=dtype, reply_dtype=dtype, compress=compress) as client:
        assert client.join().epoch == before
        reply = client.update(make_data())
    assert (reply.outcome, reply.epoch, reply.staleness) == ("applied", before + 1, 1)
    assert sum(reply.mixture) == pytest.approx(1)
    assert server.status()["epoch"] == before + 1


def test_the_server_knows_its_clients_again(server):
    with connect(server, "again") as client:
        client.join()
        reply = client.update(make_data())
    with connect(server, "again") as client:
        assert client.join().mixture == reply.mixture


@pytest.mark.parametrize("fault", FAULTS)
def test_each_update_counts_once(server, fault):
    before = server.status()["epoch"]
    client_id = f"once-{fault.replace(' ', '-')}"
    with connect(server, client_id, transport=BrokenLine("fine", fault, "fine", fault, fault), sleep=nap) as client:
        client.join()
        replies = [client.update(make_data(seed=number)) for number in range(2)]
        held = flatten(client.model)
    assert [reply.outcome for reply in replies] == ["applied"] * 2
    assert server.status()["epoch"] == before + 2
    with connect(server, client_id) as client:
        client.join()
        assert torch.equal(flatten(client.model), held)


@pytest.mark.parametrize("fault", ["refused", "reply lost", "reply cut"])
def test_a_client_killed_on_the_way(server, tmp_path, fault):
    before = server.status()["epoch"]
    dying = connect(
        server, f"dies-{fault.replace(' ', '-')}", transport=BrokenLine("fine", fault, kill=True), state_dir=tmp_path
    )
    dying.join()
    with pytest.raises(Killed):
        dying.update(make_data())
    dying.close()
    assert server.status()["epoch"] == before + (fault != "refused")
    with connect(server, dying.client_id, state_dir=tmp_path) as client:
        assert client.pending
        reply = client.join()
    assert (reply.outcome, reply.epoch) == ("applied", before + 1)
    assert server.status()["epoch"] == before + 1


def test_many_at_once(server):
    before = server.status()["epoch"]

    def live(number):
        with connect(server, f"many-{number}") as client:
            client.join()
            return [client.update(make_data(seed=number)).epoch for _ in range(4)]

    with ThreadPoolExecutor(8) as pool:
        epochs = [epoch for epochs in pool.map(live, range(8)) for epoch in epochs]
    assert sorted(epochs) == list(range(before + 1, before + 33))


def test_a_server_that_is_killed_and_comes_back(server, tmp_path):
    """The client goes on training; every update it was told of has counted, once."""
    before = server.status()["epoch"]
    with connect(server, "patient", state_dir=tmp_path, local_epochs=1) as client:
        client.join()
        killer = threading.Timer(0.3, server.process.kill)
        killer.start()
        answered, made = 0, 0
        while not client.pending and made < 1000:
            answered += client.update(make_data(seed=made)) is not None
            made += 1
        killer.join()
        assert client.pending
        with pytest.raises(ServerAwayError):
            client.flush(attempts=1)
        server.end(signal.SIGKILL)
        server.start()
        assert client.flush().outcome == "applied"
        assert client.uploads == made == answered + 1
    assert server.status()["epoch"] == before + made


def test_noise_needs_a_server_that_takes_it(server, tmp_path):
    """A server that tests uploads cannot tell it from poison, and says what it may have been."""
    private = Privacy(clip=1.0, noise=50.0)
    with connect(server, "private", privacy=private) as client:  # --accept-all
        assert client.update(make_data()).outcome == "applied"
    strict = RealServer(tmp_path, "--open")
    strict.start()
    try:
        with connect(strict, "private", privacy=private) as client:
            reply = client.update(make_data())
        assert reply.outcome == "rejected"
        assert reply.detail.endswith("or, where noise is added for privacy, add less of it")
    finally:
        strict.end()


class LosesOneReply(httpx.HTTPTransport):
    """And takes so long about it that the server no longer keeps it."""

    def __init__(self, cert):
        super().__init__(verify=ssl.create_default_context(cafile=str(cert)))
        self.lost = False

    def handle_request(self, request):
        response = super().handle_request(request)
        if request.method == "POST" and not self.lost:
            self.lost = True
            response.close()
            time.sleep(1.5)
            raise httpx.ReadError("connection reset", request=request)
        return response


def test_tokens_certificates_and_replies_that_are_gone(tmp_path, certificate):  # noqa: F811
    cert, key = certificate
    server = RealServer(
        tmp_path,
        "--tls-cert",
        str(cert),
        "--tls-key",
        str(key),
        "--keep-replies",
        "0",
        "--snapshot-every",
        "1",
        scheme="https",
    )
    server.start()
    try:
        words = server.run("token", "create", "car-7").split()
        token = max(words, key=len)
        for settings, client_id, kind in (
            ({"token": token}, "car-7", ServerAwayError),
            ({"verify": cert}, "car-7", wire.UnauthorizedError),
            ({"token": token, "verify": cert}, "car-8", wire.ForbiddenError),
        ):
            with connect(server, client_id, **settings) as client, pytest.raises(kind):
                client.join()
        with (
            Client(server.url.replace("https", "http"), make_model(), "car-7", retry=Retry(attempts=1)) as client,
            pytest.raises(ServerAwayError, match=r"if it speaks TLS, try https://127\.0\.0\.1:"),
        ):
            client.join()
        line = LosesOneReply(cert)
        with connect(server, "car-7", token=token, transport=line, state_dir=tmp_path / "state") as client:
            client.join()
            reply = client.update(make_data())
            assert (reply.outcome, reply.epoch) == ("refreshed", 1)
    finally:
        server.end()
