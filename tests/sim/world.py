"""A federation small enough to run hundreds of uploads in a second, and ways to compare runs of it."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

import pytest
import torch
from torch import Tensor, nn

from cdfl.algorithms import Algorithm, make_algorithm
from cdfl.core import Settings
from cdfl.data import Sizes
from cdfl.models import MODELS
from cdfl.run_events import Event
from cdfl.scenarios import Scenario, load_scenario
from cdfl.sim.engine import Engines
from cdfl.sim.engine_choice import make_engines
from cdfl.sim.reference_simulation import simulate
from cdfl.sim.scenario_instance import ScenarioInstance
from cdfl.sim.simulation import Simulation
from cdfl.sim.time_models import TimeModel, Uniform
from cdfl.upload_policies import ALWAYS, Policy


def tiny(input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """The smallest network with a convolution and a pooling layer."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, num_classes)
    )


def normed(input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """With batch norm: its statistics travel with the model, its counter does not."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(27, num_classes),
    )  # fmt: skip


def counting(input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """With batch norm that averages over all batches: it needs its counter."""
    network = normed(input_shape, num_classes)
    network[1].momentum = None
    return network


def dropping(input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """With dropout: it draws random numbers in training."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, num_classes))


def frozen(input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """With a part that is not trained, between parts that are."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, num_classes))
    network[3].requires_grad_(False)
    return network


class Branching(nn.Module):
    """Goes one of two ways, depending on what it computes: nothing that vmap could follow."""

    def __init__(self, input_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(64, num_classes), nn.Linear(64, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(1)
        return self.one(flat) if flat.mean() < -0.4 else self.other(flat)


class Noisy(nn.Module):
    """Draws random numbers without any layer that is known for it."""

    def __init__(self, input_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(64, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(1)
        return self.layer(flat + 0.1 * torch.randn_like(flat) if self.training else flat)


NETWORKS = {
    "tiny": tiny,
    "normed": normed,
    "counting": counting,
    "dropping": dropping,
    "frozen": frozen,
    "branching": Branching,
    "noisy": Noisy,
}
MODELS.update(NETWORKS)  # names that no scenario of the library uses

SETTINGS = Settings(  # with the mean as floor, so that some clusters move and others do not
    batch_size=8, local_epochs=1, shared_epochs=1, separate_epochs=1, learning_rate=3e-3, rate_floor="mean"
)
UNIFORM = Uniform()
SIZES = Sizes(low=4, high=12, test=10, pretraining=12, proxy=12)


def make_scenario(**changes: object) -> Scenario:
    changes = {"num_clients": 12, "num_uploads": 40, "model": "tiny", "sizes": SIZES, "settings": {}, **changes}
    return replace(load_scenario("digits-4"), name="small", **changes)


def make_instance(
    settings: Settings = SETTINGS, *, seed: int = 0, dtype: torch.dtype = torch.float64, **changes: object
) -> ScenarioInstance:
    scenario = make_scenario(**changes)
    return ScenarioInstance(scenario, scenario.federation(seed), settings, dtype)


class Result:
    """What came out of a run: its events, and the cluster models at its end."""

    def __init__(self, events: Iterable[Event], algorithm: Algorithm) -> None:
        states = []
        update = algorithm.server_update

        def watched(*given: object) -> object:
            answer = update(*given)
            states.append(answer[0])
            return answer

        algorithm.server_update = watched
        self.events = list(events)
        self.models = algorithm.cluster_models(states[-1]) if states else None


def run_plain(
    instance: ScenarioInstance, name: str = "cdfl", time_model: TimeModel = UNIFORM, policy: Policy = ALWAYS
) -> Result:
    algorithm = make_algorithm(name, instance.settings)
    return Result(simulate(instance, algorithm, time_model, policy), algorithm)


def run_fast(
    instance: ScenarioInstance,
    name: str = "cdfl",
    time_model: TimeModel = UNIFORM,
    policy: Policy = ALWAYS,
    width: int | None = 64,
    engines: Engines | None = None,
) -> Result:
    algorithm = make_algorithm(name, instance.settings)
    engines = engines or make_engines(instance, algorithm, width=width)
    return Result(Simulation(instance, algorithm, time_model, engines, policy).events(), algorithm)


def assert_same_events(ours: Sequence[Event], theirs: Sequence[Event], tolerance: float = 1e-9) -> None:
    """Every event, every field: words and whole numbers equal, others to the tolerance."""
    assert [type(event).__name__ for event in ours] == [type(event).__name__ for event in theirs]
    for one, other in zip(ours, theirs, strict=True):
        for (name, mine), yours in zip(asdict(one).items(), asdict(other).values(), strict=True):
            numbers = [float(value) for value in _numbers(mine)]
            expected = [float(value) for value in _numbers(yours)]
            assert numbers == pytest.approx(expected, abs=tolerance, rel=0), (name, one, other)
            assert _others(mine) == _others(yours), (name, one, other)


def _numbers(value: object) -> list[float]:
    """All fractions in a value, in order."""
    if isinstance(value, dict | list):
        return [number for part in (value.values() if isinstance(value, dict) else value) for number in _numbers(part)]
    return [value] if isinstance(value, float) else []


def _others(value: object) -> object:
    """A value without its fractions."""
    if isinstance(value, dict):
        return {name: _others(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_others(part) for part in value]
    return 0.0 if isinstance(value, float) else value


def assert_same(ours: Result, theirs: Result, tolerance: float = 1e-9) -> None:
    assert_same_events(ours.events, theirs.events, tolerance)
    assert (ours.models - theirs.models).abs().max() <= tolerance
