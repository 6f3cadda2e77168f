"""An interrupted and resumed run writes the same bytes as an uninterrupted one."""

from contextlib import closing
from dataclasses import asdict, replace
from importlib import import_module

import pytest
import torch

from cdfl.algorithms import make_algorithm
from cdfl.api import run
from cdfl.run_events import Finished, Uploaded, only
from cdfl.run_folder import RunFolder
from cdfl.sim import checkpoint
from cdfl.sim.client_stack import Stack
from cdfl.sim.engine_choice import make_engines
from cdfl.sim.runner import compare_events, configure, run_events
from cdfl.sim.simulation import Simulation
from cdfl.sim.simulation_group import SimulationGroup
from cdfl.sim.time_models import TIME_MODELS, Devices, Span
from cdfl.upload_policies import POLICIES, PageHinkley

from .world import SETTINGS, UNIFORM, assert_same_events, make_instance, make_scenario

pytestmark = pytest.mark.slow

SCENARIO = make_scenario(settings={**asdict(SETTINGS), "max_staleness": 20}, num_uploads=30, num_clients=7)


@pytest.fixture
def bustle(monkeypatch):
    """A time model with newcomers and leavers, under a name."""
    monkeypatch.setitem(TIME_MODELS, "bustle", Devices(joins=Span("exponential", 1.0), stays=Span("exponential", 40.0)))
    return "bustle"


def bytes_of(folder):
    return (folder.path / "events.jsonl").read_bytes()


