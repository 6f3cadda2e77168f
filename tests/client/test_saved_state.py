"""Clients that restart."""

import json
import os
import subprocess
import sys

import httpx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from cdfl.client import ClientError, ServerAwayError, StateError
from cdfl.client import saved_state as state_module
from cdfl.client.saved_state import Blob, PendingUpload, SavedState, StateFolder
from cdfl.core import flatten
from cdfl.upload_policies import ALWAYS

from .faults import BadNetwork
from .toy import ToyServer, make_data

pytestmark = pytest.mark.slow


def same(one: SavedState, other: SavedState) -> bool:
    return state_module._to_json(one) == state_module._to_json(other)


def test_save_and_load(tmp_path):
    state = SavedState(
        "car-7",
        12,
        (0.25, 0.75),
        Blob(b"personal"),
        PendingUpload("key", 11, Blob(b"up"), Blob(b"local")),
        3,
        "p",
        (1.0,),
    )
    folder = StateFolder(tmp_path)
    folder.save(state)
    assert same(folder.load("car-7"), state)
    assert same(state, state)
    folder.save(SavedState("car-7", 13, personal_model=Blob(b"another")))
    assert folder.load("car-7").personal_model.data == b"another"
    assert len(list(tmp_path.glob("*.safetensors"))) == 1  # what nothing names is gone
    folder.close()


def test_a_restarted_client_continues(server, make_client, tmp_path):
    first = make_client(state_dir=tmp_path)
    reply = first.update(make_data())
    first.close()
    away = BadNetwork(server.handle, ["refused"] * 100)
    again = make_client(away, state_dir=tmp_path)
    assert (again.joined, again.epoch, again.mixture, again.uploads) == (True, reply.epoch, reply.mixture, 1)
    assert again.join() is None  # the server is away
    assert torch.equal(flatten(again.model), flatten(first.model))


def test_a_newcomer_needs_the_server(make_client, server):
    client = make_client(BadNetwork(server.handle, ["refused"] * 100))
    with pytest.raises(ServerAwayError, match="does not answer: connection refused"):
        client.join()
    with pytest.raises(ServerAwayError):
        client.update(make_data())


@pytest.mark.parametrize("restart", [False, True], ids=["same process", "restart"])
def test_training_offline_is_uploaded_later(server, make_client, tmp_path, restart):
    network = BadNetwork(server.handle)
    client = make_client(network, state_dir=tmp_path, dtype="bfloat16")
    client.join()
    network.faults = ["refused"] * 100
    assert client.update(make_data()) is None
    trained = flatten(client.model)
    assert client.pending
    with pytest.raises(ServerAwayError):
        client.flush()
    if restart:
        client.close()
        client = make_client(network, state_dir=tmp_path)
        assert client.join() is None
        assert torch.equal(flatten(client.model), trained)  # not the rounded one that waits
    network.faults = []
    reply = client.flush()
    assert (reply.outcome, reply.epoch) == ("applied", 1)
    assert client.flush() is None
    assert len(server.applied) == 1


def test_training_again_replaces_the_waiting_upload(server, make_client, tmp_path):
    network = BadNetwork(server.handle)
    client = make_client(network, state_dir=tmp_path)
    client.join()
    network.faults = ["refused"] * 100
    client.update(make_data(seed=1))
    first = client._state.pending
    start = client.start_model()
    assert torch.equal(start, flatten(client.model))  # it goes on from what it has trained
    client.update(make_data(seed=2))
    second = client._state.pending
    assert second.key != first.key
    assert second.base_epoch == first.base_epoch == 0
    network.faults = []
    assert client.update(make_data(seed=3)).epoch == 2
    assert server.applied[0] == ("car-7", second.key)  # the first was replaced, and never sent again
    assert len(server.applied) == 2
    assert client.uploads == 3


def test_a_folder_in_use_is_refused(make_client, tmp_path):
    make_client(state_dir=tmp_path).join()
    with pytest.raises(StateError, match="is in use by another client"):
        make_client(state_dir=tmp_path)


def test_the_state_of_another_client_or_model_is_refused(server, make_client, tmp_path):
    client = make_client(state_dir=tmp_path)
    client.join()
    client.close()
    with pytest.raises(StateError, match="holds the state of client 'car-7', not of 'car-8'"):
        make_client(state_dir=tmp_path, client_id="car-8")
    with pytest.raises(StateError, match="the state of 'car-7' belongs to another model"):
        make_client(state_dir=tmp_path, model=nn.Linear(2, 2))
    make_client(state_dir=tmp_path)  # and neither left it locked


