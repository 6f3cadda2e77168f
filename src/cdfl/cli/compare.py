"""`cdfl compare`: several algorithms and seeds over one scenario."""

import json
from contextlib import closing
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, cast

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from cdfl.algorithms import ALGORITHMS
from cdfl.cli.keeping import keeping
from cdfl.cli.options import (
    Clients,
    DataDir,
    DeviceName,
    Out,
    PolicyName,
    PrecisionName,
    PresetName,
    Resume,
    ScenarioName,
    SetOption,
    TimeModelName,
    Uploads,
    open_folder,
    parse_settings,
    refuse,
)
from cdfl.cli.progress import lines
from cdfl.record import Diverged, Event, Finished, RunFolder, Uploaded
from cdfl.sim.engine_choice import Precision
from cdfl.sim.runner import RunConfig, compare_events, configure

COLUMNS = ("before", "after", "cluster", "divergence")


def compare(
    scenario: ScenarioName,
    algorithms: Annotated[
        str, typer.Option(help=f"Names with commas between them: {', '.join(ALGORITHMS)}; or all.")
    ] = "cdfl,local,fedasync",
    seeds: Annotated[int, typer.Option(min=1, help="How many trials, with seeds 0, 1, 2, ...")] = 3,
    device: DeviceName = "auto",
    out: Out = None,
    preset: PresetName = "default",
    time_model: TimeModelName = None,
    policy: PolicyName = "always",
    precision: PrecisionName = "auto",
    clients: Clients = None,
    uploads: Uploads = None,
    setting: SetOption = None,
    resume: Resume = False,
    data_dir: DataDir = None,
) -> None:
    """Compare algorithms over several seeds: live table, mean and standard deviation, a folder for each run."""
    console = Console()
    names = list(ALGORITHMS) if algorithms == "all" else [name.strip() for name in algorithms.split(",")]
    names = list(dict.fromkeys(names))  # each once
    with refuse(ValueError, OSError):
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
                num_uploads=uploads,
                num_clients=clients,
                **parse_settings(setting or []),
            )
            for seed in range(seeds)
            for name in names
        ]
        whole = {"algorithms": names, "seeds": seeds, "first": configs[0].to_json()}
        folder = open_folder(out, f"{configs[0].scenario.name}-compare", whole, resume=resume)
        folders = [_subfolder(folder.path, config, resume=resume) for config in configs]
        results: dict[int, Finished] = {}
        title = f"{configs[0].scenario.name}, {seeds} seeds: mean and deviation of held-out accuracy"
        bar = Progress(TextColumn("uploads"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console)
        num_uploads = sum(config.scenario.num_uploads for config in configs)
        uploads_done = bar.add_task("", total=num_uploads)
        with (
            keeping(folder, folders, num_uploads),
            lines(console, num_uploads) as count,
            Live(console=console, transient=True, refresh_per_second=4) as live,
            closing(compare_events(configs, folders, data_dir, resume=resume)) as events,
        ):
            for which, event in events:
                count(event)
                if isinstance(event, Uploaded | Diverged):
                    bar.advance(uploads_done)
                if isinstance(event, Finished):
                    results[which] = event
                if _worth_showing(event):
                    live.update(Group(table(title, names, configs, results), bar))
    console.print(table(title, names, configs, results))
    for which, end in sorted(results.items()):
        if end.shortfall:
            told = f"{configs[which].algorithm}, seed {configs[which].seed}: {end.shortfall}"
            console.print(told, highlight=False, soft_wrap=True)
    summary = {name: {column: _values(name, column, configs, results) for column in COLUMNS} for name in names}
    (folder.path / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    console.print(f"kept in {folder.path}/: summary.json and a folder for each run", highlight=False, markup=False)


def table(title: str, names: list[str], configs: list[RunConfig], results: dict[int, Finished]) -> Table:
    """What is known so far, a row an algorithm."""
    shown = Table(title=escape(title), title_justify="left")
    shown.add_column("algorithm")
    for column in ("before", "after", "clusters", "KL", "MB down", "client GFLOP", "server GFLOP"):
        shown.add_column(column, justify="right")
    for name in names:
        done = [result for which, result in results.items() if configs[which].algorithm == name]
        cells = [_spread(_values(name, column, configs, results)) for column in COLUMNS]
        costs = [
            f"{fmean(values):.1f}" if (values := [getattr(result, cost) / scale for result in done]) else ""
            for cost, scale in (("bytes_down", 1e6), ("client_flops", 1e9), ("server_flops", 1e9))
        ]
        shown.add_row(name, *cells, *costs)
    return shown


def _values(name: str, column: str, configs: list[RunConfig], results: dict[int, Finished]) -> list[float]:
    """One number a seed, in the order of the seeds whatever run was over first."""
    found = [getattr(results[which], column) for which in sorted(results) if configs[which].algorithm == name]
    return [value for value in found if value is not None]


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def _subfolder(parent: Path, config: RunConfig, *, resume: bool) -> RunFolder:
    path = parent / f"{config.algorithm}-{config.seed}"
    begun = resume and (path / "config.json").exists()
    return RunFolder(path) if begun else RunFolder.create(path, config.to_json())


def _worth_showing(event: Event) -> bool:
    return isinstance(event, Finished) or (isinstance(event, Uploaded) and event.epoch % 5 == 0)
