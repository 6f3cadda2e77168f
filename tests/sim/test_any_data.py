"""Samples, losses and metrics other than pictures, cross-entropy and accuracy: the fast run equals the reference."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cdfl.data import Dataset, Datasets
from cdfl.metrics import METRICS, Metric, find_metrics
from cdfl.run_events import Clusters, Started, Uploaded, only
from cdfl.sim.client_stack import Stack
from cdfl.sim.engine_choice import can_stack, make_engines, takes_channels_last
from cdfl.sim.scenario_instance import ScenarioInstance

from .world import SETTINGS, assert_same, make_scenario, run_fast, run_plain

pytestmark = pytest.mark.slow

GENERATOR = torch.Generator().manual_seed(0)


def datasets(make, targets=lambda inputs, angle: inputs, num_classes=None, count=80) -> Datasets:
    """Four clusters: the same kind of inputs, and targets that depend on an angle."""
    made = []
    for number in range(4):
        halves = []
        for size in (count, count // 2):
            inputs = make(size)
            halves += [inputs, targets(inputs, torch.tensor(float(number)))]
        made.append(Dataset(f"turned {number}", *halves, num_classes=num_classes))
    return Datasets(tuple(made))


def numbers(count: int) -> Tensor:
    return torch.randn(count, 3, generator=GENERATOR)


def tokens(count: int) -> Tensor:
    return torch.randint(0, 7, (count, 5), generator=GENERATOR)


class Tokens(nn.Module):
    """The next token from the last one: scores (n, classes, places)."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(num_outputs, 4), nn.Linear(4, num_outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.embedding(inputs)).mT


class Viewing(nn.Module):
    """Works only on images that are stored channels first."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(12, num_outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs.view(len(inputs), -1))


def branching_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that vmap cannot follow."""
    errors = (outputs - targets).abs()
    return errors.mean() if float(errors.detach().max()) > 2 else errors.square().mean()


def linear(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(input_shape[-1], 6), nn.Tanh(), nn.Linear(6, num_outputs))


