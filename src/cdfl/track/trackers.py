"""Each tracker records numbers by name and step. Its package is imported only if it is asked for."""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from cdfl.run_events import Event
from cdfl.run_series import Scalars

PROJECT = "cdfl"
BATCH = 500  # numbers that MLflow is sent together
SECONDS = 5.0  # after which MLflow is sent what there is, for those who watch
LONGEST = 500  # characters of a parameter that MLflow takes


class Tracker(Protocol):
    """Records one run."""

    where: str  # how to look at what was recorded: a command, or an address

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers at a step: the number of uploads so far."""
        ...

    def close(self, *, is_complete: bool = True) -> None:
        """Write what is left; say whether the run came to its end."""
        ...


class TensorBoard:
    """Writes an event file into the folder `tensorboard` of the run; look at it with `tensorboard --logdir runs`."""

    def __init__(self, name: str, config: Mapping[str, Any], folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        make: Any = SummaryWriter
        self._writer = make(log_dir=str(folder / "tensorboard"))
        self._writer.add_text("config", f"```json\n{json.dumps(config, indent=2, default=str)}\n```")
        self.where = f"tensorboard --logdir {folder.parent}"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers at a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self, *, is_complete: bool = True) -> None:
        """Write what is left."""
        self._writer.close()


class MLflow:
    """Logs to the tracking server that MLFLOW_TRACKING_URI names, or as MLflow does by default."""

    def __init__(self, name: str, config: Mapping[str, Any], folder: Path) -> None:
        import mlflow

        self._client: Any = mlflow.MlflowClient()
        experiment = mlflow.set_experiment(PROJECT)
        tags = {tag: value for tag, value in _identity(config).items() if value}
        self._run = self._client.create_run(experiment.experiment_id, run_name=name, tags=tags).info.run_id
        parameters = [mlflow.entities.Param(name, value[:LONGEST]) for name, value in _flat(config)]
        for begin in range(0, len(parameters), 100):  # the most it takes at once
            self._client.log_batch(self._run, params=parameters[begin : begin + 100])
        self._metric, self._held, self._sent = mlflow.entities.Metric, list[Any](), time.monotonic()
        self.where = f"mlflow ui --backend-store-uri {mlflow.get_tracking_uri()}"
        if mlflow.get_tracking_uri().startswith("http"):
            self.where = f"{mlflow.get_tracking_uri()}/#/experiments/{experiment.experiment_id}"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers at a step."""
        now = int(1000 * time.time())
        self._held += [self._metric(name, value, now, step) for name, value in values.items()]
        if len(self._held) >= BATCH or time.monotonic() - self._sent > SECONDS:
            self._send()

    def close(self, *, is_complete: bool = True) -> None:
        """Write what is left, and end the run."""
        self._send()
        self._client.set_terminated(self._run, status="FINISHED" if is_complete else "KILLED")

    def _send(self) -> None:
        for begin in range(0, len(self._held), BATCH):
            self._client.log_batch(self._run, metrics=self._held[begin : begin + BATCH])
        self._held, self._sent = [], time.monotonic()


class WeightsAndBiases:
    """Logs to Weights & Biases; WANDB_MODE=offline writes to the folder of the run instead."""

    def __init__(self, name: str, config: Mapping[str, Any], folder: Path) -> None:
        import wandb

        settings = json.loads(json.dumps(config, default=str))
        is_offline = os.environ.get("WANDB_MODE") == "offline"
        about = _identity(config)
        self._run: Any = wandb.init(
            project=PROJECT,
            name=name,
            group=" on ".join(filter(None, (about["algorithm"], about["scenario"]))) or None,  # seeds are one curve
            config=settings,
            dir=str(folder),
            reinit="create_new",  # several runs at a time
            settings=wandb.Settings(quiet=True, silent=is_offline, console="off"),
        )
        self.where = f"wandb sync {Path(self._run.dir).parent}" if is_offline else str(self._run.url)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers at a step."""
        self._run.log(dict(values), step=step)

    def close(self, *, is_complete: bool = True) -> None:
        """Write what is left, and end the run."""
        self._run.finish(exit_code=0 if is_complete else 1)


TRACKERS: dict[str, Callable[[str, Mapping[str, Any], Path], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


def open_tracker(tracker: str, name: str, config: Mapping[str, Any], folder: Path, *, is_new: bool = False) -> Tracker:
    """Open one tracker for one run; raise ValueError with one sentence if it cannot record.

    `is_new`: the run is recorded from its first event, so older files of TensorBoard are deleted.
    """
    try:
        if is_new and tracker == "tensorboard":
            for file in (folder / "tensorboard").glob("events.out.tfevents.*"):
                file.unlink()
        return TRACKERS[tracker](name, config, folder)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # each package has errors of its own
        raise ValueError(f"{tracker} cannot record: {_sentence(error)}") from error


class Tracking:
    """Feeds the trackers of some runs. One that fails is closed, and the run goes on without it."""

    def __init__(self, opened: Sequence[Mapping[str, Tracker]], warn: Callable[[str], object]) -> None:
        self._opened = [dict(trackers) for trackers in opened]
        self._scalars = [Scalars() for _ in opened]
        self._warn = warn
        self.where = list(dict.fromkeys(tracker.where for trackers in opened for tracker in trackers.values()))

    def __call__(self, which: int, event: Event) -> None:
        """Record an event of one of the runs."""
        found = self._scalars[which].of(event) if self._opened[which] else None
        if found is not None:
            self.log(which, *found)

    def log(self, which: int, step: int, values: Mapping[str, float]) -> None:
        """Record numbers of one of the runs."""
        for name, tracker in list(self._opened[which].items()):
            try:
                tracker.log(step, values)
            except Exception as error:
                del self._opened[which][name]
                self._warn(f"{name} stopped recording: {_sentence(error)}")

    def close(self, *, is_complete: bool) -> None:
        """Close all trackers."""
        for trackers in self._opened:
            for name, tracker in trackers.items():
                try:
                    tracker.close(is_complete=is_complete)
                except Exception as error:
                    self._warn(f"{name} could not write the last numbers: {_sentence(error)}")


@contextmanager
def open_trackers(
    names: Iterable[str],
    runs: Sequence[tuple[str, Mapping[str, Any], Path]],
    warn: Callable[[str], object],
) -> Iterator[Tracking]:
    """Open trackers for some runs, as (name, config, folder); yield a function of (which run, event).

    Runs are recorded from their first event: what TensorBoard has of them already is replaced.
    """
    opened: list[dict[str, Tracker]] = [{} for _ in runs]
    tracking = None
    is_complete = False
    try:
        for which, run in enumerate(runs):
            for name in names:
                opened[which][name] = open_tracker(name, *run, is_new=True)
        tracking = Tracking(opened, warn)
        yield tracking
        is_complete = True
    finally:
        (tracking or Tracking(opened, warn)).close(is_complete=is_complete)


def _identity(config: Mapping[str, Any]) -> dict[str, str]:
    """Return what tells runs apart, of the config of a run; empty strings for a server."""
    scenario = config.get("scenario")
    found = {"scenario": scenario.get("name") if isinstance(scenario, Mapping) else None}
    found |= {name: config.get(name) for name in ("algorithm", "seed")}
    return {name: "" if value is None else str(value) for name, value in found.items()}


def _sentence(error: Exception) -> str:
    """Return the first line of an error."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def _flat(values: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(values, Mapping) and values:
        for name, value in values.items():
            yield from _flat(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, values if isinstance(values, str) else json.dumps(values, default=str)
