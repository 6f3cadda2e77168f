"""Whole runs on the workers of a cluster, side by side: for comparisons and sweeps.

A worker does a run as the local engine does, and sends what happens in parts: events, and a checkpoint now and then. If
it is lost, another continues from the last checkpoint; events that were told already are not told again.
"""

import json
import logging
import queue
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from cdfl.data import Federation
from cdfl.json_values import jsonable
from cdfl.on_ray.connection import RayEngine, connected
from cdfl.on_ray.pool import (
    MOST_TRIES,
    POLL,
    SECONDS_BETWEEN_NOTES,
    check_room,
    first_line,
    free_cores,
    resources,
    room,
)
from cdfl.on_ray.serialization import Serialized, deserialize, serialize
from cdfl.run_events import Event, Finished, pretraining
from cdfl.run_folder import RunFolder
from cdfl.sim import checkpoint
from cdfl.sim.engine_choice import make_engines
from cdfl.sim.run_models import RunModels
from cdfl.sim.runner import RunConfig, read_data, run_simulations, simulations

SECONDS_BETWEEN_PARTS = 0.25
log = logging.getLogger("cdfl")


@dataclass
class Part:
    """What happened in a run since the last part."""

    events: list[Event] = field(default_factory=list)
    checkpoint: bytes | None = None
    pretraining: tuple[int, int] | None = None  # steps so far, steps in all
    models: Serialized | None = None  # at the end


@dataclass(frozen=True)
class Past:
    """A run that was begun: its events, and where it can be continued."""

    events: list[Event]
    checkpoint: bytes | None


