"""A run from its names: scenario, algorithm, seed. The command line and Python come through here."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cdfl.algorithms import make_algorithm
from cdfl.core import Hyperparams, paper
from cdfl.record import Event, Finished, RunFolder, Uploaded, only
from cdfl.scenarios import Scenario, load_scenario
from cdfl.sim.clock import TIME_MODELS
from cdfl.sim.plain import simulate
from cdfl.sim.task import Task


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides the result of a run."""

    scenario: Scenario
    hyperparams: Hyperparams
    algorithm: str = "cdfl"
    time_model: str = "uniform"
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run."""

    config: RunConfig
    events: list[Event]

    @property
    def summary(self) -> Finished:
        """The end of it in a few numbers."""
        return only(self.events, Finished)[0]

    @property
    def uploads(self) -> list[Uploaded]:
        """What happened, upload by upload."""
        return only(self.events, Uploaded)


def configure(
    scenario: str | Scenario,
    *,
    algorithm: str = "cdfl",
    preset: str = "default",
    time_model: str = "uniform",
    seed: int = 0,
    device: str = "auto",
    num_uploads: int | None = None,
    **overrides: Any,
) -> RunConfig:
    """Turn names into settings; everything that can be wrong is found here, before anything is computed.

    >>> configure("digits-4", base_rate=0.2).hyperparams.base_rate
    0.2
    """
    chosen = load_scenario(scenario) if isinstance(scenario, str) else scenario
    if num_uploads is not None:
        if num_uploads < 1:
            raise ValueError(f"num_uploads is {num_uploads}; expected a whole number, 1 or more")
        chosen = replace(chosen, num_uploads=num_uploads)
    if time_model not in TIME_MODELS:
        raise ValueError(f"there is no time model {time_model!r}; there are {', '.join(TIME_MODELS)}")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, but this machine has no GPU that torch can use; take 'cpu'")
    hyperparams = preset_for(chosen, preset).replace(**overrides)
    make_algorithm(algorithm, hyperparams)  # refuses an unknown name
    return RunConfig(chosen, hyperparams, algorithm, time_model, seed, device)


def preset_for(scenario: Scenario, preset: str) -> Hyperparams:
    """The settings a preset gives a scenario: `default`, ours, or `paper`, as printed."""
    if preset == "default":
        return Hyperparams().replace(**dict(scenario.hyperparams))
    if preset == "paper":
        if scenario.paper_row is None:
            raise ValueError(f"the paper does not run {scenario.name}; take preset 'default'")
        return paper(scenario.paper_row)
    raise ValueError(f"there is no preset {preset!r}; there are default, paper")


def run_events(config: RunConfig, data_dir: Path | None = None) -> Iterator[Event]:
    """Run and yield events as they happen."""
    federation = config.scenario.federation(config.seed, data_dir).to(config.device)
    task = Task(config.scenario, federation, config.hyperparams)
    algorithm = make_algorithm(config.algorithm, config.hyperparams)
    yield from simulate(task, algorithm, TIME_MODELS[config.time_model])


def run(
    scenario: str | Scenario = "digits-4",
    *,
    out: Path | str | None = None,
    data_dir: Path | None = None,
    on_event: Callable[[Event], Any] = lambda event: None,
    **options: Any,
) -> Run:
    """Run a scenario to its end.

    Options are those of `configure`: algorithm, preset, time_model, seed, device, num_uploads, and any
    hyperparameter by its name. `out` names a folder that will hold the run.

    >>> quick = run("digits-4", seed=0, num_uploads=3, local_epochs=1, shared_epochs=1)
    >>> quick.summary.uploads
    3
    """
    config = configure(scenario, **options)
    events = run_events(config, data_dir)
    if out is not None:
        events = RunFolder.create(Path(out), config_json(config)).keep(events)
    kept = []
    for event in events:
        on_event(event)
        kept.append(event)
    return Run(config, kept)


def config_json(config: RunConfig) -> Mapping[str, Any]:
    """A resolved config as it is stored with a run."""
    return asdict(config)