def recurrent(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """torch's own GRU, which vmap cannot take."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.last = nn.GRU(1, 4, batch_first=True), nn.Linear(4, num_outputs)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.last(self.gru(inputs[..., None])[0][:, -1])

    return Recurrent()


CASES = {
    "a table, two numbers to predict": {
        "clusters": datasets(numbers, lambda x, a: torch.stack([x[:, 0] * a.cos(), x[:, 1] * a.sin()], dim=1)),
        "model": linear, "loss": F.mse_loss, "metrics": ("rmse", "r2"),
    },
    "a table with classes": {
        "clusters": datasets(numbers, lambda x, a: (x[:, 0] * a.cos() > x[:, 1] * a.sin()).long(), 2),
        "model": linear, "metrics": ("accuracy", "perplexity"),
    },
    "tokens": {
        "clusters": datasets(tokens, lambda x, a: (x + int(a)) % 7, 7),
        "model": Tokens, "metrics": ("bits", "accuracy"),
    },
    "a loss of one's own": {
        "clusters": datasets(numbers, lambda x, a: x[:, :1] * a.cos()),
        "model": linear, "loss": lambda outputs, targets: (outputs - targets).pow(4).mean(), "metrics": (),
    },
    "a loss that branches": {
        "clusters": datasets(numbers, lambda x, a: 3 * x[:, :1] * a.cos()),
        "model": linear, "loss": branching_loss, "metrics": ("mae",),
    },
    "a recurrent network of torch": {
        "clusters": datasets(numbers, lambda x, a: x[:, :1] * a.cos()),
        "model": recurrent, "loss": F.mse_loss, "metrics": ("mae",),
    },
    "images of floating-point numbers": {
        "clusters": datasets(
            lambda count: torch.randn(count, 3, 2, 2, generator=GENERATOR),
            lambda x, a: (x.mean((1, 2, 3)) * a.cos() > 0).long(), 2,
        ),
        "model": lambda shape, classes: nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(4, classes)),
        "metrics": ("accuracy",),
    },
    "images and a network that views them": {
        "clusters": datasets(
            lambda count: torch.randint(0, 256, (count, 3, 2, 2), dtype=torch.uint8, generator=GENERATOR),
            lambda x, a: (x.float().mean((1, 2, 3)) > 100 + a).long(), 2,
        ),
        "model": Viewing, "metrics": ("accuracy",),
    },
    "a target of many places": {
        "clusters": datasets(
            lambda count: torch.randint(0, 256, (count, 1, 4, 4), dtype=torch.uint8, generator=GENERATOR),
            lambda x, a: (x[:, 0] > 100 + a).long(), 2,
        ),
        "model": lambda shape, classes: nn.Conv2d(1, classes, 3, padding=1), "metrics": ("accuracy",),
    },
}  # fmt: skip
STACKS = [name for name in CASES if name != "a recurrent network of torch"]


def make_instance(name: str, **changes: object) -> ScenarioInstance:
    case = {"loss": F.cross_entropy, "sizes": None, **CASES[name], **changes}
    case["metrics"] = find_metrics(case["metrics"], case["loss"])
    scenario = make_scenario(**case, num_uploads=30)
    return ScenarioInstance(scenario, scenario.federation(0), SETTINGS, torch.float64)


OTHERS = [("a table with classes", "fedsoft"), ("a loss of one's own", "ifca"), ("tokens", "fedbuff")]


@pytest.mark.parametrize(("name", "algorithm"), [*((name, "cdfl") for name in CASES), *OTHERS])
def test_the_fast_run_equals_the_reference(name, algorithm):
    instance = make_instance(name)
    plain = run_plain(instance, algorithm)
    assert_same(run_fast(instance, algorithm, width=None), plain)
    if name in STACKS and algorithm == "cdfl":
        assert isinstance(make_engines(instance, width=5).trainer, Stack)
        assert_same(run_fast(instance, algorithm, width=5), plain)


@pytest.mark.parametrize("name", CASES)
def test_what_can_be_stacked(name):
    instance = make_instance(name)
    assert can_stack(instance) == (name in STACKS)
    assert takes_channels_last(instance) == (name in ("images of floating-point numbers", "a target of many places"))


def test_events_name_every_metric():
    events = run_fast(make_instance("a table, two numbers to predict")).events
    (started,) = only(events, Started)
    assert started.metrics == [
        {"name": "rmse", "higher_is_better": False},
        {"name": "r2", "higher_is_better": True},
    ]
    assert started.clusters == [f"turned {number}" for number in range(4)]
    assert all(set(upload.more) == {"r2"} for upload in only(events, Uploaded))
    scores = {"held", "before", "after", "served", "served_held"}
    assert all(scores.issuperset(upload.more["r2"]) for upload in only(events, Uploaded))
    assert all(len(own.more["r2"]) == len(own.scores) == 4 for own in only(events, Clusters))
    end = events[-1]
    assert set(end.more) == {"r2"}
    assert end.more["r2"]["cluster"] == pytest.approx(sum(only(events, Clusters)[-1].more["r2"]) / 4)


def test_learning_lowers_what_is_better_low():
    settings = SETTINGS.replace(local_epochs=20, shared_epochs=20, learning_rate=0.02)
    instance = make_instance("a table, two numbers to predict")
    instance.settings = settings
    clusters = only(run_fast(instance).events, Clusters)
    assert sum(clusters[-1].scores) < sum(clusters[0].scores)


def test_a_score_is_of_all_samples_together():
    """A root of a mean, or a maximum, is no mean over samples."""
    worst = Metric("worst", lambda outputs, targets: (outputs - targets).abs().max(), higher_is_better=False)
    instance = make_instance("a table, two numbers to predict", metrics=(METRICS["rmse"], worst))
    draw = instance.federation.draw(0, 0)
    inputs, targets = instance.inputs(draw.test)
    vector = instance.pretrain()[0]
    errors = instance.outputs(vector, inputs) - targets
    expected = [float(errors.square().mean().sqrt()), float(errors.abs().max())]
    assert instance.scores(vector, draw.test) == pytest.approx(expected)


def test_many_outputs_are_scored_in_parts(monkeypatch):
    instance = make_instance("tokens")
    whole = run_fast(instance)
    for module in ("model_losses", "scoring"):
        monkeypatch.setattr(f"cdfl.sim.{module}.NUMBERS", 1)
    assert_same(run_fast(make_instance("tokens")), whole)


def test_validation_scores_on_other_samples():
    scenario = replace(make_instance("a table with classes").scenario, model=linear)
    one, other = (scenario.federation(0, validation=validation) for validation in (False, True))
    seen = [set(map(tuple, federation.test(0)[0].tolist())) for federation in (one, other)]
    assert not seen[0] & seen[1]
