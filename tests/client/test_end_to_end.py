"""Clients and a real server in separate processes, over real sockets."""

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

from ..cli.small import call
from .faults import FAULTS, BadNetwork, Killed
from .real import RealServer
from .test_connection import certificate  # noqa: F401  a fixture
from .toy import make_data, make_model

pytestmark = pytest.mark.slow


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
def test_dtypes_and_compression(server, dtype, compress):
    before = server.status()["epoch"]
    with connect(server, f"kinds-{dtype}-{compress}", dtype=dtype, reply_dtype=dtype, compress=compress) as client:
        assert client.join().epoch == before
        reply = client.update(make_data())
    assert (reply.outcome, reply.epoch, reply.staleness) == ("applied", before + 1, 1)
    assert sum(reply.mixture) == pytest.approx(1)
    assert server.status()["epoch"] == before + 1


def test_the_server_remembers_a_clients_mixture(server):
    with connect(server, "again") as client:
        client.join()
        reply = client.update(make_data())
    with connect(server, "again") as client:
        assert client.join().mixture == reply.mixture


@pytest.mark.parametrize("fault", FAULTS)
def test_each_update_is_applied_once(server, fault):
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
def test_a_client_killed_during_an_upload(server, tmp_path, fault):
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


def test_concurrent_clients(server):
    before = server.status()["epoch"]

    def live(number):
        with connect(server, f"many-{number}") as client:
            client.join()
            return [client.update(make_data(seed=number)).epoch for _ in range(4)]

    with ThreadPoolExecutor(8) as pool:
        epochs = [epoch for epochs in pool.map(live, range(8)) for epoch in epochs]
    assert sorted(epochs) == list(range(before + 1, before + 33))


def test_a_server_that_is_killed_and_restarted(server, tmp_path):
    """The client continues to train, and every answered update is applied once."""
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


@pytest.fixture(scope="module")
def strict(tmp_path_factory, certificate):  # noqa: F811
    """A server with TLS, tokens and the harm test, which deletes replies at once."""
    options = ("--tls-cert", str(certificate[0]), "--tls-key", str(certificate[1]))
    options += ("--keep-replies", "0", "--snapshot-every", "1")
    server = RealServer(tmp_path_factory.mktemp("strict"), *options, scheme="https")
    server.start()
    yield server
    server.end()


def create_token(server, client_id):
    """Create a token while the server runs."""
    code, output = call("token", "create", client_id, "--store", server.folder / "cdfl-store")
    assert code == 0, output
    return max(output.split(), key=len)


def test_noise_for_privacy_counts_on_a_server_that_accepts_all(server):
    with connect(server, "private", privacy=Privacy(clip=1.0, noise=50.0)) as client:  # --accept-all
        assert client.update(make_data()).outcome == "applied"


def test_tokens_and_certificates(strict, certificate):  # noqa: F811
    cert, token = certificate[0], create_token(strict, "car-6")
    for settings, client_id, kind in (
        ({"token": token}, "car-6", ServerAwayError),
        ({"verify": cert}, "car-6", wire.UnauthorizedError),
        ({"token": token, "verify": cert}, "car-8", wire.ForbiddenError),
    ):
        with connect(strict, client_id, **settings) as client, pytest.raises(kind):
            client.join()
    with (
        Client(strict.url.replace("https", "http"), make_model(), "car-6", retry=Retry(attempts=1)) as client,
        pytest.raises(ServerAwayError, match=r"if it speaks TLS, try https://127\.0\.0\.1:"),
    ):
        client.join()


class LosesOneReply(httpx.HTTPTransport):
    """Loses the reply to the first upload until the server has deleted it."""

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


def test_an_expired_reply(strict, certificate, tmp_path):  # noqa: F811
    token, line = create_token(strict, "car-7"), LosesOneReply(certificate[0])
    with connect(strict, "car-7", token=token, transport=line, state_dir=tmp_path) as client:
        epoch = client.join().epoch
        reply = client.update(make_data())
    assert (reply.outcome, reply.epoch) == ("refreshed", epoch + 1)