def in_one_go(tmp_path, config):
    folder = RunFolder.create(tmp_path / "whole", config.to_json())
    list(run_events(config, folder))
    assert not checkpoint.exists(folder.path)
    return bytes_of(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a run of the scenario that nothing interrupts."""
    return in_one_go(tmp_path_factory.mktemp("one"), configure(SCENARIO))


def stop_after(events, count):
    """Take `count` events, then stop as Ctrl-C does."""
    with closing(events):
        for _ in zip(range(count), events, strict=False):
            pass


def interrupted(tmp_path, config, moments):
    folder = RunFolder.create(tmp_path / "parts", config.to_json())
    for number, moment in enumerate(moments):
        stop_after(run_events(config, folder, resume=number > 0), moment)
        assert checkpoint.exists(folder.path) == (max(moments[: number + 1]) > 3)  # before the first stack: nothing
    told = list(run_events(config, folder, resume=True))
    assert told == folder.events()  # a reader of the resumed run sees all of it
    assert not checkpoint.exists(folder.path)
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "config.json", "events.jsonl", "models", "versions.json",
    ]  # fmt: skip
    return bytes_of(folder)


@pytest.mark.parametrize(
    "moments",
    [[0], [3], [33], [8, 20], [20, 4, 1, 25]],
    ids=lambda moments: "-".join(map(str, moments)),
)
def test_at_many_moments(tmp_path, moments, whole):
    config = configure(SCENARIO)
    assert interrupted(tmp_path, config, moments) == whole


@pytest.mark.parametrize("algorithm", ["fedsoft", "fedasync", "fedbuff", "ifca", "local-keep", "local", "oracle"])
def test_every_algorithm(tmp_path, algorithm):
    config = configure(SCENARIO, algorithm=algorithm)
    assert interrupted(tmp_path, config, [15]) == in_one_go(tmp_path, config)


@pytest.mark.parametrize(("algorithm", "policy"), [("ifca", "sometimes"), ("cdfl", "page-hinkley")])
def test_policies_newcomers_and_leavers(tmp_path, bustle, monkeypatch, algorithm, policy):
    monkeypatch.setitem(POLICIES, "page-hinkley", PageHinkley(0.05, 0.0))
    config = configure(SCENARIO, algorithm=algorithm, policy=policy, time_model=bustle)
    assert interrupted(tmp_path, config, [9, 14]) == in_one_go(tmp_path, config)


@pytest.mark.parametrize("algorithm", ["cdfl", "fedsoft"])
def test_sleeping_clients_too(tmp_path, monkeypatch, algorithm):
    monkeypatch.setattr(import_module("cdfl.sim.simulation"), "AWAKE_BYTES", 0)
    monkeypatch.setattr(import_module("cdfl.sim.simulation"), "MOST_TRAINED", 3)
    config = configure(SCENARIO, algorithm=algorithm)
    assert interrupted(tmp_path, config, [9, 14]) == in_one_go(tmp_path, config)


def test_diverged_clients_too(tmp_path):
    config = configure(
        SCENARIO, algorithm="fedsoft", optimizer="sgd", learning_rate=1e40, shared_epochs=0, separate_epochs=0
    )
    whole = in_one_go(tmp_path, config)
    assert b"diverged" in whole
    assert interrupted(tmp_path, config, [12]) == whole


def test_batch_norm_and_dropout(tmp_path):
    for model in ("normed", "dropping"):
        config = configure(replace(SCENARIO, model=model, num_uploads=15))
        assert interrupted(tmp_path / model, config, [9]) == in_one_go(tmp_path / model, config)


def test_ctrl_c_in_the_middle_of_a_stack(tmp_path, monkeypatch, whole):
    config = configure(SCENARIO)
    folder = RunFolder.create(tmp_path / "parts", config.to_json())
    train, calls = Stack.train, []

    def interrupted_train(self, trainings):
        calls.append(trainings)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return train(self, trainings)

    monkeypatch.setattr(Stack, "train", interrupted_train)
    with pytest.raises(KeyboardInterrupt):
        list(run_events(config, folder))
    assert checkpoint.exists(folder.path)
    list(run_events(config, folder, resume=True))
    assert len(calls[9]) == len(calls[8])  # it asks for the same stack again
    assert bytes_of(folder) == whole


def test_ctrl_c_in_the_hands_of_the_reader(tmp_path, whole):
    seen = []

    def stop(event):
        seen.append(event)
        if len(seen) == 12:
            raise KeyboardInterrupt

    try:
        run(SCENARIO, out=tmp_path / "parts", on_event=stop)
    except KeyboardInterrupt:  # its traceback holds on to everything that was running
        assert checkpoint.exists(tmp_path / "parts")  # so this is not Python cleaning up
    config, folder = configure(SCENARIO), RunFolder(tmp_path / "parts")
    list(run_events(config, folder, resume=True))
    assert bytes_of(folder) == whole


def test_a_crash_goes_on_from_the_last_checkpoint(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(import_module("cdfl.sim.runner"), "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    config = configure(SCENARIO)
    folder = RunFolder.create(tmp_path / "parts", config.to_json())
    with closing(run_events(config, folder)) as events:
        for event in events:
            if isinstance(event, Uploaded) and event.epoch == 20:
                kept = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    for name, content in kept.items():  # the files as they were, the last line half written
        (folder.path / name).write_bytes(content)
    with (folder.path / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "uplo')
    list(run_events(config, folder, resume=True))
    assert bytes_of(folder) == whole


def test_a_run_that_is_over_stays_as_it_is(tmp_path):
    config = configure(SCENARIO)
    whole = in_one_go(tmp_path, config)
    told = list(run_events(config, RunFolder(tmp_path / "whole"), resume=True))
    assert isinstance(told[-1], Finished)
    assert bytes_of(RunFolder(tmp_path / "whole")) == whole


def test_events_that_were_lost_are_missed(tmp_path):
    config = configure(SCENARIO)
    folder = RunFolder.create(tmp_path / "parts", config.to_json())
    stop_after(run_events(config, folder), 20)
    lines = (folder.path / "events.jsonl").read_text().splitlines(keepends=True)
    (folder.path / "events.jsonl").write_text("".join(lines[:5]))
    with pytest.raises(ValueError, match=r"written after \d+ events, but only 5 are left"):
        list(run_events(config, folder, resume=True))


# -- several runs in common stacks


def group_configs():
    """Four runs that need different numbers of stacks, so that some are over long before others."""
    return [
        configure(SCENARIO, algorithm="cdfl", seed=0),
        configure(SCENARIO, algorithm="fedbuff", seed=0, time_model="few-active"),
        configure(SCENARIO, algorithm="local-keep", seed=1, time_model="sessions"),
        configure(SCENARIO, algorithm="ifca", seed=1, policy="sometimes"),
    ]


def group_folders(path, configs):
    return [RunFolder.create(path / str(number), config.to_json()) for number, config in enumerate(configs)]


@pytest.fixture(scope="module")
def group_in_one_go(tmp_path_factory):
    configs = group_configs()
    folders = group_folders(tmp_path_factory.mktemp("whole"), configs)
    told = list(compare_events(configs, folders))
    return told, [bytes_of(folder) for folder in folders]


def test_a_group_at_many_moments(tmp_path, group_in_one_go):
    told, expected = group_in_one_go
    ends = [place + 1 for place, (_, event) in enumerate(told) if isinstance(event, Finished)]
    assert ends[0] < len(told) - 30  # one is over while others have much to do
    for moment in (3, ends[0], ends[1] + 1, len(told)):
        configs = group_configs()
        folders = group_folders(tmp_path / str(moment), configs)
        stop_after(compare_events(configs, folders), moment)
        list(compare_events(configs, folders, resume=True))
        assert [bytes_of(folder) for folder in folders] == expected, moment
        assert not any(checkpoint.exists(folder.path) for folder in folders)


def test_a_group_interrupted_again_and_again(tmp_path, group_in_one_go):
    _, expected = group_in_one_go
    configs = group_configs()
    folders = group_folders(tmp_path, configs)
    for number in range(8):
        told = sum(len(folder.events()) for folder in folders)
        stop_after(compare_events(configs, folders, resume=number > 0), told + 12)
    list(compare_events(configs, folders, resume=True))
    assert [bytes_of(folder) for folder in folders] == expected


def test_a_group_in_which_scores_are_told_between_stacks(tmp_path, monkeypatch, group_in_one_go):
    monkeypatch.setattr(import_module("cdfl.sim.scoring"), "MOST_WAITING", 2)
    _, expected = group_in_one_go
    configs = group_configs()
    folders = group_folders(tmp_path, configs)
    stop_after(compare_events(configs, folders), 40)
    list(compare_events(configs, folders, resume=True))
    assert [bytes_of(folder) for folder in folders] == expected


def test_runs_of_a_group_are_the_runs_alone():
    """In float64, to 1e-9: common stacks change nothing but rounding."""
    instances = [make_instance(seed=0, num_uploads=20), make_instance(seed=1, num_uploads=20)]
    names = ["cdfl", "fedsoft", "local-keep"]
    engines = make_engines(instances[0], width=64)

    def simulations():
        return [
            Simulation(instance, make_algorithm(name, SETTINGS), UNIFORM, engines)
            for instance in instances
            for name in names
        ]

    together = [[] for _ in range(6)]
    for which, event in SimulationGroup(simulations()).events():
        together[which].append(event)
    for ours, simulation in zip(together, simulations(), strict=True):
        assert_same_events(ours, list(simulation.events()))


def test_groups_that_do_not_fit_in_memory_follow_each_other(monkeypatch, group_in_one_go):
    told, _ = group_in_one_go
    monkeypatch.setattr(import_module("cdfl.sim.runner"), "_memory_budget", lambda device: 1)
    apart = list(compare_events(group_configs()))
    order = [which for which, _ in apart]
    assert order == sorted(order)
    for which in range(4):
        ours, theirs = ([event for number, event in events if number == which] for events in (apart, told))
        assert_same_events(ours[:3], theirs[:3], 1e-4)
        assert len(ours) == len(theirs)


def test_runs_that_differ_too_much_share_no_stacks():
    one = configure(SCENARIO)
    for other, name in [
        (configure(SCENARIO, learning_rate=0.1), "learning_rate is 0.1 in one"),
        (configure(SCENARIO, shared_epochs=7), "shared_epochs is 7 in one"),
        (configure(SCENARIO, num_uploads=4), "scenario differs"),
        (configure(SCENARIO, precision="bfloat16"), "precision differs"),
    ]:
        with pytest.raises(ValueError, match=name):
            list(compare_events([one, other]))


def test_runs_whose_servers_differ_share_stacks():
    options = {"num_uploads": 12, "local_epochs": 1, "shared_epochs": 1}
    rates = (0.1, 0.5)
    configs = [configure(SCENARIO, base_rate=rate, **options) for rate in rates]
    told = list(compare_events(configs))
    for which, rate in enumerate(rates):
        ours = [event for number, event in told if number == which]
        assert_same_events(ours, run(SCENARIO, base_rate=rate, **options).events, 1e-3)


# -- the file


def test_a_checkpoint_gives_back_what_was_put_in(tmp_path):
    instance = make_instance(num_uploads=25)
    simulation = Simulation(instance, make_algorithm("fedsoft", SETTINGS), UNIFORM, make_engines(instance, width=64))
    events = simulation.events()
    told = [event for _, event in zip(range(18), events, strict=False)]
    place = simulation.bookmark
    checkpoint.save(tmp_path, place, instance.start)
    twin_problem = make_instance(num_uploads=25)
    twin = Simulation(twin_problem, make_algorithm("fedsoft", SETTINGS), UNIFORM, make_engines(twin_problem, width=64))
    found = checkpoint.load(tmp_path, twin)
    assert torch.equal(twin_problem.start, instance.start)
    assert (found.ticks, found.attempts, found.num_events) == (place.ticks, place.attempts, place.num_events)
    assert torch.equal(found.state.cluster_models, place.state.cluster_models)
    ours, theirs = place.moment.clients(), found.moment.clients()
    assert list(ours) == list(theirs)
    for number, client in ours.items():
        other = theirs[number]
        assert (client.turns, client.updates, client.memory) == (other.turns, other.updates, other.memory)
        held, read = client.kept.load(), other.kept.load()
        assert torch.equal(held.reply.personal_model, read.reply.personal_model)
        assert torch.equal(held.state.cluster_models, read.state.cluster_models)
        assert (client.prepared is None) == (other.prepared is None)
        if client.prepared is not None:
            assert torch.equal(client.prepared.assignment.mixture, other.prepared.assignment.mixture)
            assert torch.equal(client.prepared.turn_data.plan, other.prepared.turn_data.plan)
            assert torch.equal(client.prepared.trained.local_model, other.prepared.trained.local_model)
    assert any(client.prepared is not None for client in ours.values())
    twin.resume(found, told)
    rest = list(events)
    assert list(twin.events()) == [*told, *rest][place.num_events :]
    assert only(rest, Finished)


def test_a_checkpoint_keeps_what_is_usual_and_what_was_measured(tmp_path):
    instance, settings = make_instance(num_uploads=25), SETTINGS.replace(measures="relative")
    simulation = Simulation(instance, make_algorithm("cdfl", settings), UNIFORM, make_engines(instance, width=64))
    for _ in zip(range(18), simulation.events(), strict=False):
        pass
    place = simulation.bookmark
    checkpoint.save(tmp_path, place, instance.start)
    twin = Simulation(instance, make_algorithm("cdfl", settings), UNIFORM, make_engines(instance, width=64))
    found = checkpoint.load(tmp_path, twin)
    assert bool(place.state.estimator_memory.all())
    assert torch.equal(found.state.estimator_memory, place.state.estimator_memory)
    read = found.moment.clients()
    replies = [
        (client.kept.load().reply.measures, read[number].kept.load().reply.measures)
        for number, client in place.moment.clients().items()
    ]
    assert any(ours is not None for ours, _ in replies)
    for ours, theirs in replies:
        assert (ours is None) == (theirs is None)
        assert ours is None or all(map(torch.equal, ours, theirs))


def test_a_checkpoint_holds_what_clients_share_once(tmp_path):
    instance = make_instance(num_uploads=5)
    simulation = Simulation(instance, make_algorithm("ifca", SETTINGS), UNIFORM, make_engines(instance, width=64))
    next(iter(simulation.events()))
    stepped = SimulationGroup([simulation])
    for _ in zip(range(4), stepped.events(), strict=False):
        pass
    checkpoint.save(tmp_path, stepped.bookmarks[0], instance.start)
    models = (tmp_path / checkpoint.FILE).stat().st_size / instance.model_bytes
    assert models < 4 * 12  # every client holds the four models it was sent; they are the same four
    checkpoint.remove(tmp_path)
    checkpoint.remove(tmp_path)
    assert not checkpoint.exists(tmp_path)
