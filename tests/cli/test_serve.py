"""`cdfl init` and `cdfl serve`, as people run them."""

import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load, save
from typer.testing import CliRunner

from cdfl import wire
from cdfl.cli import app
from cdfl.cli.join import simulated_stream
from cdfl.problems.problem_instance import client_network
from cdfl.scenarios import load_problem

from ..certificate import make_certificate
from .small import call

pytestmark = pytest.mark.slow

QUICK = ("--set", "shared_epochs=1", "--set", "separate_epochs=1", "--device", "cpu")
NAME = {wire.CLIENT: "car-7"}
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
CDFL = str(Path(sys.executable).with_name("cdfl"))


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    path = tmp_path_factory.mktemp("setup") / "setup.py"
    code, output = call("init", path)
    assert code == 0
    assert f"cdfl serve {path} --open" in output
    return path


@contextmanager
def serving(setup, store, *options, end=signal.SIGTERM):
    """A server in a process of its own; yields its address and, once it has ended, what it said."""
    command = [CDFL, "serve", str(setup), "--store", str(store), "--port", "0"]
    process = subprocess.Popen(  # noqa: S603
        [*command, *QUICK, *options], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    said = []
    try:
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"serving on (\S+), epoch", line):
                yield found.group(1), said
                break
        else:
            raise AssertionError("".join(said))
        process.send_signal(end)
        said.append(process.communicate(timeout=20)[1])
        assert process.returncode == 0, said
    finally:
        process.kill()
        process.wait()


def test_pretrain_serve_stop_and_go_on_with_tokens_and_tls(setup, tmp_path):
    """Two starts, and what can be tried in between: each takes seconds."""
    store = tmp_path / "store"
    with serving(setup, store, "--open") as (url, said):
        model = httpx.get(f"{url}/v1/model", headers=NAME | {wire.REPLY: "model"})
        assert model.headers[wire.EPOCH] == "0"
        upload = {wire.BASE_EPOCH: "0", wire.KEY: "one", "Content-Type": wire.CONTENT_TYPE}
        trained = changed(model.content)
        reply = httpx.post(f"{url}/v1/updates", headers=NAME | upload, content=trained)
        assert reply.headers[wire.OUTCOME] == "applied"
        code, output = call("serve", setup, "--store", store, "--open", "--port", "0")
        assert (code, "in use" in output) == (2, True)
        port = url.rpartition(":")[2]
        code, output = call("serve", setup, "--store", tmp_path / "other", "--open", "--port", port)
        assert (code, f"cannot listen on 127.0.0.1 port {port}" in output) == (2, True)
    assert "stopped at epoch 1" in said[-1]
    assert said[0].startswith("listening on http://127.0.0.1:")
    assert said[1] == "pre-training, shared model\n"  # no terminal: a line, not a bar
    assert "training the router\n" in said

    cert, key = make_certificate(tmp_path)
    code, output = call("token", "create", "car-7", "--store", store)
    token = {"Authorization": f"Bearer {output.split()[-1]}"}
    with serving(setup, store, "--tls-cert", cert, "--tls-key", key, end=signal.SIGINT) as (url, said):
        assert url.startswith("https://")
        assert "epoch 1" in said[-1]
        with httpx.Client(base_url=url, verify=ssl.create_default_context(cafile=cert)) as http:
            assert http.get("/v1/model", headers=NAME).status_code == 401
            again = http.post("/v1/updates", headers=token | upload, content=trained)
            assert again.content == reply.content
            call("token", "revoke", "car-7", "--store", store)
            assert http.get("/v1/model", headers=token).status_code == 401
        idle = https(url, cert)  # it stays open, and says nothing when the server does
    idle.close()
    assert "stopped at epoch 1" in said[-1]


def changed(model):
    """A model that is a little different: one that is not changed at all moves nothing."""
    return save({name: part + 0.01 * torch.randn_like(part) for name, part in load(model).items()})


def https(url, cert):
    address = url.removeprefix("https://").split(":")
    return ssl.create_default_context(cafile=cert).wrap_socket(
        socket.create_connection(address), server_hostname=address[0]
    )


@pytest.mark.parametrize("end", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_told_to_stop_while_it_pretrains(setup, tmp_path, end):
    long = ("--set", "shared_epochs=100000", "--device", "cpu", "--open", "--port", "0")
    command = [CDFL, "serve", str(setup), "--store", str(tmp_path / "store"), *long]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)  # noqa: S603
    try:
        assert process.stderr.readline().startswith("listening on ")
        assert process.stderr.readline() == "pre-training, shared model\n"
        process.send_signal(end)
        said = process.communicate(timeout=20)[1]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, said
    assert said.endswith("stopped before it was open; the next start begins again\n")
    assert "Traceback" not in said


