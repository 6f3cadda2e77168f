"""Run a problem, and what comes of it: scores, events, models."""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import torch
from safetensors.torch import load_file
from torch import nn

from cdfl.algorithms import Algorithm
from cdfl.core import Layout
from cdfl.core.settings import SettingValues, with_settings
from cdfl.model_files import read_clusters
from cdfl.models import MODELS as NETWORKS
from cdfl.models import build
from cdfl.on_ray.connection import RayEngine, find_engine
from cdfl.problems import Problem
from cdfl.report import story
from cdfl.report.progress_display import display, shown
from cdfl.run_events import Event, Finished, Separated, Started, Uploaded, metric_label, only, score_text
from cdfl.run_folder import RunFolder
from cdfl.run_series import SCORE_WORDS, RunSeries
from cdfl.sim.engine_choice import Precision
from cdfl.sim.run_models import CLIENTS, MODELS, RunModels
from cdfl.sim.runner import RunConfig, check_options, compare_events, configure
from cdfl.sim.time_models import TimeModel
from cdfl.upload_policies import Policy

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from cdfl.api.comparison import Comparison

COLUMNS = SCORE_WORDS | {"cluster": "clusters"}


class Run:
    """A finished run: its scores, its events, and its models.

    Make one with `cdfl.run`, or read one with `cdfl.load`.
    """

    def __init__(self, config: Mapping[str, Any], events: Sequence[Event], models: RunModels | None = None) -> None:
        self.config = config  # everything that decides the result, as it is stored
        self.events = list(events)
        self._models = models

    @property
    def _started(self) -> Started:
        return only(self.events, Started)[0]

    @property
    def name(self) -> str:
        """The name of the problem."""
        return self._started.scenario

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return self._started.algorithm

    @property
    def seed(self) -> int:
        """The seed."""
        return self._started.seed

    @property
    def clusters(self) -> list[str]:
        """The names of the clusters."""
        return self._started.clusters

    @property
    def metrics(self) -> dict[str, bool]:
        """The metrics by name, each with whether higher is better; the first is the main one."""
        return {metric["name"]: metric["higher_is_better"] for metric in self._started.metrics}

    @property
    def notes(self) -> list[str]:
        """What a reader should know: about the data, clusters that cannot be told apart, and missing uploads."""
        warned = [line for event in only(self.events, Separated) for line in event.warnings]
        short = [end.shortfall for end in only(self.events, Finished) if end.shortfall]
        return [*self._started.notes.splitlines(), *warned, *short]

    @property
    def summary(self) -> Finished:
        """The result in a few numbers."""
        ends = only(self.events, Finished)
        if not ends:
            raise ValueError("the run is not finished; `cdfl run ... --resume` continues it")
        return ends[0]

    @property
    def uploads(self) -> list[Uploaded]:
        """The events of all uploads, in order."""
        return only(self.events, Uploaded)

    @property
    def separation(self) -> list[list[float]]:
        """The loss of each cluster's model (rows) on each cluster's proxy set (columns), before the first upload."""
        return only(self.events, Separated)[0].losses

    @property
    def cluster_models(self) -> dict[str, nn.Module]:
        """The cluster models at the end, by name; one named "all" if the algorithm has one for all clusters."""
        held = self._held()
        return {name: held.module(model) for name, model in zip(held.about["names"], held.clusters, strict=True)}

    def personal_model(self, client: int) -> nn.Module:
        """Return the last model that a client was sent."""
        held = self._held()
        if client not in held.personal:
            there = f"there are {_span(sorted(held.personal))}" if held.personal else "this run holds none"
            raise ValueError(f"there is no model of client {client!r}; {there}; a client that has left has none")
        return held.module(held.personal[client])

    def to_frame(self) -> DataFrame:
        """Return the uploads as a pandas DataFrame, a row each; mixtures have a column for each cluster."""
        return frame([self._row(upload) for upload in self.uploads])

    def plot(self, against: Sequence[Run] = (), client: int | None = None, metric: str | None = None) -> Figure:
        """Return a matplotlib figure: one client's true and estimated mixtures, and the scores of all clients.

        `against` adds other runs; those that differ in their seed only become one curve with a band. `metric` is the
        main one unless it is named.
        """
        return story([run.series.by(metric) for run in (self, *against)], client)

    @property
    def series(self) -> RunSeries:
        """The events as series of numbers."""
        return RunSeries.of(f"{self.algorithm}, seed {self.seed}", self.events)

    def save(self, folder: Path | str) -> Path:
        """Write everything to a new folder: config, events and models. `cdfl.load` reads it."""
        made = RunFolder.create(Path(folder), self.config)
        with made.writer() as write:
            for event in self.events:
                write(event)
        if self._models is not None:
            held = self._models
            held.save(made.path)
            held.save_personal(made.path)
        return made.path

    def __repr__(self) -> str:
        if not only(self.events, Finished):
            return f"Run({self.algorithm} on {self.name}, seed {self.seed}: not finished)"
        scores = ", ".join(
            f"{words} {score_text(getattr(self.summary, name))}" for name, words in self._columns.items()
        )
        return (
            f"Run({self.algorithm} on {self.name}, seed {self.seed}: {self.summary.uploads} uploads; "
            f"{next(iter(self.metrics))} {scores})"
        )

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        if not only(self.events, Finished):
            return f"<p>{html.escape(repr(self))}</p>"
        labels = [metric_label(name, higher_is_better=higher) for name, higher in self.metrics.items()]
        title = f"{self.algorithm} on {self.name}, seed {self.seed}: {self.summary.uploads} uploads"
        rows = []
        for column, words in self._columns.items():
            others = [self.summary.more[name][column] for name in list(self.metrics)[1:]]
            rows.append([words, *(score_text(value) for value in (getattr(self.summary, column), *others))])
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return html_table(title, ["on held-out data", *labels], rows) + notes

    @property
    def _columns(self) -> dict[str, str]:
        """The scores to show, and what they are; what experts serve only where replies are experts."""
        return {name: words for name, words in COLUMNS.items() if name != "served" or self.summary.routed}

    def _score(self, name: str, metric: str | None = None) -> float | None:
        """Return a number of the summary, such as "after"; by the main metric unless another is named."""
        scores = self.summary.more.get(metric or "", {})
        found: float | None = scores[name] if name in scores else getattr(self.summary, name)
        return found

    def _row(self, upload: Uploaded) -> dict[str, Any]:
        kept = {
            name: value
            for name, value in vars(upload).items()
            if name not in ("true_mixture", "mixture", "rates", "more", "routed")
        }
        for metric, scores in upload.more.items():
            kept |= {f"{metric} {name}": score for name, score in scores.items()}
        kept |= {f"routed {name}": value for name, value in upload.routed.items()}
        for words, shares in (
            ("true", upload.true_mixture),
            ("estimated", upload.mixture or []),
            ("rate", upload.rates),
        ):
            kept |= {f"{words} {name}": share for name, share in zip(self.clusters, shares, strict=False)}
        return kept

    def _held(self) -> RunModels:
        if self._models is None:
            raise ValueError("this run holds no models; run the problem again, or load a folder that has models/")
        return self._models


