"""`cdfl run`: one scenario, one algorithm, one seed."""

from contextlib import closing
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.markup import escape
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
from cdfl.cli.progress import lines, watch
from cdfl.record import Clusters, Finished
from cdfl.sim.engine_choice import Precision
from cdfl.sim.runner import configure, run_events


def run(
    scenario: ScenarioName,
    algorithm: Annotated[str, typer.Option(help=f"One of {', '.join(ALGORITHMS)}.")] = "cdfl",
    seed: Annotated[int, typer.Option(help="Decides data, weights and order; same seed, same result.")] = 0,
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
    """Run a scenario: live progress, a short table, and a folder that holds everything."""
    console = Console()
    with refuse(ValueError, OSError):
        config = configure(
            scenario,
            algorithm=algorithm,
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
        folder = open_folder(out, f"{config.scenario.name}-{algorithm}-{seed}", config.to_json(), resume=resume)
        starts, ends = [], []
        num_uploads = config.scenario.num_uploads
        with (
            keeping(folder, [folder], num_uploads),
            lines(console, num_uploads) as count,
            closing(run_events(config, folder, data_dir, resume=resume)) as events,
        ):
            for event in watch(events, console):
                count(event)
                if isinstance(event, Clusters) and event.epoch == 0:
                    starts.append(event)
                if isinstance(event, Finished):
                    ends.append(event)
    console.print(_table(config.scenario.name, algorithm, seed, starts[0], ends[0]))
    if ends[0].shortfall:
        console.print(ends[0].shortfall, highlight=False, soft_wrap=True)
    console.print(f"kept in {folder.path}/: config.json, versions.json, events.jsonl", highlight=False, markup=False)


def _table(scenario: str, algorithm: str, seed: int, start: Clusters, end: Finished) -> Table:
    title = escape(f"{algorithm} on {scenario}, seed {seed}: {end.uploads} uploads")  # a name may have brackets
    table = Table(title=title, title_justify="left")
    table.add_column("held-out accuracy", justify="left")
    table.add_column("", justify="right")
    table.add_row("clients, before their upload", "-" if end.before is None else f"{end.before:.3f}")
    table.add_row("clients, after the reply", "-" if end.after is None else f"{end.after:.3f}")
    table.add_row("clusters, at the start", f"{sum(start.accuracies) / len(start.accuracies):.3f}")
    table.add_row("clusters, at the end", f"{end.cluster:.3f}", end_section=True)
    if end.divergence is not None:
        table.add_row("KL, true to estimated mixture", f"{end.divergence:.3f}")
    table.add_row("uploads too stale to count", f"{end.deprecated_share:.1%}")
    table.add_row("megabytes up / down", f"{end.bytes_up / 1e6:.1f} / {end.bytes_down / 1e6:.1f}")
    return table
