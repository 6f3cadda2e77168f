"""`cdfl run`: run one scenario with one algorithm and one seed."""

from contextlib import closing
from dataclasses import asdict
from statistics import fmean
from typing import Annotated, cast

import typer
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
from cdfl.on_ray.connection import find_engine
from cdfl.report.progress_display import display, shown
from cdfl.run_events import Clusters, Finished, Started, metric_label, score_text
from cdfl.sim.engine_choice import Precision
from cdfl.sim.runner import configure, run_events


def run(
    scenario: ScenarioName,
    algorithm: Annotated[str, typer.Option(help=f"One of {', '.join(ALGORITHMS)}.")] = "cdfl",
    seed: Annotated[
        int, typer.Option(help="Seed of data, weights and order. The same seed gives the same result.")
    ] = 0,
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
    """Run a scenario; show progress and a summary, and write all events to a folder.

    `cdfl watch` shows the folder in a browser, also while the run goes on.
    """
    trackers = chosen(tensorboard=tensorboard, mlflow=mlflow, wandb=wandb)
    with exit_on(ValueError, OSError):
        cluster = find_engine(engine, address=address, workers=workers, cores=cores)
        config = configure(
            scenario,
            algorithm=algorithm,
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
        folder = open_folder(out, f"{config.scenario.name}-{algorithm}-{seed}", config.to_json(), resume=resume)
        opened, starts, ends = [], [], []
        total = config.scenario.num_uploads
        with (
            interruptible(folder, [folder], total),
            shown(display(total), note) as show_event,
            tracking(trackers, [(config.to_json(), folder.path)]) as track,
            closing(run_events(config, folder, data_dir, resume=resume, engine=cluster)) as events,
        ):
            for event in events:
                show_event(event)
                track(0, event)
                if isinstance(event, Started):
                    opened.append(event)
                if isinstance(event, Clusters) and event.epoch == 0:
                    starts.append(event)
                if isinstance(event, Finished):
                    ends.append(event)
    notes = [ends[0].shortfall] if ends[0].shortfall else []
    notes.append(f"results in {folder.path}/: config, versions, events, models")
    notes += look_at(track.where)
    values = {"folder": str(folder.path), "metrics": opened[0].metrics} | asdict(ends[0])
    show(values, _table(opened[0], starts[0], ends[0]), as_json=json_, notes=notes)


def _table(opened: Started, start: Clusters, end: Finished) -> Table:
    """Return the summary of a run: one column for each metric."""
    title = f"{opened.algorithm} on {opened.scenario}, seed {opened.seed}: {end.uploads} uploads"
    labels = [metric_label(metric["name"], higher_is_better=metric["higher_is_better"]) for metric in opened.metrics]
    table = make_table("on held-out data", *labels, title=title)
    held, before, after, served_held, served, cluster = (
        [getattr(end, name), *(end.more[metric["name"]].get(name) for metric in opened.metrics[1:])]
        for name in ("held", "before", "after", "served_held", "served", "cluster")
    )
    at_start = [fmean(scores) for scores in (start.scores, *start.more.values())]
    is_routed = "one" in end.routed
    one_model = ", without experts" if is_routed else ""
    table.add_row(f"clients, old model{one_model}", *map(score_text, held))
    table.add_row("clients, own training", *map(score_text, before))
    table.add_row(f"clients, new model{one_model}", *map(score_text, after))
    if is_routed:
        table.add_row("clients, old model, with experts", *map(score_text, served_held))
        table.add_row("clients, new model, with experts", *map(score_text, served))
        table.add_row("clients, new model, likeliest expert for each input", score_text(end.routed["one"]))
    table.add_row("clusters, at the start", *map(score_text, at_start))
    table.add_row("clusters, at the end", *map(score_text, cluster), end_section=True)
    if end.divergence is not None:
        table.add_row("mixture error (KL), 0 is exact", f"{end.divergence:.3f}")
    table.add_row("uploads that were too stale", f"{end.deprecated_share:.1%}")
    table.add_row("megabytes up / down", f"{end.bytes_up / 1e6:.1f} / {end.bytes_down / 1e6:.1f}")
    return table
