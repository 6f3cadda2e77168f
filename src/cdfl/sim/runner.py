"""Configure and run scenarios: the entry point of the command line and of Python."""

import inspect
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Unpack

import torch

from cdfl.algorithms import Algorithm, make_algorithm
from cdfl.argument_checks import check_number, did_you_mean
from cdfl.core import Settings
from cdfl.core.settings import LEAVES, SettingValues, with_settings
from cdfl.data import Federation
from cdfl.device import find_device
from cdfl.json_values import jsonable
from cdfl.on_ray.connection import RayEngine
from cdfl.problems import Problem
from cdfl.run_events import Event, Finished
from cdfl.run_folder import RunFolder
from cdfl.scenarios import Scenario, load_problem
from cdfl.sim import checkpoint
from cdfl.sim.engine import Engines
from cdfl.sim.engine_choice import MakeEngines, Precision, check_precision, make_engines, make_fast
from cdfl.sim.on_ray.engines import cluster_engines
from cdfl.sim.presets import find_preset, preset_for
from cdfl.sim.run_models import RunModels
from cdfl.sim.scenario_instance import ScenarioInstance, client_instance
from cdfl.sim.simulation import Simulation
from cdfl.sim.simulation_group import SimulationGroup
from cdfl.sim.time_models import TIME_MODELS, TimeModel, check_time_model, make_time_model
from cdfl.upload_policies import (
    ALWAYS,
    DECIDES,
    POLICIES,
    Observation,
    Policy,
    check_policy,
    decide_upload,
    find_policy,
)

SECONDS_BETWEEN_CHECKPOINTS = 60.0
SAMPLES_TRIED = 32  # of each cluster, before anything is trained

OnEnd = Callable[[int, RunModels], Any]


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides the result of a run."""

    scenario: Scenario
    settings: Settings
    algorithm: str = "cdfl"
    time_model: TimeModel = TIME_MODELS["uniform"]
    policy: Policy = ALWAYS
    seed: int = 0
    device: str = "cpu"
    precision: Precision = "float32"
    validation: bool = False  # scored on samples that no table is scored on, for choices

    def to_json(self) -> dict[str, Any]:
        """Return the resolved config, as it is stored with a run."""
        return {field.name: getattr(self, field.name) for field in fields(self)} | {
            "scenario": self.scenario.to_dict(),
            "settings": self.settings.to_dict(),
            "time_model": jsonable(self.time_model),
            "policy": jsonable(self.policy),
        }


@with_settings
def configure(
    problem: str | Path | Problem,
    *,
    algorithm: str | type[Algorithm] = "cdfl",
    preset: str = "default",
    time_model: str | TimeModel | None = None,
    policy: str | Policy | None = None,
    seed: int = 0,
    device: str = "auto",
    precision: Precision | Literal["auto"] = "auto",
    num_uploads: int | None = None,
    num_clients: int | None = None,
    validation: bool = False,
    **settings: Unpack[SettingValues],
) -> RunConfig:
    """Resolve names into a RunConfig; raise ValueError for a bad argument before anything is computed.

    `algorithm` is a name or a class. `time_model` is a name, a trace file of waiting times (see
    `cdfl.sim.time_models.Span`) or an object with `ticks`; None takes the preset's. `policy` is a name or an object
    with `decide`. `validation` scores on a part of the train half, which is then not trained on: choices made so never
    see a sample that a table is scored on.

    >>> configure("digits-4", base_rate=0.2).settings.rates.base_rate
    0.2
    """
    check_options(settings, configure)
    given = load_problem(problem)
    for name, value in (("num_uploads", num_uploads), ("num_clients", num_clients)):
        if value is not None:
            check_number(name, value, 1, whole=True)
    chosen = Scenario.of(given, num_clients, num_uploads)
    clock = make_time_model(time_model) if isinstance(time_model, str) else time_model
    clock = find_preset(preset).time_model if clock is None else clock
    policy = policy or chosen.policy or "always"
    if isinstance(policy, str):
        policy = find_policy(policy)
    check_time_model(clock, chosen.num_clients)
    check_policy(policy, expected=f"a name ({', '.join(POLICIES)}), or {DECIDES}")
    decide_upload(
        policy, (), Observation(samples=1, measure=lambda: 1.0, chance=0.5)
    )  # raises if its answer is malformed
    check_number("seed", seed, 0, whole=True)
    device = find_device(device)
    if precision == "auto":
        precision = "tf32" if device.startswith("cuda") else "float32"
    check_precision(precision, device)
    resolved = preset_for(chosen, preset).replace(**settings)
    name = make_algorithm(algorithm, resolved).name  # raises if there is no such algorithm
    return RunConfig(chosen, resolved, name, clock, policy, seed, device, precision, bool(validation))


def check_options(settings: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raise ValueError for a keyword that is no setting; name the likeliest setting or option of a function.

    >>> check_options({"uploads": 3}, configure)
    Traceback (most recent call last):
    ValueError: there is no option or setting 'uploads'; did you mean num_uploads?
    """
    for name in settings:
        if name not in LEAVES:
            hint = did_you_mean(name, inspect.signature(function).parameters)
            raise ValueError(f"there is no option or setting {name!r}{hint or '; settings are ' + ', '.join(LEAVES)}")


