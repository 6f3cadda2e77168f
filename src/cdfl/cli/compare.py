"""`cdfl compare`: run several algorithms with several seeds on one scenario."""

import json
from contextlib import closing, nullcontext
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, cast

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from cdfl.algorithms import ALGORITHMS
from cdfl.cli.interruption import interruptible
from cdfl.cli.options import DataDir, DeviceName, Json, exit_on, note
from cdfl.cli.run_options import (
    Address,
    Cores,
    EngineName,
    NumClients,
    NumUploads,
    NumWorkers,
    Out,
    PolicyName,
    PrecisionName,
    PresetName,
    Resume,
    ScenarioName,
    SetOption,
    TimeModelName,
    Validation,
    open_folder,
    parse_settings,
)
from cdfl.cli.tables import make_table, show
from cdfl.cli.tracking import ToMLflow, ToTensorBoard, ToWandb, chosen, look_at, tracking
from cdfl.json_values import jsonable
from cdfl.on_ray.connection import find_engine
from cdfl.report.progress_display import Lines, Nothing, pretraining_shown_by, shown
from cdfl.run_events import Diverged, Event, Finished, Started, Uploaded, metric_label, score_text
from cdfl.run_folder import RunFolder
from cdfl.run_series import SHORT_WORDS
from cdfl.sim.engine_choice import Precision
from cdfl.sim.runner import RunConfig, compare_events, configure

SCORE_COLUMNS = ("held", "before", "after", "served", "cluster")
COLUMNS = (*SCORE_COLUMNS, "divergence")


