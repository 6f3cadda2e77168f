"""Flags for trackers, and how commands feed them."""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cdfl.cli.options import flag
from cdfl.record import Event
from cdfl.series import server_scalars
from cdfl.track import TRACKERS, Tracker, open_trackers

if TYPE_CHECKING:  # needs the extra `server`
    from cdfl.server.records import Entry

ToTensorBoard = Annotated[bool, flag("--tensorboard", "Record for TensorBoard, in the folder of the run.")]
ToMLflow = Annotated[bool, flag("--mlflow", "Record with MLflow, where MLFLOW_TRACKING_URI says.")]
ToWandb = Annotated[bool, flag("--wandb", "Record with Weights & Biases; WANDB_MODE=offline stays here.")]


def chosen(*, tensorboard: bool, mlflow: bool, wandb: bool) -> list[str]:
    """Return the names of the trackers that were asked for."""
    asked = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
    return [name for name in TRACKERS if asked[name]]


@contextmanager
def tracking(
    names: Sequence[str], runs: Sequence[tuple[str, Mapping[str, Any], Path]]
) -> Iterator[Callable[[int, Event], None]]:
    """Record runs, as (name, config, folder), with some trackers; yield a function of (which run, event)."""
    with _install_hint(), open_trackers(names, runs) as track:
        yield track


@contextmanager
def _install_hint() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        needed = {"tensorboard": "tensorboard", "mlflow": "mlflow", "alembic": "mlflow", "wandb": "wandb"}.get(missing)
        if needed is None:
            raise
        raise ValueError(f"--{needed} needs: pip install 'cdfl[{needed}]'") from None


class ServerTracking:
    """A listener of the engine that feeds trackers from a thread of its own: they may wait for a network."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = trackers
        self._waiting: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="cdfl-tracking")
        self._thread.start()

    def joined(self, client_id: str) -> None:
        """Trackers record uploads only."""

    def forgot(self, client_id: str) -> None:
        """Trackers record nothing of single clients."""

    def committed(self, entries: "Sequence[Entry]") -> None:
        """Record uploads."""
        for entry in entries:
            self._waiting.put(entry)

    def close(self) -> None:
        """Write what is left."""
        self._waiting.put(None)
        self._thread.join()
        for tracker in self._trackers:
            tracker.close()

    def _run(self) -> None:
        while (entry := self._waiting.get()) is not None:
            values = server_scalars(entry.outcome, entry.staleness, entry.cluster_losses)
            for tracker in self._trackers:
                tracker.log(entry.epoch, values)


@contextmanager
def tracked_server(names: Sequence[str], name: str, config: Mapping[str, Any], folder: Path) -> Iterator[list[Any]]:
    """Yield the listeners that record a server: none if no tracker was asked for."""
    if not names:
        yield []
        return
    with _install_hint():
        listener = ServerTracking([TRACKERS[each](name, config, folder) for each in names])
    try:
        yield [listener]
    finally:
        listener.close()
