"""Joining, training, uploading, receiving."""

import logging

import httpx
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cdfl
from cdfl import wire
from cdfl.client import Client, ClientError, DivergedError, Privacy, ServerAwayError
from cdfl.core import ClientMemory, Settings, TrainingSettings, client_update, flatten, guard
from cdfl.upload_policies import ALWAYS

from .faults import BadNetwork
from .toy import ToyServer, make_data, make_model

pytestmark = pytest.mark.slow


def test_join_and_update(server):
    net = make_model()
    client = cdfl.Client("http://server.test", model=net, client_id="car-7", transport=server.transport)
    joined = client.join()
    assert (joined.outcome, joined.epoch, joined.mixture) == ("joined", 0, (0.5, 0.5))
    assert torch.equal(flatten(net), server.state.cluster_models.mean(dim=0))
    reply = client.update(DataLoader(TensorDataset(*make_data()), batch_size=8))
    assert (reply.outcome, reply.epoch, reply.staleness) == ("applied", 1, 1)
    assert client.epoch == 1
    assert reply.mixture == client.mixture == tuple(server.clients["car-7"].mixture.tolist())
    assert reply.rates[0] > 0
    expected = torch.tensor(reply.mixture, dtype=torch.float32) @ server.state.cluster_models
    assert torch.equal(flatten(net), expected)
    assert not client.pending


def test_the_upload_is_the_result_of_client_update(server, make_client):
    client = make_client(local_epochs=3, proximal_strength=0.5)
    client.join()
    start = flatten(client.model)
    batches = [tuple(part[i : i + 8] for part in make_data()) for i in (0, 8, 16)]
    client.update(batches)
    settings = TrainingSettings(learning_rate=0.01, batch_size=8, local_epochs=3, proximal_strength=0.5)
    expected = client_update(make_model(), start, batches * 3, nn.functional.cross_entropy, settings)
    sent = wire.decode_model(server.requests[-1].content, server.layout)
    assert torch.equal(sent, expected)


WORD = "open-sesame"


def test_an_upload_names_its_base_epoch(server, make_client):
    one, other = make_client(client_id="car-1"), make_client(client_id="car-2")
    one.join()
    for _ in range(3):
        other.update(make_data())
    assert one.update(make_data()).staleness == 4
    assert one.update(make_data()).staleness == 1
    sent = [request.headers[wire.BASE_EPOCH] for request in server.requests if request.method == "POST"]
    assert sent == ["0", "1", "2", "0", "4"]


BATCH = make_data()
LISTED = [(BATCH[0][:8], BATCH[1][:8]), (BATCH[0][8:], BATCH[1][8:])]


def test_update_joins_first(server, make_client):
    make_client().update(make_data())
    assert [request.method for request in server.requests] == ["GET", "POST"]


def test_diverged_training_is_not_uploaded(server, make_client):
    client = make_client()
    client.join()
    held = flatten(client.model)
    inputs, targets = make_data()
    with pytest.raises(DivergedError, match=r"nothing was uploaded; use a smaller learning_rate"):
        client.update((inputs * float("nan"), targets))
    assert torch.equal(flatten(client.model), held)
    assert not client.pending
    assert server.applied == []
    assert client.update((inputs, targets)).outcome == "applied"


def test_uploading_a_model_trained_elsewhere(server, make_client):
    client = make_client()
    with pytest.raises(ClientError, match=r"call join\(\) first"):
        client.start_model()
    client.join()
    mine = client.start_model() + 0.5
    assert client.upload(mine).outcome == "applied"
    assert torch.equal(wire.decode_model(server.requests[-1].content, server.layout), mine)
    with pytest.raises(ValueError, match="it belongs to another model"):
        client.upload(mine[:-1])


def test_integer_buffers_are_not_changed(make_client):
    client = make_client()
    client.model[1].num_batches_tracked.fill_(17)
    client.update(make_data())
    assert client.model[1].num_batches_tracked == 17