def run_remotely(serialized: Serialized, data: Serialized, past: Past, cores: int, *, personal: bool) -> Iterator[Part]:
    """Do a run on a worker, and yield its parts."""
    torch.set_num_threads(cores)
    config: RunConfig = deserialize(serialized)
    federation: Federation = deserialize(data)
    parts: queue.Queue[Part | BaseException | None] = queue.Queue()

    def work() -> None:
        try:
            with tempfile.TemporaryDirectory() as folder:
                _work(config, federation, past, Path(folder), cores, parts.put, personal=personal)
            parts.put(None)
        except BaseException as error:  # the thread that yields raises it
            parts.put(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while True:
        part = parts.get()
        time.sleep(SECONDS_BETWEEN_PARTS)
        joined = Part()
        while part is not None and not isinstance(part, BaseException):
            joined.events += part.events
            joined.checkpoint = part.checkpoint or joined.checkpoint
            joined.pretraining = part.pretraining or joined.pretraining
            joined.models = part.models or joined.models
            if parts.empty():
                break
            part = parts.get()
        yield joined
        if isinstance(part, BaseException):
            raise part
        if part is None:
            return


def _work(
    config: RunConfig,
    federation: Federation,
    past: Past,
    path: Path,
    cores: int,
    tell: Callable[[Part], None],
    *,
    personal: bool,
) -> None:
    """Do a run in a folder of this machine, and tell what happens."""
    folder = RunFolder.create(path / "run", config.to_json())
    with folder.writer(past.events):
        pass
    if past.checkpoint is not None:
        (folder.path / checkpoint.FILE).write_bytes(past.checkpoint)
    pretraining.set(lambda done, steps: tell(Part(pretraining=(done, steps))))
    built = simulations([config], make=partial(make_engines, cores=cores), federation=federation)
    saved, last = 0, list[Event]()

    def on_end(which: int, models: RunModels) -> None:
        tell(Part(last, models=serialize(models)))

    stream = run_simulations(built, [folder], resume=past.checkpoint is not None, on_end=on_end, personal=personal)
    with closing(stream) as events:
        for _, event in events:
            if isinstance(event, Finished):
                last.append(event)  # told with the models
                continue
            tell(Part([event]))
            file = folder.path / checkpoint.FILE
            if file.exists() and file.stat().st_mtime_ns != saved:
                saved = file.stat().st_mtime_ns
                tell(Part(checkpoint=file.read_bytes()))


class Spread:
    """Runs on a cluster, a worker each. Iterate over `parts`; a run that fails does not stop the others."""

    def __init__(
        self,
        ray: Any,
        engine: RayEngine,
        configs: Sequence[RunConfig],
        pasts: Sequence[Past] | None = None,
        *,
        modules: Sequence[ModuleType] = (),
        personal: bool = False,
    ) -> None:
        self.ray = ray
        self.engine = engine
        self.configs = configs
        self.modules = modules
        pasts = pasts or [Past([], None)] * len(configs)
        self.told = [list(past.events) for past in pasts]
        self.checkpoints = [past.checkpoint for past in pasts]
        self.personal = personal
        self.waiting = deque(
            which for which, past in enumerate(pasts) if not (past.events and isinstance(past.events[-1], Finished))
        )
        self._wanted = resources(engine, gpus=configs[0].device.startswith("cuda"))
        self._make = ray.remote(run_remotely)
        self._running: dict[Any, int] = {}  # stream of parts -> run
        self._repeated: dict[int, int] = {}  # events that a run will send, and that were told already
        self._tries: Counter[int] = Counter()
        self._data: dict[str, Any] = {}  # what the data depend on -> reference to them
        check_room(ray, self._wanted)

    def parts(self, data_dir: Path | None = None) -> Iterator[tuple[int, Part | Exception]]:
        """Yield what happens, with events that were not told before; an exception if a run has failed."""
        told = time.monotonic()
        while self.waiting or self._running:
            size = self.engine.workers or max(1, room(self.ray, self._wanted))
            while self.waiting and len(self._running) < size:
                self._begin(self.waiting.popleft(), data_dir)
            ready, _ = self.ray.wait(list(self._running), num_returns=1, timeout=POLL)
            if ready:
                told = time.monotonic()
                yield from self._next(ready[0])
            elif time.monotonic() - told > SECONDS_BETWEEN_NOTES:
                told = time.monotonic()
                log.warning("nothing happens since %.0f s: %s", SECONDS_BETWEEN_NOTES, free_cores(self.ray))

    def close(self) -> None:
        """End what still runs."""
        for stream in self._running:
            self.ray.cancel(stream, force=True)
        self._running = {}

    def _begin(self, which: int, data_dir: Path | None) -> None:
        """Let a worker begin a run, or continue it."""
        config = self.configs[which]
        held = self.checkpoints[which]
        events = self.told[which] if held is not None else []
        self._repeated[which] = len(self.told[which])
        device = config.device.partition(":")[0]  # Ray shows a worker its own GPU only
        arguments = (
            serialize(replace(config, device=device), self.modules),
            self._data_of(config, data_dir),
            Past(events, held),
            self.engine.cores,
        )
        options = self._wanted | {"num_returns": "streaming", "max_retries": 0}
        self._running[self._make.options(**options).remote(*arguments, personal=self.personal)] = which

    def _data_of(self, config: RunConfig, data_dir: Path | None) -> Any:
        """Return a reference to the data of a run: runs of one scenario share them."""
        name = json.dumps([jsonable(config.scenario.to_dict()), config.validation], default=str)
        if name not in self._data:
            self._data[name] = self.ray.put(serialize(read_data(config, data_dir), self.modules))
        return self._data[name]

    def _next(self, stream: Any) -> Iterator[tuple[int, Part | Exception]]:
        """Yield the next part of a run; if its worker is lost, let another continue."""
        which = self._running[stream]
        try:
            part: Part = self.ray.get(next(stream))
        except StopIteration:
            del self._running[stream]
        except self.ray.exceptions.RayTaskError as error:  # raised by the code of the run
            del self._running[stream]
            yield which, error.cause
        except self.ray.exceptions.RayError as error:
            del self._running[stream]
            self._tries[which] += 1
            log.warning("a worker is lost: %s; another continues its run", first_line(error))
            if self._tries[which] == MOST_TRIES:
                yield which, RuntimeError(f"{MOST_TRIES} workers were lost over this run: {first_line(error)}")
            else:
                self.waiting.appendleft(which)
        else:
            known = min(self._repeated[which], len(part.events))
            self._repeated[which] -= known
            new = part.events[known:]
            self.told[which] += new
            self.checkpoints[which] = part.checkpoint or self.checkpoints[which]
            yield which, replace(part, events=new)


def spread_runs(
    engine: RayEngine,
    configs: Sequence[RunConfig],
    folders: Sequence[RunFolder] | None = None,
    data_dir: Path | None = None,
    *,
    resume: bool = False,
    on_end: Callable[[int, RunModels], Any] | None = None,
    personal: bool = False,
) -> Generator[tuple[int, Event]]:
    """Do what `compare_events` does, on a cluster."""
    report, steps = pretraining.get(), dict[int, tuple[int, int]]()
    pasts = [_past(folder) for folder in folders] if resume and folders else [Past([], None)] * len(configs)
    with connected(engine) as ray, ExitStack() as opened:
        spread = Spread(ray, engine, configs, pasts, personal=personal)
        opened.callback(spread.close)
        writers = [
            opened.enter_context(own.writer(past.events)) for own, past in zip(folders or [], pasts, strict=False)
        ]
        for which, past in enumerate(pasts):
            yield from ((which, event) for event in past.events)
        for which, part in spread.parts(data_dir):
            if isinstance(part, Exception):
                raise part
            if part.pretraining is not None:
                steps[which] = part.pretraining
                done, total = (sum(own[place] for own in steps.values()) for place in (0, 1))
                report(done, total)
            models: RunModels | None = None if part.models is None else deserialize(part.models)
            if folders is not None:
                _store(folders[which].path, part, models)
            for event in part.events:
                if folders is not None:
                    writers[which](event)
                yield which, event
            if models is not None and on_end is not None:
                on_end(which, models)


def _past(folder: RunFolder) -> Past:
    """Return what a run's folder holds of it: the events up to its checkpoint, or all if it is over."""
    events = folder.events()
    if events and isinstance(events[-1], Finished):
        return Past(events, None)
    if not checkpoint.exists(folder.path):
        return Past([], None)
    held = (folder.path / checkpoint.FILE).read_bytes()
    return Past(events[: checkpoint.num_events(folder.path)], held)


def _store(folder: Path, part: Part, models: RunModels | None) -> None:
    """Write the checkpoint or the models of a run."""
    if models is not None:
        models.save(folder)
        checkpoint.remove(folder)
    elif part.checkpoint is not None:
        new = folder / (checkpoint.FILE + ".new")
        new.write_bytes(part.checkpoint)
        new.replace(folder / checkpoint.FILE)
