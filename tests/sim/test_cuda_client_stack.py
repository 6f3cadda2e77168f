"""The GPU's way of training a stack: on a CPU step by step, on a GPU as graphs."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from cdfl.algorithms import Assignment, make_algorithm
from cdfl.core import Layout, Upload, client_update, flatten
from cdfl.data import Sizes
from cdfl.models.resnet import Block
from cdfl.run_events import Uploaded, only
from cdfl.scenarios import load_scenario
from cdfl.sim import checkpoint, cuda_client_stack
from cdfl.sim.cuda_client_stack import GraphStack, ProxyLosses
from cdfl.sim.cuda_server import GraphServer, _ServerGraph
from cdfl.sim.engine import Engines, Training
from cdfl.sim.presets import preset_for
from cdfl.sim.reference_simulation import simulate
from cdfl.sim.scenario_instance import ScenarioInstance
from cdfl.sim.simulation import Simulation
from cdfl.sim.time_models import Uniform

pytestmark = pytest.mark.slow

gpu = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"))
DEVICES = pytest.mark.parametrize("device", ["cpu", gpu])
UPLOADS = 24


def make_instance(device: str, dtype: torch.dtype, model: str = "small-cnn", **settings: object) -> ScenarioInstance:
    sizes = Sizes(low=20, high=80, test=40, pretraining=60, proxy=60)
    scenario = replace(load_scenario("digits-4"), num_clients=12, num_uploads=UPLOADS, model=model, sizes=sizes)
    settings = preset_for(scenario, "default").replace(local_epochs=1, shared_epochs=1, **settings)
    return ScenarioInstance(scenario, scenario.federation(0).to(device), settings, dtype)


def trainings_of(instance: ScenarioInstance, count: int) -> list[Training]:
    start = flatten(instance.model)
    draws = [instance.federation.draw(client, 0) for client in range(count)]
    return [
        Training(instance.federation, draw.train, start, instance.plan(draw, client, 0), 0)
        for client, draw in enumerate(draws)
    ]


def alone(instance: ScenarioInstance, training: Training) -> torch.Tensor:
    inputs, targets = instance.inputs(training.samples)
    batches = ((inputs[batch], targets[batch]) for batch in training.plan.to(instance.device))
    return client_update(instance.model, training.start, batches, instance.loss, instance.settings.training)


@DEVICES
@pytest.mark.parametrize("optimizer", [{"optimizer": "adam"}, {"optimizer": "sgd", "momentum": 0.9}])
def test_a_row_of_a_stack_is_the_client_trained_alone(device: str, optimizer: dict[str, object]) -> None:
    instance = make_instance(device, torch.float64, **optimizer)
    stack = GraphStack(
        instance.model, instance.loss, instance.settings.training, instance.dtype, width=5, precision="float32"
    )
    trainings = trainings_of(instance, 12)
    models = stack.train(trainings)
    expected = torch.stack([alone(instance, training) for training in trainings])
    assert (models - expected).abs().max() < 1e-9
    again = stack.train(trainings[3:7])  # other stacks, the same buffers: nothing of the last stack is left in them
    assert (again - expected[3:7]).abs().max() < 1e-9


@DEVICES
def test_buffers_grow_with_the_stacks(device: str) -> None:
    instance = make_instance(device, torch.float64)
    stack = GraphStack(
        instance.model, instance.loss, instance.settings.training, instance.dtype, width=64, precision="float32"
    )
    trainings = trainings_of(instance, 9)
    for count in (1, 2, 9):
        models = stack.train(trainings[:count])
        expected = torch.stack([alone(instance, training) for training in trainings[:count]])
        assert (models - expected).abs().max() < 1e-9


@DEVICES
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_staleness": 8, "staleness_slope": 1.0, "reply_clusters": "moved"},
        {"cluster_step": "towards", "rate_floor": "mean"},
        {"measures": "relative"},
    ],
)
def test_graphs_give_the_run_of_the_plain_loop(device: str, options: dict[str, object]) -> None:
    instance = make_instance(device, torch.float64, **options)
    settings = instance.settings
    plain = only(simulate(instance, make_algorithm("cdfl", settings), Uniform()), Uploaded)

    def stack(proximal_strength: float) -> GraphStack:
        changed = replace(settings.training, proximal_strength=proximal_strength)
        return GraphStack(instance.model, instance.loss, changed, instance.dtype, precision="float32")

    evaluator = stack(0.0)
    engines = Engines(stack(settings.training.proximal_strength), stack(0.0), evaluator, scores_together=7)
    algorithm = GraphServer(make_algorithm("cdfl", settings), evaluator, instance.proxy_sets)
    fast = only(Simulation(instance, algorithm, Uniform(), engines).events(), Uploaded)
    assert len(fast) == len(plain) == UPLOADS
    for ours, theirs in zip(fast, plain, strict=True):
        assert ours.client == theirs.client
        assert ours.mixture == pytest.approx(theirs.mixture, abs=1e-9)
        assert ours.rates == pytest.approx(theirs.rates, abs=1e-9)
        assert ours.outcome == theirs.outcome
        assert (ours.before, ours.after) == (theirs.before, theirs.after)


@DEVICES
@pytest.mark.parametrize("measures", ["plain", "relative"])
def test_the_graph_s_server_remembers_what_the_plain_one_does(device: str, measures: str) -> None:
    instance = make_instance(device, torch.float64, measures=measures)
    evaluator = GraphStack(
        instance.model, instance.loss, instance.settings.training, instance.dtype, precision="float32"
    )
    plain = make_algorithm("cdfl", instance.settings)
    graph = GraphServer(plain, evaluator, instance.proxy_sets)
    start = instance.pretrain()
    states = [own.initial(start, instance.evaluate, instance.layout.num_parameters) for own in (plain, graph)]
    random = torch.Generator().manual_seed(0)
    seen = []
    for step in range(5):
        seen.append(states)
        states = seen[2] if step == 4 else states  # not the state that the graph holds
        noise = 0.01 * torch.randn(start.shape[1], generator=random, dtype=torch.float64).to(device)
        local_model, clusters = start[step % len(start)] + noise, torch.arange(len(start))
        losses = instance.evaluate(local_model.expand_as(start), clusters).double().cpu()
        upload = Upload(local_model, 0, losses=losses, base_model=start[0])
        assignment = Assignment(start[0], 0)
        answers = [
            own.server_update(state, upload, assignment, instance.evaluate)
            for own, state in zip((plain, graph), states, strict=True)
        ]
        states = [state for state, _ in answers]
        (expected, reply), (found, answer) = answers
        torch.testing.assert_close(found.estimator_memory.cpu(), expected.estimator_memory, rtol=0, atol=1e-9)
        assert (torch.stack(answer.measures).cpu() - torch.stack(reply.measures)).abs().max() < 1e-9
        assert (answer.mixture.cpu() - reply.mixture).abs().max() < 1e-9
        assert bool(expected.estimator_memory.any()) == (measures == "relative")


@DEVICES
def test_a_run_on_graphs_goes_on_after_a_checkpoint(device: str, tmp_path: Path) -> None:
    def begin() -> Simulation:
        instance = make_instance(device, torch.float32)
        settings = instance.settings
        stacks = [
            GraphStack(instance.model, instance.loss, own, precision="float32")
            for own in (settings.training, replace(settings.training, proximal_strength=0.0))
        ]
        algorithm = GraphServer(make_algorithm("cdfl", settings), stacks[0], instance.proxy_sets)
        return Simulation(instance, algorithm, Uniform(), Engines(stacks[0], stacks[1], stacks[0], scores_together=7))

    whole = only(begin().events(), Uploaded)
    stopped = begin()
    told = list(islice(stopped.events(), 18))
    assert stopped.bookmark is not None
    assert stopped.instance.start is not None
    checkpoint.save(tmp_path, stopped.bookmark, stopped.instance.start)
    resumed = begin()
    bookmark = checkpoint.load(tmp_path, resumed)
    resumed.resume(bookmark, told)
    rest = only(resumed.events(), Uploaded)
    assert len(rest) == UPLOADS - bookmark.state.epoch > 0
    bound = 1e-3 if device == "cuda" else 0.0  # sums on a GPU come in any order
    for ours, theirs in zip(rest, whole[-len(rest) :], strict=True):
        assert (ours.client, ours.epoch, ours.staleness) == (theirs.client, theirs.epoch, theirs.staleness)
        assert ours.mixture == pytest.approx(theirs.mixture, abs=bound)
        assert ours.rates == pytest.approx(theirs.rates, abs=bound)


def test_the_graph_s_tensors_are_where_the_models_are() -> None:
    """A checkpoint comes back with its models on a GPU and the rest on the host; "meta" stands for the GPU here."""
    instance = make_instance("cpu", torch.float32)
    stack = GraphStack(instance.model, instance.loss, instance.settings.training, precision="float32")
    server = GraphServer(make_algorithm("cdfl", instance.settings), stack, instance.proxy_sets)
    state = server.initial(instance.pretrain(), instance.evaluate, instance.layout.num_parameters)
    graph = _ServerGraph(server, server._on_device(state.replace(cluster_models=state.cluster_models.to("meta"))))
    parts = vars(graph.state) | vars(graph.upload) | vars(graph)
    devices = {name: value.device.type for name, value in parts.items() if isinstance(value, torch.Tensor)}
    assert {"cluster_losses", "cluster_epochs", "losses", "estimator_memory", "rates"} < set(devices)
    assert {devices[name] for name in devices if name != "defence_memory"} == {"meta"}  # that one is not used


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize(("precision", "bound"), [("float32", 2e-4), ("tf32", 3e-2), ("bfloat16", 5e-2)])
def test_one_training_of_the_paper_network_stays_within_a_bound(precision: str, bound: float) -> None:
    scenario = replace(load_scenario("digits-4"), num_clients=12, num_uploads=40)
    federation = scenario.federation(0).to("cuda")
    settings = preset_for(scenario, "default").replace(local_epochs=1)
    instance = ScenarioInstance(replace(scenario, model="small-cnn"), federation, settings)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(144, 10)
    ).cuda()
    instance.model = layers
    stack = GraphStack(layers, instance.loss, settings.training, precision=precision)
    trainings = trainings_of(instance, 6)
    models = stack.train(trainings)
    expected = torch.stack([alone(instance, training) for training in trainings])
    moved = (expected - trainings[0].start).norm()
    assert (models - expected).norm() / moved < bound


def test_a_stack_that_does_not_fit_is_split() -> None:
    instance = make_instance("cpu", torch.float64)

    class Small(GraphStack):
        def _train_stack(self, trainings: list[Training]) -> torch.Tensor:  # type: ignore[override]
            if len(trainings) > 3:
                raise torch.OutOfMemoryError("a stack of more than 3")
            return super()._train_stack(trainings)

    stack = Small(instance.model, instance.loss, instance.settings.training, instance.dtype, precision="float32")
    trainings = trainings_of(instance, 9)
    expected = torch.stack([alone(instance, training) for training in trainings])
    assert (stack.train(trainings) - expected).abs().max() < 1e-9
    assert stack.width <= 3


@DEVICES
@pytest.mark.parametrize("width", [1, 2, 6])
@pytest.mark.parametrize("kind", ["plain", "normed", "residual"])
def test_a_big_network_is_called_row_by_row(monkeypatch: Any, device: str, width: int, kind: str) -> None:
    instance = make_instance(device, torch.float64, optimizer="sgd", momentum=0.9)
    if kind != "plain":
        torch.manual_seed(0)
        layers = [torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()]
        if kind == "residual":
            layers += [Block(4, 4, 1), torch.nn.BatchNorm2d(4, momentum=0.2), Block(4, 16, 2)]
        layers += [torch.nn.Flatten(), torch.nn.Linear(144, 10)]
        instance.model = torch.nn.Sequential(*layers).to(device, torch.float64)
        instance.layout = Layout.of(instance.model)
    stack = GraphStack(
        instance.model,
        instance.loss,
        instance.settings.training,
        instance.dtype,
        width=width,
        precision="float32",
        one_by_one=True,
    )
    trainings = trainings_of(instance, 5)
    expected = torch.stack([alone(instance, training) for training in trainings])
    assert (stack.train(trainings) - expected).abs().max() < 1e-9
    inputs, _ = instance.proxy_sets[0]
    for piece in (1000, 7):  # the inputs fit in one piece, or take several
        monkeypatch.setattr(cuda_client_stack, "PIECE", piece)
        said = stack.outputs(expected, inputs)
        for row, own in enumerate(said):
            assert (own - instance.outputs(expected[row], inputs)).abs().max() < 1e-9


@DEVICES
def test_images_of_three_channels_are_kept_with_four(device: str) -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(144, 10)
    ).to(device, torch.float64)
    instance = make_instance(device, torch.float64)
    instance.model = network
    instance.federation.input_shape = (3, 8, 8)  # grey images are then fetched as three equal channels
    stack = GraphStack(network, instance.loss, instance.settings.training, instance.dtype, precision="float32")
    stack.network.force_kernels = True
    trainings = trainings_of(instance, 4)
    expected = torch.stack([alone(instance, training) for training in trainings])
    assert (stack.train(trainings) - expected).abs().max() < 1e-9
    sets = [instance.inputs(training.samples) for training in trainings[:2]]
    losses = ProxyLosses(stack, sets).losses(expected[:2])
    for row, (inputs, targets) in enumerate(sets):
        torch.nn.utils.vector_to_parameters(expected[row], network.parameters())
        assert losses[row].item() == pytest.approx(instance.loss(network(inputs), targets).item())