def run_events(
    config: RunConfig,
    folder: RunFolder | None = None,
    data_dir: Path | None = None,
    *,
    resume: bool = False,
    engine: RayEngine | None = None,
) -> Generator[Event]:
    """Run, yield events as they happen, and write them to `folder`; `resume` continues the run in it.

    Clients are trained here, or by an `engine` of several machines.

    To stop early, close the generator (`contextlib.closing`): that writes the checkpoint to resume from.
    """
    folders = None if folder is None else [folder]
    with closing(compare_events([config], folders, data_dir, resume=resume, engine=engine)) as events:
        for _, event in events:
            yield event


def compare_events(
    configs: Sequence[RunConfig],
    folders: Sequence[RunFolder] | None = None,
    data_dir: Path | None = None,
    *,
    resume: bool = False,
    engine: RayEngine | None = None,
    on_end: OnEnd | None = None,
    personal: bool = False,
) -> Generator[tuple[int, Event]]:
    """Run configs that differ in algorithm, server-side settings, time model, policy or seed; yield (which, event).

    Runs whose models fit in memory together train their clients in common stacks; otherwise groups run one after the
    other. Interrupted runs leave checkpoints in their folders. Resumed on a CPU, they write the same bytes as
    uninterrupted ones. `on_end` gets the models of each run when it is over; with `personal`, also
    those of its clients. With an `engine`, each of its workers does one run at a time.
    """
    first = configs[0]
    for config in configs:
        for name in ("scenario", "device", "precision", "validation"):
            if jsonable(getattr(config, name)) != jsonable(getattr(first, name)):
                raise ValueError(f"{name} differs between these runs; compare runs with the same {name}")
        for part in ("training", "pretraining"):
            own, others = (vars(getattr(one.settings, part)) for one in (config, first))
            for name in own:
                if own[name] != others[name]:
                    raise ValueError(
                        f"{name} is {own[name]} in one of these runs and {others[name]} in another; "
                        "compare runs with the same training settings"
                    )
    if engine is not None and len(configs) > 1:
        from cdfl.sim.on_ray.runs import spread_runs  # that module needs this one

        yield from spread_runs(engine, configs, folders, data_dir, resume=resume, on_end=on_end, personal=personal)
        return
    with nullcontext(make_engines) if engine is None else cluster_engines(engine) as make:
        built = simulations(configs, data_dir, make)
        yield from run_simulations(built, folders, resume=resume, on_end=on_end, personal=personal)


def run_simulations(
    built: Sequence[Simulation],
    folders: Sequence[RunFolder] | None = None,
    *,
    resume: bool = False,
    on_end: OnEnd | None = None,
    personal: bool = False,
) -> Generator[tuple[int, Event]]:
    """Run simulations, as many side by side as fit in memory; the arguments are those of `compare_events`."""
    for group in _groups(built, _memory_budget(str(built[0].instance.device))):
        folder_of = {which: folders[which] for which in group} if folders is not None else {}
        yield from _run_group({which: built[which] for which in group}, folder_of, resume=resume)
        for which in group:
            if built[which].state is not None and on_end is not None:
                on_end(which, RunModels.of(built[which], personal=personal))
            built[which].free_memory()


