"""`cdfl track`: hand recorded runs to trackers."""

from cdfl.cli.options import Json, counted, exit_on
from cdfl.cli.plot import Runs
from cdfl.cli.run_folders import find_runs, warn_of_cut_lines
from cdfl.cli.stores import progress_bar
from cdfl.cli.tables import show
from cdfl.cli.tracking import ToMLflow, ToTensorBoard, ToWandb, chosen, look_at, tracking
from cdfl.run_events import Uploaded, only


def track(
    runs: Runs,
    tensorboard: ToTensorBoard = False,
    mlflow: ToMLflow = False,
    wandb: ToWandb = False,
    json_: Json = False,
) -> None:
    """Record finished runs with trackers. `cdfl run`, `compare` and `serve` have the same flags."""
    with exit_on(ValueError, OSError):
        names = chosen(tensorboard=tensorboard, mlflow=mlflow, wandb=wandb)
        if not names:
            raise ValueError("expected at least one of --tensorboard, --mlflow and --wandb")
        found = find_runs(runs)
        warn_of_cut_lines(found)
        where: list[str] = []
        for name, run in found.items():
            config = run.config() if (run.path / "config.json").exists() else {}
            events = run.events()
            if not only(events, Uploaded):
                raise ValueError(f"{name} has no uploads yet; let the run make some first")
            with tracking(names, [(config, run.path)]) as record, progress_bar(name) as progress:
                for done, event in enumerate(events, start=1):
                    record(0, event)
                    progress(done, len(events))
            where += record.where
    where = list(dict.fromkeys(where))
    show(
        {"runs": list(found), "trackers": names, "look": where},
        None,
        as_json=json_,
        notes=[f"recorded {counted(len(found), 'run')} with {', '.join(names)}", *look_at(where)],
    )