def test_training_keeps_evaluation_mode(make_client):
    client = make_client()
    client.model.eval()
    client.update(make_data())
    assert not client.model.training


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("compress", [False, True], ids=["plain", "zstd"])
def test_dtypes_and_compression(server, make_client, dtype, compress):
    client = make_client(dtype=dtype, reply_dtype=dtype, compress=compress)
    assert client.update(make_data()).outcome == "applied"
    request = server.requests[-1]
    assert request.url.params["dtype"] == dtype
    assert request.headers.get("Content-Encoding") == ("zstd" if compress else None)
    body = wire.decompress_bytes(request.content, 10**6) if compress else request.content
    assert len(body) == wire.body_size(server.layout, dtype)
    weights = torch.tensor(client.mixture, dtype=torch.float32) @ server.state.cluster_models
    assert torch.equal(flatten(client.model), weights.to(wire.DTYPES[dtype]).float())


def test_values_that_do_not_fit_float16_are_refused(make_client):
    client = make_client(dtype="float16")
    client.join()
    with pytest.raises(wire.UnfitError, match="do not fit float16; ask for float32 or bfloat16"):
        client.upload(torch.full_like(client.start_model(), 1e6))
    assert not client.pending


def test_models_in_double_precision(make_client):
    client = make_client(model=make_model().double())
    assert client.update([(inputs.double(), targets) for inputs, targets in LISTED]).outcome == "applied"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_models_on_a_gpu(server, make_client, tmp_path):
    """Data may be on the CPU or the GPU."""
    client = make_client(model=make_model().cuda(), state_dir=tmp_path, privacy=Privacy(1.0, 0.01), dtype="bfloat16")
    assert client.update(LISTED).outcome == "applied"
    turns = list(client.watch([BATCH, [part.cuda() for part in BATCH]], ALWAYS))
    assert [turn.reply.outcome for turn in turns] == ["applied"] * 2
    expected = torch.tensor(client.mixture, dtype=torch.float32) @ server.state.cluster_models
    assert torch.allclose(flatten(client.model).cpu(), expected)
    assert client.device.type == "cuda"


def test_tokens(make_client):
    server = ToyServer(tokens={WORD: "car-7"})
    transport = server.transport
    assert make_client(transport, token=WORD).update(make_data()).outcome == "applied"
    for token, client_id, kind in (
        (None, "car-7", wire.UnauthorizedError),
        ("wrong", "car-7", wire.UnauthorizedError),
        (WORD, "car-8", wire.ForbiddenError),
    ):
        with pytest.raises(kind):
            make_client(transport, token=token, client_id=client_id).join()


def test_a_token_over_plain_http_is_warned_about(make_client, caplog):
    make_client(token=WORD)
    assert "the token is sent to http://server.test over plain http" in caplog.text


def test_a_revoked_token_keeps_the_upload(server, make_client):
    server.tokens = {WORD: "car-7"}
    client = make_client(token=WORD)
    client.join()
    server.tokens = {}
    with pytest.raises(wire.UnauthorizedError):
        client.update(make_data())
    assert client.pending
    server.tokens = {WORD: "car-7"}
    assert client.flush().outcome == "applied"


def test_an_upload_that_can_never_be_accepted_is_dropped(server, make_client):
    client = make_client()
    client.join()
    server.update = lambda request, client_id: (_ for _ in ()).throw(wire.TooLargeError("at most 5 bytes"))
    with pytest.raises(wire.TooLargeError, match="at most 5 bytes"):
        client.update(make_data())
    assert not client.pending
    del server.update
    assert client.update(make_data()).outcome == "applied"


def test_an_unknown_epoch_refreshes_the_model(server, make_client, caplog):
    """As after a rollback of the server."""
    client = make_client()
    client.join()
    server.given.clear()
    reply = client.update(make_data())
    assert reply.outcome == "refreshed"
    assert "never sent" in reply.detail
    assert "Fetching the model instead" in caplog.text
    assert not client.pending
    assert torch.equal(flatten(client.model), server.state.cluster_models.mean(dim=0))
    assert client.update(make_data()).outcome == "applied"


def test_a_rejected_upload_says_why(server, make_client, caplog):
    server.settings = Settings(guard=True)
    client = make_client()
    client.join()
    before = server.state.cluster_models
    start = client.start_model()
    server.clients["car-7"] = ClientMemory(defence=(1.0, 0.0, -guard.SHARE, 0.0))  # it has used up its share
    reply = client.upload(start)
    assert (reply.outcome, reply.rates) == ("rejected", (0, 0))
    assert reply.detail == server.last["car-7"][2].verdict.reason != ""
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [reply.detail]
    assert torch.equal(server.state.cluster_models, before)
    assert not client.pending


