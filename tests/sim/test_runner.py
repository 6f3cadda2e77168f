"""Runs by name, from Python."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import cdfl
from cdfl.algorithms import ALGORITHMS, CDFL
from cdfl.api import run
from cdfl.core import Settings, paper, reading
from cdfl.run_events import Clusters, Finished, Separated, Started
from cdfl.run_folder import RunFolder
from cdfl.scenarios import load_scenario
from cdfl.sim.presets import PRESETS, preset_for
from cdfl.sim.runner import configure, run_events
from cdfl.sim.time_models import TICKS_TRIED, Devices, FewActive, Sessions, Span, Tick, Uniform
from cdfl.upload_policies import Sometimes

from .world import SETTINGS, make_scenario, normed

pytestmark = pytest.mark.slow

SMALL = make_scenario(settings=SETTINGS.leaves(), num_uploads=12, num_clients=5)


class Patient(CDFL):
    """CDFL that moves its clusters half as far."""

    name = "patient"

    def __init__(self, settings):
        super().__init__(settings.replace(base_rate=settings.rates.base_rate / 2))


class Decides:
    def __init__(self, decide):
        self.decide = decide


class Turning:
    def __init__(self, *given):
        self.given = given

    def ticks(self, num_clients, rng):
        yield from self.given


class Unnamed(CDFL):
    pass


class Spaced(CDFL):
    name = "two words"


@pytest.fixture(autouse=True)
def _names_stay_as_they_are(monkeypatch):
    monkeypatch.setattr("cdfl.algorithms.ALGORITHMS", dict(ALGORITHMS))


def test_a_run_tells_everything_in_order():
    seen = []
    result = cdfl.run(SMALL, seed=3, on_event=seen.append)
    assert result.events == seen
    assert isinstance(result, cdfl.Run)
    assert result.events[0] == Started(
        "small",
        "cdfl",
        3,
        5,
        4,
        12,
        310 * 4,
        [{"name": "accuracy", "higher_is_better": True}],
        ["0°", "90°", "180°", "270°"],
    )
    assert isinstance(result.events[1], Clusters)
    assert isinstance(result.events[2], Separated)
    assert isinstance(result.events[-1], Finished)
    assert result.summary is result.events[-1]
    assert [event.epoch for event in result.uploads] == list(range(1, 13))
    assert result.summary.uploads == 12
    assert sum(result.summary.staleness.values()) == 12


def test_same_seed_same_bytes_and_another_seed_other_bytes(tmp_path):
    def bytes_of(name, **options):
        run(SMALL, out=tmp_path / name, **options)
        return (tmp_path / name / "events.jsonl").read_bytes()

    first = bytes_of("first", seed=1)
    assert bytes_of("again", seed=1) == first
    assert bytes_of("other", seed=2) != first
    assert bytes_of("algorithm", seed=1, algorithm="oracle") != first


def test_the_default_scenario_learns():
    """What CDFL is for: after a few uploads each, the reply is better than what the client uploaded."""
    result = run("digits-4", num_uploads=60, num_clients=20, shared_epochs=4, local_epochs=2)
    assert result.summary.after > result.summary.before
    assert result.summary.cluster > 0.5


def test_a_run_folder_holds_the_resolved_settings(tmp_path):
    result = run(SMALL, out=tmp_path / "run", algorithm="fedbuff", seed=2, policy="sometimes", base_rate=0.25)
    folder = RunFolder(tmp_path / "run")
    assert folder.events() == result.events
    config = folder.config()
    assert config == result.config
    expected = json.loads(json.dumps(SETTINGS.replace(base_rate=0.25).to_dict()))
    assert config["settings"] == expected  # every one of them, not only those that were given
    assert (
        config["algorithm"],
        config["seed"],
        config["policy"]["kind"],
        config["time_model"]["kind"],
        config["device"],
    ) == (
        "fedbuff",
        2,
        "Sometimes",
        "Uniform",
        "cpu",
    )
    assert config["precision"] == "float32"
    assert config["scenario"]["clusters"]["kind"] == "Rotations"
    assert config["scenario"]["sizes"]["low"] == 4
    versions = json.loads((tmp_path / "run" / "versions.json").read_text())
    assert set(versions) >= {"python", "cdfl", "torch", "numpy"}
    with pytest.raises(FileExistsError, match="already holds a run; name another folder"):
        run(SMALL, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "fedavg"}, "there is no algorithm 'fedavg'; there are cdfl, fedsoft"),
        ({"algorithm": Patient(SETTINGS)}, "algorithm is a Patient object; pass the class Patient"),
        ({"algorithm": Sometimes}, "Sometimes has no network, initial, join, .*; expected a name, or a class with"),
        ({"algorithm": Unnamed}, "Unnamed has the name 'cdfl'; expected another one than .*, e.g. name = 'unnamed'"),
        ({"algorithm": Spaced}, "Spaced has the name 'two words'; expected a word of letters"),
        ({"time_model": "never"}, "there is no time model 'never', and no trace file; there are uniform, sessions"),
        ({"policy": "maybe"}, "there is no policy 'maybe'; there are always"),
        (
            {"policy": 3},
            r"policy is 3; expected a name \(always, .*\), or an object with decide\(memory, observation\) -> ",
        ),
        ({"policy": Sometimes}, r"policy is the class Sometimes; expected .*: Sometimes\(\.\.\.\)"),
        (
            {"policy": Decides(lambda memory: True)},
            r"policy has Decides.decide\(memory\); expected a name .*, or an object with decide",
        ),
        ({"policy": Decides(lambda memory, turn: True)}, r"Decides.decide returned True; expected \(memory, bool\)"),
        (
            {"policy": Decides(lambda memory, turn: ([], True))},
            r"Decides.decide returned the memory \[\]; expected a tuple of",
        ),
        (
            {"policy": Decides(lambda memory, turn: ((), "no"))},
            "Decides.decide returned 'no' as its decision; expected True",
        ),
        (
            {"time_model": 0},
            r"time_model is 0; expected a name \(uniform, .*\), or an object with ticks\(num_clients, rng\)",
        ),
        ({"time_model": Uniform}, r"time_model is the class Uniform; expected .*: Uniform\(\.\.\.\)"),
        ({"time_model": Turning((0.0, 1))}, r"Turning.ticks gave \(0.0, 1\); expected cdfl.sim.time_models.Tick"),
        ({"time_model": Turning(Tick(0.0, 1))}, "lets client 1 turn while it is absent; expected it to join first"),
        (
            {"time_model": Turning(Tick(2.0, 1, "join"), Tick(1.0, 1))},
            r"Turning.ticks goes from time 2.0 to 1.0; expected finite numbers that never decrease",
        ),
        (
            {"time_model": Turning((0.0, 1, "join"))},
            r"Turning.ticks gave \(0.0, 1, 'join'\); expected cdfl.sim.time_models",
        ),
        ({"time_model": Turning(Tick(float("nan"), 1, "join"))}, "goes from time 0.0 to nan; expected finite numbers"),
        ({"time_model": Turning(Tick("noon", 1, "join"))}, "goes from time 0.0 to 'noon'; expected finite numbers"),
        ({"time_model": Turning(Tick(0.0, 5, "join"))}, "gave client 5; expected an int from 0 to 4"),
        ({"time_model": Turning(Tick(0.0, "car", "join"))}, "gave client 'car'; expected an int from 0 to 4"),
        ({"preset": "best"}, "there is no preset 'best'; there are default, experts, paper"),
        ({"preset": "paper"}, "the paper does not run small; use preset 'default'"),
        ({"precision": "float8"}, "precision is 'float8'; expected one of float32"),
        ({"device": "tpu"}, "device is 'tpu'; expected auto, cpu, cuda or cuda:N"),
        ({"device": "cuda:x"}, "device is 'cuda:x'; expected auto, cpu, cuda or cuda:N"),
        ({"device": "cuda:99"}, "device is 'cuda:99', but this machine has no such GPU"),
        ({"seed": -1}, "seed is -1; expected a whole number, 0 or more"),
        ({"seed": 1.5}, "seed is 1.5; expected a whole number, 0 or more"),
        ({"num_uploads": 1.5}, "num_uploads is 1.5; expected a whole number, 1 or more"),
        ({"num_uploads": 0}, "num_uploads is 0; expected a whole number, 1 or more"),
        ({"num_clients": -2}, "num_clients is -2; expected a whole number, 1 or more"),
        ({"baserate": 3}, r"there is no option or setting 'baserate'; did you mean base_rate\?"),
        ({"base_rate": 25}, "base_rate is 25; expected a number from 0 to 1"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        run(SMALL, out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


JOINED = [Tick(0.0, client, "join") for client in range(5)]
TURNS = [Tick(1.0 + number, number % 5) for number in range(TICKS_TRIED)]
LATER = [
    ([Tick(0.5, 0)], r"goes from time 100.0 to 0.5; expected finite numbers that never decrease"),
    ([Tick(float("nan"), 0)], "goes from time 100.0 to nan"),
    ([Tick(200.0, 1, "leave"), Tick(201.0, 1)], "lets client 1 turn while it is absent; expected it to join first"),
    ([Tick(200.0, 1, "leave"), Tick(201.0, 1, "leave")], "lets client 1 leave while it is absent"),
    ([Tick(200.0, 1, "peek")], r"gave Tick\(time=200.0, client=1, kind='peek'\); expected .* turn, join or leave"),
    ([(200.0, 1, "turn")], r"gave \(200.0, 1, 'turn'\); expected cdfl.sim.time_models.Tick"),
]


@pytest.mark.parametrize(("ticks", "message"), LATER)
@pytest.mark.parametrize("policy", ["always", Decides(lambda memory, turn: ((), False))], ids=["always", "never"])
def test_turns_are_checked_as_long_as_they_come(ticks, message, policy):
    config = configure(SMALL, time_model=Turning(*JOINED, *TURNS, *ticks), policy=policy, num_uploads=TICKS_TRIED + 9)
    with pytest.raises(ValueError, match=message):
        list(run_events(config))


def test_turns_may_be_numbers_of_numpy():
    ticks = [*JOINED, Tick(np.float32(1), np.int64(3)), Tick(np.int64(2), 4)]
    result = run(SMALL, time_model=Turning(*ticks), num_uploads=2)
    told = [(upload.time, upload.client) for upload in result.uploads]
    assert json.loads(json.dumps(told)) == [[1.0, 3], [2.0, 4]]


def test_a_client_may_leave_and_join_again():
    ticks = [*JOINED, Tick(1.0, 3), Tick(2.0, 3, "leave"), Tick(2.0, 3, "join"), Tick(3.0, 3)]
    result = run(SMALL, time_model=Turning(*ticks), num_uploads=2)
    assert [(upload.time, upload.client, upload.update) for upload in result.uploads] == [(1.0, 3, 0), (3.0, 3, 0)]


def test_an_unknown_scenario():
    with pytest.raises(ValueError, match="fashion-mnist-5"):
        configure("fashion-mnist-5")
    with pytest.raises(ValueError, match=r"there is no file mine.toml; expected a .toml file"):
        configure(Path("mine.toml"))
    with pytest.raises(ValueError, match=r"a problem is 3; expected cdfl.Problem, the name of a scenario, or a file"):
        configure(3)


def test_presets():
    digits = load_scenario("digits-4")
    assert preset_for(digits, "default") == Settings().replace(**digits.settings)
    fashion = load_scenario("fashion-mnist-4")
    assert preset_for(fashion, "paper") == paper("fashion-mnist-4").replace(max_staleness=80)
    smaller = configure("fashion-mnist-4", preset="paper", num_clients=10, base_rate=0.5)
    assert (smaller.settings.rates.max_staleness, smaller.settings.rates.base_rate) == (10, 0.5)
    assert preset_for(fashion, "paper-reading") == reading("fashion-mnist-4").replace(max_staleness=80)
    assert list(PRESETS) == ["default", "experts", "paper", "paper-reading"]
    unequal = load_scenario("digit-recognition")  # what a scenario asks for is not for what the paper prints
    assert [preset_for(unequal, name).estimate.measures for name in PRESETS] == ["relative"] * 2 + ["plain"] * 2


def test_a_preset_says_who_is_there_when_unless_the_run_does():
    times = {name: configure("fashion-mnist-4", preset=name).time_model for name in PRESETS}
    assert times == {"default": Uniform(), "experts": Uniform(), "paper": Uniform(), "paper-reading": FewActive(4, 5)}
    assert configure("fashion-mnist-4", preset="paper-reading", time_model="sessions").time_model == Sessions()


def test_a_time_model_may_be_a_trace_file_and_a_policy_an_object(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("1, 2\n0.5\n")
    config = configure(SMALL, time_model=str(trace), policy=Sometimes(0.25))
    assert config.time_model == Devices(wait=Span("trace", trace=((1.0, 2.0), (0.5,))))
    stored = json.loads(json.dumps(config.to_json()))
    assert stored["time_model"]["wait"]["trace"] == [[1.0, 2.0], [0.5]]
    assert stored["policy"] == {"kind": "Sometimes", "probability": 0.25}


def test_an_algorithm_of_ones_own_runs_and_is_recorded_by_its_name(tmp_path):
    own = run(SMALL, algorithm=Patient, out=tmp_path / "own")
    assert own.algorithm == own.events[0].algorithm == RunFolder(tmp_path / "own").config()["algorithm"]
    slow = run(SMALL, base_rate=SETTINGS.rates.base_rate / 2)
    assert own.uploads == slow.uploads  # its own settings count
    assert run(SMALL, algorithm="patient").events == own.events  # now that it has been seen, its name will do


def test_a_network_of_ones_own(tmp_path):
    own = replace(SMALL, model=normed)
    result = run(own, out=tmp_path / "own")
    assert result.uploads == run(replace(SMALL, model="normed")).uploads
    assert RunFolder(tmp_path / "own").config()["scenario"]["model"] == f"{normed.__module__}.normed"
    with pytest.raises(ValueError, match=r"`model\(input_shape, num_outputs\)` is a list of 0; expected a torch.nn"):
        run(replace(SMALL, model=lambda input_shape, num_classes: []))
    with pytest.raises(ValueError, match=r"`model` is of type int; expected a torch.nn.Module"):
        replace(SMALL, model=7)


class Tires:
    """A policy that returns rubbish after five decisions."""

    def decide(self, memory, turn):
        turns = len(memory) + 1
        return (*memory, 1.0) if turns > 5 else ((*memory, 1.0), False)


def test_a_policy_is_checked_whenever_it_is_asked():
    with pytest.raises(ValueError, match=r"Tires.decide returned \(1.0, 1.0, .*; expected \(memory, bool\)"):
        run(SMALL, policy=Tires())
