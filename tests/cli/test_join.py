"""`cdfl join`: a client on the command line."""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

from cdfl.cli.join import turn_text, wait_for_server
from cdfl.client import Reply, ServerAwayError, Turn, UntrustedError
from tests.cli.small import call
from tests.client.site import Site
from tests.client.toy import ToyServer

pytestmark = pytest.mark.slow

SETUP = """
import cdfl
from tests.client.toy import make_data, make_model
from cdfl.upload_policies import EverySamples


def stream(client_id):
    for turn in range(6):
        yield make_data(turned=turn >= 3, seed=turn)


problem = cdfl.Problem(
    model=make_model,
    settings=cdfl.Settings(learning_rate=0.01, batch_size=8, local_epochs=2),
    policy=EverySamples(48),
    stream=stream,
)
"""


@pytest.fixture
def site():
    site = Site(ToyServer())
    yield site
    site.close()


@pytest.fixture
def setup(tmp_path: Path) -> Path:
    path = tmp_path / "setup.py"
    path.write_text(SETUP)
    return path


def test_join(site, setup):
    code, said = call("join", site.url, "--client-id", "car-7", "--setup", setup)
    assert (code, said) == (0, "car-7: joined, epoch 0, mixture 0.50 0.50")


def test_watch(site, setup, tmp_path):
    command = ("join", site.url, "--client-id", "car-7", "--setup", setup, "--watch", "--every", 0)
    code, said = call(*command, "--turns", 3, "--state-dir", tmp_path / "state")
    assert code == 0
    assert "turn 1: 24 samples car-7: turn 2: 24 samples; trained and uploaded; applied, epoch 1" in said
    assert "turn 4" not in said
    code, said = call(*command, "--state-dir", tmp_path / "state")
    assert code == 0
    assert "joined, epoch 1" in said
    assert "turn 1: 24 samples; trained and uploaded; applied, epoch 2" in said  # 24 were left over
    assert len(site.server.applied) == 4


def test_policy_and_settings_options(site, setup):
    command = ("join", site.url, "--client-id", "car-7", "--setup", setup, "--watch", "--every", 0)
    code, said = call(*command, "--policy", "always", "--set", "local_epochs=1", "--dtype", "bfloat16", "--compress")
    assert code == 0
    assert said.count("trained and uploaded") == 6
    assert site.server.requests[-1].headers["Content-Encoding"] == "zstd"
    assert site.server.requests[-1].url.params["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "never"], "there is no policy 'never'; there are always,"),
        (["--set", "speed=1"], "there is no setting 'speed'"),
        (["--dtype", "int8"], "dtype is 'int8'"),
        (["--client-id", "no spaces"], "expected 1 to 64 characters"),
        (["--setup", "missing.py"], "there is no file missing.py; `cdfl init` writes an example"),
        (["--token", ""], "the token is empty; omit it if the server needs none"),
        (["--verify", "missing.pem"], "missing.pem is not a readable certificate; expected a PEM file"),
    ],
)
def test_errors_are_one_line(site, setup, arguments, words):
    code, said = call("join", site.url, "--client-id", "car-7", "--setup", setup, *arguments)
    assert code == 2
    assert words in said


NET = "import cdfl\nfrom tests.client.toy import make_data, make_model\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model=3", "`model` is of type int; expected a torch.nn.Module"),
        ("model=make_model, settings=3", "`settings` is of type int; expected cdfl.Settings"),
        ("model=make_model, loss=5", "`loss` is of type int; expected a function of (outputs, targets)"),
        (
            "model=make_model, stream=[1]",
            "`stream` is a list of 1; expected a function: client_id -> iterable",
        ),
        ("model=make_model, policy=5", "`policy` is 5; expected an object with decide(memory, observation)"),
    ],
)
def test_set_up_files_with_wrong_values(site, tmp_path, text, words):
    path = tmp_path / "mine.py"
    path.write_text(f"{NET}problem = cdfl.Problem({text})")
    code, said = call("join", site.url, "--client-id", "car-7", "--setup", path)
    assert code == 2
    assert said.startswith(f"cdfl: {path}, line 3: {words}")


def test_watch_needs_data_and_a_policy(site, tmp_path):
    path = tmp_path / "mine.py"
    command = ("join", site.url, "--client-id", "car-7", "--setup", path, "--watch")
    path.write_text(f"{NET}problem = cdfl.Problem(model=make_model)")
    code, said = call(*command)
    assert (code, "there are no `clusters`; expected the data of each" in said) == (2, True)
    decide = "class Mine:\n    def decide(self, memory, observation): return True\n"
    given = "model=make_model, policy=Mine(), stream=lambda client_id: [make_data()]"
    path.write_text(f"{NET}{decide}problem = cdfl.Problem({given})")
    code, said = call(*command)
    assert (code, said.endswith("cdfl: Mine.decide returned True; expected (memory, bool)")) == (2, True)


