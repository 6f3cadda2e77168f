"""`cdfl token`, `forget`, `verify`, `rollback` and `export`, on a store with and without a running server."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from cdfl.cli import app
from cdfl.server.auth import Tokens
from cdfl.server.store import Store
from cdfl.server.store_records import Retention

from ..server.toy import LAYOUT, Toy, same_state, was_sent
from .small import call

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def toy(place):
    """A server that has stopped: the first snapshot and three more, uploads of three clients, the last after them."""
    with Store.open(place, retention=Retention(keep_snapshots=3, keep_uploads=True)) as store:
        toy = Toy(store)
        for _ in range(3):
            toy.upload("car-7", "car-8", "car-9")
            toy.snapshot()
        toy.upload("car-7")
    return toy


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


class Server(threading.Thread):
    """A running server, as far as its store can see."""

    def __init__(self, place, polls=True):
        super().__init__()
        self.store = Store.open(place)
        self.polls = polls
        self.stop = threading.Event()

    def run(self):
        state = self.store.recover().state
        while not self.stop.wait(0.02):
            for client_id in self.store.asked_to_forget() if self.polls else []:
                self.store.forget(client_id, state)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.join()
        self.store.close()


@pytest.mark.parametrize(
    "command",
    ["forget car-7", "verify", "rollback", "rollback 3", "export --out models", "token list", "token revoke x"],
)
def test_a_store_that_is_not_there_is_not_made(place, command):
    code, output = call(*command.split(), "--store", place)
    assert code == 2
    assert output == f"cdfl: there is no store in {place}; name its folder or database, or begin one with `cdfl serve`"
    assert not place.exists()


@pytest.mark.parametrize("command", ["forget car-7", "verify", "rollback", "rollback 3 --yes", "export --out models"])
@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_a_place_without_the_blobs_is_refused_and_not_made(toy, place, tmp_path, monkeypatch, command, kind):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    typo = str(tmp_path / "typo") if kind == "folder" else f"memory://{tmp_path.name}/typo"
    before = set(tmp_path.iterdir())
    code, output = call(*command.split(), "--store", place, "--blobs", typo)
    assert code == 2
    assert output.startswith("cdfl: the blobs of this store are not in ")
    assert output.endswith("typo; name their place (--blobs), or mount its disk")
    assert set(tmp_path.iterdir()) == before
    assert call("verify", "--store", place)[0] == 0  # and nothing has happened to it


@pytest.mark.parametrize("command", ["verify", "rollback", "rollback 3 --yes", "export --out models"])
def test_an_empty_store_is_told(place, command):
    call("token", "create", "car-7", "--store", place)
    code, output = call(*command.split(), "--store", place)
    assert (code, output) == (2, "cdfl: the store is empty; start a server with `cdfl serve` first")


def test_what_a_server_needs_may_not_be_installed(toy, place, monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    for name in [
        name for name in sys.modules if name.startswith("cdfl.server.") and name != "cdfl.server.store_records"
    ]:
        monkeypatch.delitem(sys.modules, name)
    code, output = call("verify", "--store", place)
    assert code == 2
    assert "a server needs: pip install 'cdfl[server]'" in output


# -- token


def test_a_token_is_shown_once(place):
    result = CliRunner().invoke(app, ["token", "create", "car-7", "--store", str(place)])  # before the first start
    assert result.exit_code == 0
    token = result.stdout.strip()
    assert result.stderr == f"began a new store in {place}, for a `cdfl serve` with the same --store\n"
    with Store.open(place) as store:  # beside which everything works as well
        assert Tokens(store.database).claim(token).client_id == "car-7"
        code, output = call("token", "create", "car-8", "--store", place)
        assert (code, Tokens(store.database).claim(output).client_id) == (0, "car-8")
        code, output = call("token", "list", "--store", place)
        assert code == 0
        assert "client token created expires revoked" in output
        assert "car-7" in output
        assert token not in output
        code, output = call("token", "revoke", "car-7", "--store", place)
        record = next(record for record in Tokens(store.database).all() if record.client_id == "car-7")
        assert (code, output) == (0, f"revoked token {record.token_id} of car-7")
        assert Tokens(store.database).claim(token) is None
    code, output = call("token", "revoke", "car-7", "--store", place)
    assert (code, output.startswith("cdfl: there is no valid token of a client or with the id car-7")) == (2, True)


def test_names_of_clients_are_checked(place):
    code, output = call("token", "create", "my car", "--store", place)
    assert code == 2
    assert output.startswith("cdfl: the client_id is 'my car'; expected 1 to 64 characters")
    assert not place.exists()


# -- forget


def test_forgetting_without_a_server(toy, place):
    assert call("forget", "car-7", "--store", place) == (0, "car-7 is forgotten")
    assert call("forget", "car-7", "--store", place) == (0, "nothing is stored of car-7")
    with Store.open(place) as store:
        assert store.client("car-7") is None
        assert store.client("car-8").uploads == 3
        assert same_state(store.recover().state, toy.state)


def test_forgetting_beside_a_server(toy, place):
    with Server(place) as server:
        code, output = call("forget", "car-7", "--store", place)
        assert code == 0
        assert "a server is running: it was asked, waiting for it" in output
        assert output.endswith("car-7 is forgotten")
        assert server.store.client("car-7") is None
        assert call("forget", "nobody", "--store", place) == (0, "nothing is stored of nobody")
        assert same_state(server.store.recover().state, toy.state)


def test_nobody_can_be_called_so(toy, place):
    code, output = call("forget", "nobody here", "--store", place)
    assert code == 2
    assert output.startswith("cdfl: the client_id is 'nobody here'; expected 1 to 64 characters of ")


def test_a_server_that_stops_while_it_is_asked(toy, place, monkeypatch):
    monkeypatch.setattr(sys.modules["cdfl.cli.forget"], "TRY_ALONE_SECONDS", 0.1)
    with Server(place, polls=False) as server:
        threading.Timer(0.5, server.__exit__).start()
        assert call("forget", "car-7", "--store", place)[0] == 0
    with Store.open(place) as store:
        assert store.client("car-7") is None
        assert store.asked_to_forget() == []


def test_ctrl_c_leaves_the_wish_standing(toy, place):
    with Server(place, polls=False) as server:
        command = [sys.executable, "-c", "from cdfl.cli import app; app()", "forget", "car-7", "--store", str(place)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: S603
        deadline = time.monotonic() + 60
        while not server.store.asked_to_forget() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "after Ctrl-C it still does it" in errors
        assert server.store.asked_to_forget() == ["car-7"]


# -- verify


def test_verify(toy, place):
    for _ in range(2):
        code, output = call("verify", "--store", place)
        assert code == 0
        assert output == (
            "4 snapshots read; 7 entries replayed from epoch 3 to 10, 2 later snapshots and 3 replies compared "
            "nothing is wrong"
        )
    with Store.open(place) as store:
        (entry,) = store.entries(after=4, limit=1)
        assert call("verify", "--store", place)[0] == 0  # beside a server
    flip_a_bit(place / "blobs" / entry.upload)
    code, output = call("verify", "--store", place)
    assert code == 1
    assert f"entry 5: the blob {entry.upload} is damaged: its sha256 is " in output
    assert output.endswith("1 finding")


def test_verify_claims_no_more_than_it_checked(toy, place):
    call("forget", "car-7", "--store", place)
    nothing = "nothing was replayed: there is no complete entry after epoch 10"
    assert call("verify", "--store", place) == (0, f"3 snapshots read; {nothing} nothing is wrong")


# -- rollback


def test_rollback(toy, place):
    code, output = call("rollback", "--store", place)
    assert code == 0
    assert output.startswith("the store is at epoch 10; there are snapshots of epoch 0, taken 20")
    assert re.search(r"epoch 9, taken [-0-9]+ [:0-9]+, 1 upload ago; mean loss [.0-9]+, worse than the best$", output)
    deletes = "a rollback to epoch 6 deletes 4 uploads of 3 clients, for good"
    said = f"{deletes}; `cdfl export` writes the models of today to files"
    result = CliRunner().invoke(app, ["rollback", "6", "--store", str(place)], input="n\n")
    assert result.exit_code == 1
    assert said in result.output
    assert "nothing was changed" in result.output
    with Store.open(place) as store:
        assert store.epoch == 10
        code, output = call("rollback", 6, "--store", place, "--yes")
        assert code == 2
        assert output.startswith("cdfl: the store is in use (process ")
    assert call("rollback", 6, "--store", place, "--yes") == (0, f"{said} the store is at epoch 6")
    code, output = call("rollback", 9, "--store", place, "--yes")
    assert (code, output) == (2, "cdfl: there is no snapshot of epoch 9; there are those of 0, 3, 6")
    with Store.open(place) as store:
        assert store.epoch == store.recover().state.epoch == 6
        assert not was_sent(store, "car-7", 10)


@pytest.mark.parametrize("harm", [flip_a_bit, Path.unlink], ids=["damaged", "missing"])
def test_no_way_back_to_a_snapshot_that_cannot_be_read(toy, place, harm):
    with Store.open(place) as store:
        first, *kept = store.snapshots()  # that of epoch 0 is harmed last
    blobs = [place / "blobs" / snapshot.models[1] for snapshot in kept]
    harm(blobs[0])
    everything = {path.name for path in (place / "blobs").iterdir()}
    code, output = call("rollback", 3, "--store", place)  # nobody is asked
    assert code == 2
    said = "cdfl: the snapshot of epoch 3 cannot be read, so nothing was deleted: the blob "
    assert output.startswith(f"{said}{blobs[0].name} is ")
    assert output.endswith("; restore it from a backup, or go back to 0 or 6 or 9, which can be read")
    assert call("rollback", 3, "--store", place, "--yes") == (code, output)
    assert {path.name for path in (place / "blobs").iterdir()} == everything
    with Store.open(place) as store:
        assert same_state(store.recover().state, toy.state)

    output = call("rollback", "--store", place)[1]
    assert f"7 uploads ago; cannot be read: the blob {blobs[0].name} is " in output
    assert output.count("cannot be read") == 1
    harm(blobs[2])
    output = call("rollback", 9, "--store", place, "--yes")[1]
    assert output.endswith("; restore it from a backup, or go back to 0 or 6, which can be read")
    assert call("rollback", 6, "--store", place, "--yes")[0] == 0
    harm(blobs[1])
    harm(place / "blobs" / first.models[1])
    output = call("rollback", 6, "--store", place, "--yes")[1]
    assert output.endswith("; restore it from a backup, no other one can be read")


# -- export


def test_export(toy, place, tmp_path):
    with Store.open(place):  # beside a server
        code, output = call("export", "--store", place, "--out", tmp_path / "now")
    assert code == 0
    assert output.endswith("cluster-0.safetensors, cluster-1.safetensors, cluster-2.safetensors, clusters.json")
    about = json.loads((tmp_path / "now" / "clusters.json").read_text())
    assert (about["epoch"], about["num_clusters"], about["dtype"]) == (10, 3, "float32")
    assert about["cluster_losses"] == toy.state.cluster_losses.tolist()
    assert about["tensors"]["0.weight"] == [2, 3]
    for cluster, expected in enumerate(toy.state.cluster_models):
        tensors = load_file(tmp_path / "now" / about["clusters"][cluster]["file"])
        assert tensors.keys() == set(LAYOUT.names)
        assert torch.equal(torch.cat([tensors[name].flatten() for name in LAYOUT.names]), expected)

    code, _ = call("export", "--store", place, "--out", tmp_path / "then", "--epoch", 6, "--dtype", "bfloat16")
    assert code == 0
    assert json.loads((tmp_path / "then" / "clusters.json").read_text())["epoch"] == 6
    assert load_file(tmp_path / "then" / "cluster-0.safetensors")["0.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--epoch", "5"], "there is no snapshot of epoch 5; there are those of 0, 3, 6, 9"),
        (["--dtype", "int8"], "dtype is 'int8'; expected one of float32, float16, bfloat16"),
    ],
)
def test_what_cannot_be_exported(toy, place, tmp_path, options, words):
    assert call("export", "--store", place, "--out", tmp_path / "out", *options) == (2, f"cdfl: {words}")
    assert not (tmp_path / "out").exists()
    code, output = call("export", "--store", place, "--out", place)
    assert (code, output) == (2, f"cdfl: {place} is not empty; name a new folder")


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_is_no_folder_to_export_to(toy, place, tmp_path, below):
    file = tmp_path / "file"
    file.write_text("mine")
    code, output = call("export", "--store", place, "--out", file / below)
    assert (code, output) == (2, f"cdfl: {file} is not a folder; name a new or empty one")
    assert file.read_text() == "mine"