@with_settings
def run(
    problem: str | Path | Problem = "digits-4",
    *,
    algorithm: str | type[Algorithm] = "cdfl",
    seed: int = 0,
    num_clients: int | None = None,
    num_uploads: int | None = None,
    preset: str = "default",
    time_model: str | TimeModel | None = None,
    policy: str | Policy | None = None,
    device: str = "auto",
    precision: Precision | Literal["auto"] = "auto",
    validation: bool = False,
    engine: str | RayEngine = "local",
    progress: bool | None = None,
    out: Path | str | None = None,
    data_dir: Path | str | None = None,
    on_event: Callable[[Event], Any] = lambda event: None,
    **settings: Unpack[SettingValues],
) -> Run:
    """Run a problem with simulated clients to its end.

    Args:
        problem: A `cdfl.Problem`, the name of a scenario, or a .py or .toml file.
        algorithm: A name, or a class (see `cdfl.algorithms`).
        seed: Of data, weights and order. On a CPU, the same seed gives the same result.
        num_clients: How many clients there are. Default: the problem's, or ten a cluster.
        num_uploads: How many uploads they make together. Default: the problem's, or 15 a client.
        preset: Named settings: "default", "experts", "paper" or "paper-reading".
        time_model: When clients are active: a name, a trace file, or an object with `ticks`.
        policy: When a client uploads: a name, or an object with `decide`. Default: the problem's, or always.
        device: "auto", "cpu", "cuda" or "cuda:1".
        precision: "auto", "float32", "tf32" or "bfloat16".
        validation: Score on samples that no other run is scored on, to make choices with.
        engine: "local", "ray" or a `cdfl.RayEngine`: where clients are trained.
        progress: Show progress. Default: in terminals and notebooks, and a line every 20 seconds elsewhere.
        out: A new folder for the run.
        data_dir: The folder of the datasets.
        on_event: Called with every event.
        **settings: Any setting by its name, such as learning_rate=0.01; see `cdfl.Settings`.

    >>> quick = run("digits-4", seed=0, num_uploads=3, local_epochs=1, shared_epochs=1)
    >>> quick.summary.uploads
    3

    """
    check_options(settings, run)
    cluster = find_engine(engine)
    config = configure(
        problem,
        algorithm=algorithm,
        seed=seed,
        num_clients=num_clients,
        num_uploads=num_uploads,
        preset=preset,
        time_model=time_model,
        policy=policy,
        device=device,
        precision=precision,
        validation=validation,
        **settings,
    )
    folder = None if out is None else RunFolder.create(Path(out), config.to_json())
    (made,) = simulate(
        [config], progress, [folder] if folder else None, data_dir, on_event, personal=True, engine=cluster
    )
    if folder and made._models:
        made._models.save_personal(folder.path)
    return made