def _run_group(
    group: dict[int, Simulation], folders: dict[int, RunFolder], *, resume: bool
) -> Iterator[tuple[int, Event]]:
    """Run simulations side by side, and write each to its folder."""
    writers = {}
    with ExitStack() as files:
        for which, folder in folders.items():
            past = folder.events() if resume else []
            simulation = group[which]
            if resume and checkpoint.exists(folder.path):  # also if finished: the group repeats the same stacks
                simulation.resume(checkpoint.load(folder.path, simulation), past)
            elif past and isinstance(past[-1], Finished):
                del group[which]
                simulation.emitted = past
            writers[which] = files.enter_context(folder.writer(simulation.emitted))
            yield from ((which, event) for event in simulation.emitted)
        if not group:
            return
        numbers, together = list(group), SimulationGroup(list(group.values()))

        def save() -> None:
            """Write checkpoints of the last moment at which all runs waited; runs finished by then have none."""
            if not folders or not together.bookmarks:
                return
            for place, simulation in enumerate(together.simulations):
                path, bookmark = folders[numbers[place]].path, together.bookmarks.get(place)
                if bookmark is None or simulation.instance.start is None:
                    checkpoint.remove(path)
                else:
                    checkpoint.save(path, bookmark, simulation.instance.start)

        saved = time.monotonic()
        try:
            for place, event in together.events():
                which = numbers[place]
                if which in writers:
                    if isinstance(event, Finished):  # a finished run has its models, also if the others are stopped
                        RunModels.of(group[which], personal=False).save(folders[which].path)
                    writers[which](event)
                yield which, event
                if time.monotonic() - saved > SECONDS_BETWEEN_CHECKPOINTS:
                    save()
                    saved = time.monotonic()
        except (KeyboardInterrupt, GeneratorExit):
            save()
            raise
        for folder in folders.values():
            checkpoint.remove(folder.path)


def simulations(
    configs: Sequence[RunConfig],
    data_dir: Path | None = None,
    make: MakeEngines = make_engines,
    federation: Federation | None = None,
) -> list[Simulation]:
    """Build the simulations of several configs; those of one seed share data and pre-training.

    The data are read, unless a `federation` holds them.
    """
    instances: dict[int, ScenarioInstance] = {}
    built: list[Simulation] = []
    made: dict[str, Engines] = {}
    first = configs[0]
    federation = (federation or read_data(first, data_dir)).to(first.device)
    for config in configs:
        if config.seed not in instances:
            instances[config.seed] = ScenarioInstance(
                config.scenario, federation.reseeded(config.seed), config.settings
            )
            if not built:
                instances[config.seed].check(SAMPLES_TRIED)
        instance = instances[config.seed]
        algorithm = make_algorithm(config.algorithm, config.settings.for_clusters(instance.num_clusters))
        network = "" if client_instance(instance, algorithm) is instance else algorithm.name
        if network not in made:  # algorithms with the same network share engines
            made[network] = make(instance, algorithm, precision=config.precision)
        engines = made[network]
        built.append(
            Simulation(instance, make_fast(algorithm, instance, engines), config.time_model, engines, config.policy)
        )
    return built


def read_data(config: RunConfig, data_dir: Path | None = None) -> Federation:
    """Read the data of a run."""
    return config.scenario.federation(config.seed, data_dir, validation=config.validation)


def _groups(built: Sequence[Simulation], budget: int) -> Iterator[list[int]]:
    """Yield the numbers of simulations that run together: those with the same network, as far as memory goes."""
    for engines in {id(simulation.engines): None for simulation in built}:
        same = [which for which, simulation in enumerate(built) if id(simulation.engines) == engines]
        together = max(1, budget // _bytes_of(built[same[0]]))
        yield from (same[start : start + together] for start in range(0, len(same), together))


def _bytes_of(simulation: Simulation) -> int:
    """Return the bytes of a simulation: a received, a trained and a scored model for clients awake, and the data."""
    instance = simulation.client_instance
    awake = min(instance.scenario.num_clients, simulation.most_trained)
    return 3 * awake * instance.model_bytes + instance.federation.num_bytes


def _memory_budget(device: str) -> int:
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info()[0] // 2)
    return 2 * 2**30
