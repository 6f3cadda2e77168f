"""Each tracker records numbers by name and step. Its package is imported only if it is asked for."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from cdfl.record import Event
from cdfl.series import scalars

PROJECT = "cdfl"
BATCH = 500  # numbers that MLflow is sent together
LONGEST = 500  # characters of a parameter that MLflow takes


class Tracker(Protocol):
    """Records one run."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers at a step: the number of uploads so far."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


class TensorBoard:
    """Writes an event file into the folder `tensorboard` of the run; look at it with `tensorboard --logdir runs`."""

    def __init__(self, name: str, config: Mapping[str, Any], folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        make: Any = SummaryWriter
        self._writer = make(log_dir=str(folder / "tensorboard"))
        self._writer.add_text("config", f"```json\n{json.dumps(config, indent=2, default=str)}\n```")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers at a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class MLflow:
    """Logs to the tracking server that MLFLOW_TRACKING_URI names, or as MLflow does by default."""

    def __init__(self, name: str, config: Mapping[str, Any], folder: Path) -> None:
        import mlflow

        self._client: Any = mlflow.MlflowClient()
        experiment = mlflow.set_experiment(PROJECT)
        self._run = self._client.create_run(experiment.experiment_id, run_name=name).info.run_id
        for parameter, value in _flat(config):
            self._client.log_param(self._run, parameter, value[:LONGEST])
        self._metric, self._held = mlflow.entities.Metric, list[Any]()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers at a step."""
        now = int(1000 * time.time())
        self._held += [self._metric(name.replace("°", " deg"), value, now, step) for name, value in values.items()]
        if len(self._held) >= BATCH:
            self._send()

    def close(self) -> None:
        """Write what is left, and end the run."""
        self._send()
        self._client.set_terminated(self._run)

    def _send(self) -> None:
        for begin in range(0, len(self._held), BATCH):
            self._client.log_batch(self._run, metrics=self._held[begin : begin + BATCH])
        self._held = []


class WeightsAndBiases:
    """Logs to Weights & Biases; WANDB_MODE=offline writes to the folder of the run instead."""

    def __init__(self, name: str, config: Mapping[str, Any], folder: Path) -> None:
        import wandb

        settings = json.loads(json.dumps(config, default=str))
        self._run: Any = wandb.init(
            project=PROJECT,
            name=name,
            config=settings,
            dir=str(folder),
            reinit="create_new",  # several runs at a time
            settings=wandb.Settings(quiet=True, console="off"),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers at a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Write what is left, and end the run."""
        self._run.finish()


TRACKERS: dict[str, Callable[[str, Mapping[str, Any], Path], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


@contextmanager
def open_trackers(
    names: Iterable[str], runs: Sequence[tuple[str, Mapping[str, Any], Path]]
) -> Iterator[Callable[[int, Event], None]]:
    """Open trackers for some runs, as (name, config, folder); yield a function of (which run, event)."""
    with ExitStack() as stack:
        opened: list[list[Tracker]] = [[] for _ in runs]
        for which, run in enumerate(runs):
            for name in names:
                tracker = TRACKERS[name](*run)
                stack.callback(tracker.close)
                opened[which].append(tracker)

        def track(which: int, event: Event) -> None:
            found = scalars(event) if opened[which] else None
            if found is not None:
                for tracker in opened[which]:
                    tracker.log(*found)

        yield track


def _flat(values: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(values, Mapping) and values:
        for name, value in values.items():
            yield from _flat(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, json.dumps(values, default=str)