@pytest.mark.long
def test_told_to_stop_again_and_again(setup, tmp_path):
    """By somebody who is impatient: it is as if told once."""
    command = [CDFL, "serve", str(setup), "--store", str(tmp_path / "store"), "--open", "--port", "0", *QUICK]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)  # noqa: S603
    stopped = threading.Event()

    def tell():
        while not stopped.wait(0.002):
            process.send_signal(signal.SIGTERM)

    telling, said = threading.Thread(target=tell), []
    try:
        for line in process.stderr:
            said.append(line)
            if "serving on" in line:
                telling.start()
            if "stopped" in line:
                stopped.set()
        process.wait(timeout=20)
    finally:
        stopped.set()
        process.kill()
        process.communicate()
    assert (said[-1], process.returncode) == ("stopped at epoch 0\n", 0), said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--open", "--host", "0.0.0.0"], "--open on 0.0.0.0 would let any host that reaches it take part"),  # noqa: S104
        (["--open", "--host", "example.test"], "--open-to-anyone"),
        (["--tls-cert", "cert.pem"], "--tls-cert and --tls-key belong together"),
        (["--tls-cert", "no-cert.pem", "--tls-key", "no-key.pem"], "there is no file no-cert.pem"),
        (["--set", "base_rate=7"], "base_rate is 7"),
        (["--device", "abacus"], "device is 'abacus'"),
        (["--max-rate", "-1"], "Invalid value for '--max-rate': -1 is not a finite number above 0."),
        (["--max-rate", "inf"], "Invalid value for '--max-rate': inf is not a finite number above 0."),
        (["--idle-seconds", "nan"], "Invalid value for '--idle-seconds': nan is not a finite number above 0."),
        (["--stall-seconds", "0"], "Invalid value for '--stall-seconds': 0 is not a finite number above 0."),
        (["--max-body", "5"], "--max-body is 5; an upload of this model has "),
        (["--host", ""], "cannot listen on '': "),
        (["--host", "a..b"], "cannot listen on 'a..b': it is not the name of a host; give --host an address of this"),
    ],
)
def test_what_cannot_be_served(setup, tmp_path, options, words):
    code, output = call("serve", setup, "--store", tmp_path / "store", *options)
    assert code == 2
    assert words in output
    assert not (tmp_path / "store" / "store.db").exists()


def test_a_certificate_that_is_none(setup, tmp_path):
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("no PEM")
    options = ("--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem")
    code, output = call("serve", setup, "--store", tmp_path / "store", *options)
    assert code == 2
    assert "key.pem are not a certificate and its key; expected PEM files" in output


def test_a_key_with_a_pass_phrase(setup, tmp_path):
    cert, key = make_certificate(tmp_path)
    locked = tmp_path / "locked.pem"
    command = ["openssl", "rsa", "-aes256", "-passout", "pass:secret", "-in", str(key), "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603
    code, output = call("serve", setup, "--store", tmp_path / "store", "--tls-cert", cert, "--tls-key", locked)
    assert (code, output) == (2, f"cdfl: the key {locked} needs a pass phrase; expected a key without one")


def test_the_version():
    assert call("--version") == (0, f"cdfl {version('cdfl')}")
    as_module = [sys.executable, "-m", "cdfl", "--version"]
    assert subprocess.check_output(as_module, text=True) == f"cdfl {version('cdfl')}\n"  # noqa: S603


def test_a_file_that_is_not_there(tmp_path):
    code, output = call("serve", tmp_path / "none.py", "--store", tmp_path / "store")
    assert code == 2
    assert "cdfl init" in output


@pytest.mark.parametrize("command", ["serve", "run"])
def test_a_mistake_in_the_problem_is_one_line(setup, tmp_path, command):
    path = tmp_path / "mine.py"
    wrong = "def wrong(outputs, targets):\n    return outputs.mean() + missing\n"
    path.write_text(f"{wrong}{setup.read_text().replace('loss=cross_entropy', 'loss=wrong')}")
    options = ("--store", tmp_path / "store", "--open") if command == "serve" else ("--out", tmp_path / "store")
    code, output = call(command, path, "--device", "cpu", *options)
    assert code == 2
    assert output.startswith(f"cdfl: {path}, line 2: `loss(outputs, targets)` on cluster '0 degrees' with a tensor of")
    assert output.endswith(
        "failed with NameError: name 'missing' is not defined; expected one number, a tensor of shape []"
    )
    assert not (tmp_path / "store").exists()


def test_init_prints_commands_that_can_be_pasted(tmp_path):
    path = tmp_path / "ü b.py"
    _, *commands = CliRunner().invoke(app, ["init", str(path)]).output.splitlines()
    assert [shlex.split(command)[:2] for command in commands] == [["cdfl", "run"], ["cdfl", "serve"], ["cdfl", "join"]]
    assert all(str(path) in shlex.split(command) for command in commands)


def test_init_leaves_a_file_alone(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("mine")
    code, output = call("init", path)
    assert code == 2
    assert "exists; name another file" in output
    assert path.read_text() == "mine"


def test_the_example_streams_drift(setup):
    problem = load_problem(str(setup))
    model = client_network(problem)
    for inputs, targets in islice(simulated_stream(problem, "car-7"), 20):
        assert model(inputs).shape == (len(targets), 10) == (100, 10)


def test_the_page_names_flags_that_exist():
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "server.md").read_text()
    commands = ["serve", "token create", "token list", "token revoke", "verify", "forget", "rollback", "export", "init"]
    known = {flag for command in commands for flag in re.findall(r"--[a-z-]+", call(*command.split(), "--help")[1])}
    named = set(re.findall(r"--[a-z][a-z-]+", page))
    assert len(named) > 15
    assert named <= known
    for command in re.findall(r"^cdfl (\w+(?: (?:create|list|revoke))?)", page, re.MULTILINE):
        assert command in commands
