"""Flags for trackers, and how commands feed them."""

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cdfl.cli.options import flag, note
from cdfl.run_series import server_scalars, tracked_names
from cdfl.track import TRACKERS, Tracking, open_tracker, open_trackers

if TYPE_CHECKING:  # needs the extra `server`
    from cdfl.server.store_records import Entry

MOST_WAITING = 10_000  # uploads that trackers have not recorded yet

ToTensorBoard = Annotated[bool, flag("--tensorboard", "Record for TensorBoard, in the folder of the run.")]
ToMLflow = Annotated[bool, flag("--mlflow", "Record with MLflow, where MLFLOW_TRACKING_URI says.")]
ToWandb = Annotated[bool, flag("--wandb", "Record with Weights & Biases; WANDB_MODE=offline stays here.")]


def chosen(*, tensorboard: bool, mlflow: bool, wandb: bool) -> list[str]:
    """Return the names of the trackers that were asked for."""
    asked = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
    return [name for name in TRACKERS if asked[name]]


def run_name(folder: Path) -> str:
    """Return what a tracker calls a run: its folder and the one above, which tell comparisons apart.

    >>> run_name(Path("/home/me/runs/digits-4-compare/cdfl-0"))
    'digits-4-compare/cdfl-0'
    """
    return "/".join(folder.resolve().parts[-2:])


@contextmanager
def tracking(names: Sequence[str], runs: Sequence[tuple[Mapping[str, Any], Path]]) -> Iterator[Tracking]:
    """Record runs, as (config, folder), with some trackers; yield a function of (which run, event)."""
    named = [(run_name(folder), config, folder) for config, folder in runs]
    with _install_hint(), open_trackers(names, named, _warn) as track:
        yield track


def look_at(places: Sequence[str]) -> list[str]:
    """Return how to look at what was recorded: one line for each tracker, or for each run on a site."""
    return [f"look: {where}" for where in places]


def _warn(sentence: str) -> None:
    note(f"cdfl: {sentence}")


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
    """A listener of the engine that feeds trackers from a thread of its own: they may wait for a network.

    While they wait too long, uploads are left out.
    """

    def __init__(self, track: Tracking, clusters: Sequence[str]) -> None:
        self._track, self._clusters = track, tracked_names(clusters)
        self._waiting: queue.Queue[Entry | None] = queue.Queue(MOST_WAITING)
        self._is_full = False
        self._thread = threading.Thread(target=self._run, name="cdfl-tracking")
        self._thread.start()

    def joined(self, client_id: str) -> None:
        """Trackers record uploads only."""

    def forgot(self, client_id: str) -> None:
        """Trackers record nothing of single clients."""

    def committed(self, entries: "Sequence[Entry]") -> None:
        """Record uploads."""
        for entry in entries:
            try:
                self._waiting.put_nowait(entry)
            except queue.Full:
                if not self._is_full:
                    _warn(f"trackers are {MOST_WAITING:,} uploads behind; they miss uploads from now on")
                self._is_full = True

    def close(self) -> None:
        """Write what is left."""
        self._waiting.put(None)
        self._thread.join()
        self._track.close(is_complete=True)

    def _run(self) -> None:
        while (entry := self._waiting.get()) is not None:
            values = server_scalars(entry.outcome, entry.staleness, entry.cluster_losses, self._clusters, entry.report)
            self._track.log(0, entry.epoch, values)


@contextmanager
def tracked_server(
    names: Sequence[str], name: str, config: Mapping[str, Any], folder: Path, clusters: Sequence[str]
) -> Iterator[list[Any]]:
    """Yield the listeners that record a server: none if no tracker was asked for."""
    if not names:
        yield []
        return
    with _install_hint():
        track = Tracking([{each: open_tracker(each, name, config, folder) for each in names}], _warn)
    for line in look_at(track.where):
        note(line)
    listener = ServerTracking(track, clusters)
    try:
        yield [listener]
    finally:
        listener.close()