def compare(
    scenario: ScenarioName,
    algorithms: Annotated[
        str, typer.Option(help=f"Comma-separated names, or all: {', '.join(ALGORITHMS)}.")
    ] = "cdfl,local,fedasync",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds: 0, 1, 2, ...")] = 3,
    device: DeviceName = "auto",
    out: Out = None,
    preset: PresetName = "default",
    time_model: TimeModelName = None,
    policy: PolicyName = None,
    precision: PrecisionName = "auto",
    num_clients: NumClients = None,
    num_uploads: NumUploads = None,
    setting: SetOption = None,
    validation: Validation = False,
    resume: Resume = False,
    tensorboard: ToTensorBoard = False,
    mlflow: ToMLflow = False,
    wandb: ToWandb = False,
    engine: EngineName = "local",
    address: Address = None,
    workers: NumWorkers = None,
    cores: Cores = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Compare algorithms: show mean and standard deviation over several seeds, and write a folder for each run.

    `cdfl watch`, `plot` and `report` take that folder.
    """
    console = Console(stderr=json_)
    trackers = chosen(tensorboard=tensorboard, mlflow=mlflow, wandb=wandb)
    names = list(ALGORITHMS) if algorithms == "all" else [name.strip() for name in algorithms.split(",")]
    names = list(dict.fromkeys(names))  # each once
    with exit_on(ValueError, OSError):
        cluster = find_engine(engine, address=address, workers=workers, cores=cores)
        configs = [
            configure(
                scenario,
                algorithm=name,
                preset=preset,
                time_model=time_model,
                policy=policy,
                seed=seed,
                device=device,
                precision=cast("Precision", precision),
                num_uploads=num_uploads,
                num_clients=num_clients,
                validation=validation,
                **parse_settings(setting or []),
            )
            for seed in range(seeds)
            for name in names
        ]
        whole = {"algorithms": names, "seeds": seeds, "first": configs[0].to_json()}
        folder = open_folder(out, f"{configs[0].scenario.name}-compare", whole, resume=resume)
        folders = [_subfolder(folder.path, config, resume=resume) for config in configs]
        tracked = [(own.to_json(), each.path) for each, own in zip(folders, configs, strict=True)]
        results: dict[int, Finished] = {}
        metrics: list[dict[str, Any]] = jsonable(configs[0].scenario.metrics)
        title = f"{configs[0].scenario.name}, {seeds} seed{'s' if seeds > 1 else ''}: mean and deviation of "
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        bar = Progress(*columns, console=console)
        total = sum(config.scenario.num_uploads for config in configs)
        uploads_done = bar.add_task("reading data", total=None)

        def pretrained(done: int, steps: int) -> None:
            bar.update(uploads_done, description="pre-training", completed=done, total=steps)

        with (
            interruptible(folder, folders, total),
            shown(Nothing() if console.is_terminal else Lines(total), note) as show_event,
            pretraining_shown_by(pretrained) if console.is_terminal else nullcontext(),
            tracking(trackers, tracked) as track,
            Live(console=console, transient=True, refresh_per_second=4) as live,
            closing(compare_events(configs, folders, data_dir, resume=resume, engine=cluster)) as events,
        ):
            live.update(bar)
            for which, event in events:
                if isinstance(event, Started) and bar.tasks[0].description != "uploads":
                    bar.reset(uploads_done, description="uploads", total=total)
                show_event(event)
                track(which, event)
                if isinstance(event, Uploaded | Diverged):
                    bar.advance(uploads_done)
                if isinstance(event, Finished):
                    results[which] = event
                if _worth_showing(event):
                    live.update(Group(*tables(title, names, metrics, configs, results), bar))
    notes = [
        f"{configs[which].algorithm}, seed {configs[which].seed}: {end.shortfall}"
        for which, end in sorted(results.items())
        if end.shortfall
    ]
    scores = {name: {column: _values(name, column, configs, results) for column in COLUMNS} for name in names}
    more = {
        metric["name"]: {
            name: {column: _values(name, column, configs, results, metric["name"]) for column in SCORE_COLUMNS}
            for name in names
        }
        for metric in metrics[1:]
    }
    summary = {"metrics": metrics, "scores": scores, "more": more}
    (folder.path / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    notes.append(f"results in {folder.path}/: summary.json and a folder for each run")
    notes += look_at(track.where)
    values = {"folder": str(folder.path)} | summary
    show(values, Group(*tables(title, names, metrics, configs, results)), as_json=json_, notes=notes)


def tables(
    title: str,
    names: list[str],
    metrics: list[dict[str, Any]],
    configs: list[RunConfig],
    results: dict[int, Finished],
) -> list[Table]:
    """Return the scores and the costs of each algorithm, from the runs finished so far; each fits 80 columns."""
    words = [SHORT_WORDS[column] for column in SCORE_COLUMNS]
    scores = [make_table("algorithm", *words[:-1], title=title + _label(metrics[0]))]
    for metric in metrics[1:]:
        scores.append(make_table("algorithm", *words, title=_label(metric)))
        for name in names:
            row = [_values(name, column, configs, results, metric["name"]) for column in SCORE_COLUMNS]
            scores[-1].add_row(name, *map(_spread, row))
    costs = make_table(
        "algorithm", SHORT_WORDS["cluster"], SHORT_WORDS["divergence"], "MB down", "client GFLOP", "server GFLOP"
    )
    for name in names:
        done = [result for which, result in results.items() if configs[which].algorithm == name]
        cells = {column: _values(name, column, configs, results) for column in COLUMNS}
        scores[0].add_row(name, *(_spread(cells[column]) for column in SCORE_COLUMNS[:-1]))
        costs.add_row(
            name,
            _spread(cells["cluster"]),
            f"{fmean(cells['divergence']):.3f}" if cells["divergence"] else "",
            *(
                f"{fmean(values):.1f}" if (values := [getattr(result, cost) / scale for result in done]) else ""
                for cost, scale in (("bytes_down", 1e6), ("client_flops", 1e9), ("server_flops", 1e9))
            ),
        )
    return [*scores, costs]


def _label(metric: dict[str, Any]) -> str:
    return metric_label(f"held-out {metric['name']}", higher_is_better=metric["higher_is_better"])


def _values(
    name: str, column: str, configs: list[RunConfig], results: dict[int, Finished], metric: str = ""
) -> list[float]:
    """Return one number for each seed, in the order of the seeds; by the main metric unless another is named."""
    ended = [results[which] for which in sorted(results) if configs[which].algorithm == name]
    found = [end.more[metric].get(column) if metric else getattr(end, column) for end in ended]
    return [value for value in found if value is not None]


def _spread(values: list[float]) -> str:
    return score_text(fmean(values), stdev(values) if len(values) > 1 else None) if values else ""


def _subfolder(parent: Path, config: RunConfig, *, resume: bool) -> RunFolder:
    path = parent / f"{config.algorithm}-{config.seed}"
    begun = resume and (path / "config.json").exists()
    return RunFolder(path) if begun else RunFolder.create(path, config.to_json())


def _worth_showing(event: Event) -> bool:
    return isinstance(event, Finished) or (isinstance(event, Uploaded) and event.epoch % 5 == 0)