def test_a_reply_that_is_gone_refreshes_the_model(server, make_client):
    client = make_client(BadNetwork(server.handle, ["fine", "reply lost"]))
    server.keeps_replies = False
    client.join()
    reply = client.update(make_data())
    assert (reply.outcome, reply.epoch) == ("refreshed", 1)
    assert len(server.applied) == 1
    assert client.mixture == tuple(server.clients["car-7"].mixture.tolist())


def test_invalid_settings_are_refused(server, make_client):
    for settings, words in (
        ({"client_id": "no spaces"}, "expected 1 to 64 characters"),
        ({"dtype": "int8"}, "dtype is 'int8'; expected one of float32"),
        ({"reply_dtype": "int8"}, "reply_dtype is 'int8'"),
        ({"learning_rat": 1.0}, "there is no setting 'learning_rat'"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0"),
    ):
        with pytest.raises((ValueError, wire.WireError), match=words):
            make_client(**settings)
    for url in ("server:8443", "ftp://server", "https://"):
        with pytest.raises(ValueError, match="expected an address such as https://server:8443"):
            Client(url, make_model(), "car-7")


def test_a_missing_package_is_reported_at_once(make_client, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(wire.UnsupportedError, match="pip install zstandard"):
        make_client(compress=True)


def test_a_server_behind_a_path(server):
    seen = []

    def proxy(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.path)
        return httpx.Response(502, text="<html>bad gateway</html>")

    client = Client(
        "https://host/fleet/one", make_model(), "car-7", transport=httpx.MockTransport(proxy), sleep=lambda s: None
    )
    with pytest.raises(ServerAwayError, match="answered 502: Bad Gateway"):
        client.join()
    assert seen == ["/fleet/one/v1/model"] * 5


def test_retries_are_logged(server, make_client, caplog):
    caplog.set_level(logging.INFO, "cdfl.client")
    make_client(BadNetwork(server.handle, ["refused"])).join()
    assert "http://server.test does not answer: connection refused; trying again in" in caplog.text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"client_id": 5}, "client_id is of type int; expected a name, a str"),
        ({"model": 5}, "model is of type int; expected a torch.nn.Module"),
        ({"loss": 5}, r"loss is of type int; expected a function of \(outputs, targets\)"),
        ({"privacy": (1.0, 8.0)}, r"privacy is a tuple of 2; expected cdfl\.client\.Privacy\(clip, noise\), or None"),
        ({"compress": "gzip"}, r"compress is 'gzip'; expected True \(zstd\) or False"),
        ({"compress": None}, "compress is None; expected True"),
    ],
)
def test_arguments_of_wrong_types_are_refused(make_client, given, words):
    with pytest.raises(ValueError, match=words):
        make_client(**given)


def test_an_upload_must_be_a_tensor(make_client):
    client = make_client()
    with pytest.raises(ValueError, match=r"the upload is a list of 1; expected a tensor \(P,\), as"):
        client.upload([1.0])
    assert not client.pending


def test_keywords_change_the_given_settings(make_client):
    client = make_client(settings=Settings(local_epochs=2, momentum=0.5, optimizer="sgd"))
    assert client.settings.training.local_epochs == 2
    assert client.settings.training.learning_rate == 0.01  # keywords win
    assert client.update(make_data()).outcome == "applied"


def test_a_report_of_the_last_reply(server, make_client):
    """The second upload says what the first reply did to the loss on the client's own data."""
    client = make_client(report=True)
    client.update(make_data())
    client.update(iter([make_data(), make_data(seed=1)]))  # data that can be read once
    client.upload(client.start_model())
    said = [request.headers.get(wire.REPORT) for request in server.requests if request.method == "POST"]
    assert said[0] is None
    assert all(loss > 0 for loss in wire.parse_report(said[1]))
    assert wire.parse_report(said[2]) != wire.parse_report(said[1])
    assert client.model.training == make_model().training


def test_no_report_unless_asked_for(server, make_client):
    client = make_client()
    for _ in range(2):
        client.update(make_data())
    assert wire.REPORT not in server.requests[-1].headers


def test_a_report_changes_nothing_else(server, make_client):
    loud, quiet = make_client(client_id="loud", report=True), make_client(client_id="quiet")
    loud.join()
    quiet.join()
    for client in (loud, quiet):
        client.update(make_data())
    sent = [wire.decode_model(each.content, server.layout) for each in server.requests if each.method == "POST"]
    assert torch.equal(*sent)