def simulate(
    configs: Sequence[RunConfig],
    progress: bool | None,
    folders: Sequence[RunFolder] | None = None,
    data_dir: Path | str | None = None,
    on_event: Callable[[Event], Any] = lambda event: None,
    *,
    personal: bool,
    engine: RayEngine | None = None,
) -> list[Run]:
    """Run configs side by side, and show their progress."""
    events: list[list[Event]] = [[] for _ in configs]
    models: dict[int, RunModels] = {}

    total = sum(config.scenario.num_uploads for config in configs)
    place = None if data_dir is None else Path(data_dir)
    with (
        shown(display(total, progress), _silent if progress is False else _note) as show,
        closing(
            compare_events(configs, folders, place, engine=engine, on_end=models.__setitem__, personal=personal)
        ) as stream,
    ):
        for which, event in stream:
            show(event)
            on_event(event)
            events[which].append(event)
    stored = [json.loads(json.dumps(config.to_json(), default=str)) for config in configs]
    return [Run(stored[which], own, models.get(which)) for which, own in enumerate(events)]


def load(folder: Path | str, model: nn.Module | Problem | str | None = None) -> Run | Comparison:
    """Read a run, or a comparison, from its folder.

    `model` is needed for `cluster_models` if the run was not made with one of cdfl's own networks: the network, or the
    problem.
    """
    path = Path(folder)
    if (path / "events.jsonl").exists():
        return load_run(path, model)
    from cdfl.api.comparison import Comparison

    found = sorted(own.parent for own in path.glob("*/events.jsonl"))
    if not found:
        raise ValueError(f"{path} holds no run; expected a folder with events.jsonl, or a folder of such folders")
    return Comparison([load_run(own, model) for own in found])


def load_run(path: Path, model: nn.Module | Problem | str | None = None) -> Run:
    """Read one run."""
    folder = RunFolder(path)
    config, models = folder.config(), None
    if (path / MODELS).is_dir():
        layout, clusters, about = read_clusters(path / MODELS)
        clients = path / MODELS / CLIENTS
        personal = {int(number): own for number, own in load_file(clients).items()} if clients.exists() else {}
        models = RunModels(layout, about, clusters, personal, _network(config, about, model, layout))
    return Run(config, folder.events(), models)


def _network(
    config: Mapping[str, Any], about: Mapping[str, Any], model: nn.Module | Problem | str | None, layout: Layout
) -> nn.Module | None:
    """Return the network of a stored run, if it is known."""
    from cdfl.problems.problem_instance import make_network
    from cdfl.scenarios import load_problem

    shape, outputs = tuple(about["input_shape"]), about["num_outputs"]
    if isinstance(model, str):
        model = load_problem(model)
    with torch.random.fork_rng(devices=[]):
        if isinstance(model, Problem):
            found: nn.Module | None = make_network(model, shape, outputs)
        elif model is None and config["scenario"]["model"] in NETWORKS:
            found = build(config["scenario"]["model"], shape, outputs)
        else:
            found = model
    if found is not None and Layout.of(found) != layout:
        raise ValueError("the model given is not that of the run: its tensors differ; give the network of the run")
    return found


def frame(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Return rows as a pandas DataFrame."""
    try:
        import pandas
    except ModuleNotFoundError:
        raise ModuleNotFoundError("to_frame() needs pandas: pip install pandas") from None
    return pandas.DataFrame(list(rows))


def html_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for notebooks."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{html.escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _span(numbers: Sequence[int]) -> str:
    shown_ = ", ".join(map(str, numbers[:5]))
    return f"{shown_}, ..., {numbers[-1]}" if len(numbers) > 5 else shown_


def _note(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201


def _silent(line: str) -> None:
    """Say nothing."""