@pytest.mark.parametrize(
    "use",
    [
        lambda client: client.join(),
        lambda client: client.update(make_data()),
        lambda client: client.train(make_data()),
        lambda client: client.upload(client.start_model()),
        lambda client: client.flush(),
        lambda client: client.remember("a policy", (1.0,)),
        lambda client: next(client.watch([make_data()], ALWAYS)),
    ],
    ids=["join", "update", "train", "upload", "flush", "remember", "watch"],
)
def test_a_closed_client_does_not_touch_the_folder(server, make_client, tmp_path, use):
    first = make_client(state_dir=tmp_path)
    first.update(make_data())
    first.close()
    make_client(state_dir=tmp_path)
    requests, held = len(server.requests), flatten(first.model)
    kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ClientError, match="client 'car-7' is closed; make another one"):
        use(first)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == kept
    assert torch.equal(flatten(first.model), held)
    assert len(server.requests) == requests


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The folder of a client with a waiting upload, its files and its state."""
    folder = tmp_path_factory.mktemp("kept")
    state = SavedState(
        "car-7", 5, (0.5, 0.5), Blob(b"p" * 40), PendingUpload("k", 5, Blob(b"u" * 40), Blob(b"l" * 40)), 1
    )
    store = StateFolder(folder)
    store.save(state)
    store.close()
    files = {path: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}
    assert len(files) == 4
    return folder, files, state


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_detected(kept, data):
    folder, files, state = kept
    for path, content in files.items():
        path.write_bytes(content)
    path = data.draw(st.sampled_from(sorted(files)))
    content = files[path]
    at = data.draw(st.integers(0, len(content) - 1))
    damage = data.draw(st.sampled_from(["flip", "cut", "empty", "gone"]))
    if damage == "flip":
        path.write_bytes(content[:at] + bytes([content[at] ^ data.draw(st.integers(1, 255))]) + content[at + 1 :])
    elif damage == "cut":
        path.write_bytes(content[:at])
    elif damage == "empty":
        path.write_bytes(b"")
    elif path.name != "state.json":  # a folder without it is a new one
        path.unlink()
    store = StateFolder(folder)
    try:
        read, told = store.load("car-7"), ""
    except StateError as error:
        read, told = None, str(error)
    finally:
        store.close()
    # some damage changes only white space
    assert same(read, state) if read else "restore it from a copy, or delete the folder" in told


def test_a_changed_number_is_detected(kept):
    folder, files, _ = kept
    for path, content in files.items():
        path.write_bytes(content.replace(b'"base_epoch": 5', b'"base_epoch": 4'))
    store = StateFolder(folder)
    with pytest.raises(StateError, match=r"cannot be read \(its checksum is wrong\)"):
        store.load("car-7")
    store.close()


def test_another_version_is_refused(tmp_path):
    store = StateFolder(tmp_path)
    store.save(SavedState("car-7"))
    values = json.loads((tmp_path / "state.json").read_text())
    del values["digest"]
    values["version"] = 2
    (tmp_path / "state.json").write_text(json.dumps(values | {"digest": state_module._digest(values)}))
    with pytest.raises(StateError, match="it has version 2, this cdfl reads version 1"):
        store.load("car-7")
    store.close()


@pytest.mark.skipif(sys.platform == "win32", reason="needs /dev/full")
def test_full_disk(server, make_client, tmp_path, monkeypatch):
    client = make_client(state_dir=tmp_path)
    client.join()

    def full(file, data):
        with open("/dev/full", "wb", buffering=0) as device:  # noqa: PTH123
            device.write(data)

    monkeypatch.setattr(state_module, "_write", full)
    with pytest.raises(
        StateError, match=r"cannot be written to .*No space left on device; free some space, then repeat"
    ):
        client.update(make_data())
    assert server.applied == []  # nothing goes out that would be forgotten
    monkeypatch.undo()
    assert client.update(make_data()).outcome == "applied"


def test_the_state_is_synced_before_the_upload_is_sent(server, make_client, tmp_path, monkeypatch):
    order = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("sync"), sync(handle)))

    def handle(request):
        order.append(request.method)
        return server.handle(request)

    client = make_client(httpx.MockTransport(handle), state_dir=tmp_path)
    client.join()
    order.clear()
    client.update(make_data())
    # file and folder, for the local model and the state; the same for the personal model and the state
    assert order == ["sync"] * 4 + ["POST"] + ["sync"] * 4


KILLED = """
import sys, os, signal
from tests.client.test_faults import connect
from tests.client.toy import ToyServer, make_data
import httpx

server, folder = ToyServer(), sys.argv[1]

def handle(request):
    if request.method == "POST":
        os.kill(os.getpid(), signal.SIGKILL)
    return server.handle(request)

client = connect(httpx.MockTransport(handle), folder)
client.join()
client.update(make_data())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_sigkill_during_an_upload(tmp_path, make_client):
    """The process releases its lock, and the waiting upload survives."""
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, capture_output=True)  # noqa: S603
    assert ended.returncode == -9, ended.stderr
    server = ToyServer()
    server.given["car-7"].add(0)
    client = make_client(server.transport, state_dir=tmp_path)
    assert client.pending
    assert client.join().outcome == "applied"