def test_without_a_stream_a_simulated_client_is_watched(site, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        f"{NET}problem = cdfl.Problem(model=make_model, clusters=[make_data(count=80), make_data(True, 80)])"
    )
    command = ("join", site.url, "--client-id", "car-7", "--setup", path, "--watch", "--every", 0, "--turns", 2)
    code, said = call(*command, "--policy", "always", "--set", "local_epochs=1")
    assert code == 0
    assert said.count("trained and uploaded") == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model = (", "line 1: invalid Python: '(' was never closed"),
        (
            "import cdfl\nproblem = cdfl.Problem(model=lambda: 1 / 0)",
            "line 2: `model()` failed with ZeroDivisionError: division by zero; expected a torch",
        ),
        (
            f"{NET}problem = cdfl.Problem(model=make_model, stream=lambda client_id: [][0])",
            "line 3: `stream('car-7')` failed with IndexError: list index out of range; expected an iterable",
        ),
    ],
)
def test_errors_in_set_up_files_are_one_line(site, tmp_path, text, words):
    path = tmp_path / "mine.py"
    path.write_text(text)
    code, said = call("join", site.url, "--client-id", "car-7", "--setup", path, "--watch")
    assert code == 2
    assert f"cdfl: {path}, {words}" in said


def test_a_set_up_file_may_import_its_neighbours(site, setup, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (setup.parent / "my_layers.py").write_text("from tests.client.toy import make_model")
    setup.write_text("import cdfl\nfrom my_layers import make_model\nproblem = cdfl.Problem(model=make_model)")
    assert call("join", site.url, "--client-id", "car-7", "--setup", setup)[0] == 0


def test_a_turn_as_text():
    reply = Reply(7, (0.25, 0.75), "applied")
    refreshed = Reply(9, (1.0,), "refreshed", detail="never sent")
    assert turn_text(Turn(1, 40, None, decided=False)) == "turn 1: 40 samples"
    assert turn_text(Turn(2, 40, 0.5, decided=False, pending=True)).endswith("0.500; an upload waits for the server")
    assert turn_text(Turn(3, 40, 0.5, decided=True, pending=True)).endswith(
        "the server is away, the upload is sent later"
    )
    assert turn_text(Turn(4, 40, 0.5, decided=False, reply=reply)).endswith(
        "was sent; applied, epoch 7, mixture 0.25 0.75"
    )
    assert turn_text(Turn(5, 40, 0.5, decided=True, reply=refreshed)).endswith(
        "uploaded; refreshed, epoch 9, mixture 1.00"
    )
    assert turn_text(Turn(6, 40, 0.5, decided=True, error="nothing was uploaded")).endswith("; nothing was uploaded")


def test_a_server_that_is_away(setup, monkeypatch):
    monkeypatch.setattr(import_module("cdfl.cli.join"), "PATIENCE", 0.0)
    site = Site(ToyServer())
    site.close()
    code, said = call("join", site.url, "--client-id", "car-7", "--setup", setup)
    assert code == 2
    assert f"{site.url} does not answer" in said


class Doors:
    """A client whose server is away a few times, in different ways."""

    def __init__(self, *errors):
        self.errors, self.waits = list(errors), []

    def join(self):
        if self.errors:
            raise self.errors.pop(0)
        return "joined"

    def wait_for(self, **options):
        return wait_for_server(self, sleep=self.waits.append, **options)


AWAY = ServerAwayError("it does not answer")
STARTING = ServerAwayError("503: pre-training, cluster 2 of 4, about 40 s left", retry_after=10.0)


def test_waiting_is_said_once(capsys):
    doors = Doors(*[AWAY] * 30, *[STARTING] * 30, *[AWAY] * 30)
    assert doors.wait_for(forever=True) == "joined"
    assert capsys.readouterr().err.splitlines() == [
        f"cdfl: {AWAY}; waiting for it",
        f"cdfl: {STARTING}; waiting for it",
    ]
    assert all(0 < wait <= 15 for wait in doors.waits)
    assert min(doors.waits[30:60]) >= 10  # as the server asked


def test_a_server_that_asks_to_wait_is_waited_for(monkeypatch):
    monkeypatch.setattr(import_module("cdfl.cli.join"), "PATIENCE", 0.0)
    assert Doors(*[STARTING] * 30).wait_for(forever=False) == "joined"
    with pytest.raises(ServerAwayError):
        Doors(STARTING, AWAY).wait_for(forever=False)


def test_a_certificate_that_is_not_trusted_is_not_waited_for():
    with pytest.raises(UntrustedError):
        Doors(UntrustedError("CERTIFICATE")).wait_for(forever=True)


def test_json_lines(site, setup):
    command = ("join", site.url, "--client-id", "car-7", "--setup", setup, "--watch", "--every", 0, "--turns", 2)
    code, said = call(*command, "--json", squeeze=False)
    assert code == 0
    joined, first, second = map(json.loads, said.splitlines())
    assert (joined["client_id"], joined["reply"]["outcome"]) == ("car-7", "joined")
    assert (first["number"], first["decided"], first["reply"]) == (1, False, None)
    assert (second["samples"], second["reply"]["epoch"]) == (24, 1)


def test_a_missing_package_names_one_remedy(site, setup, monkeypatch):
    monkeypatch.setitem(sys.modules, "river", None)
    command = ("join", site.url, "--client-id", "car-7", "--setup", setup, "--watch", "--policy", "adwin")
    code, said = call(*command)
    assert code == 2
    assert said.endswith("cdfl: drift detectors need the package river: pip install 'cdfl[client]'")
