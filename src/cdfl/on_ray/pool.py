"""Workers on a cluster that come and go: what a lost one had to do is given to another."""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np

from cdfl.on_ray.connection import RayEngine
from cdfl.on_ray.serialization import Serialized

MOST_TRIES = 5  # of an order: after that many lost workers the order itself is to blame
SECONDS_BETWEEN_LOOKS = 10.0  # for cores that joined the cluster
SECONDS_BETWEEN_NOTES = 30.0  # while no worker can start
SECONDS_FOR_STORE = 600.0  # that a full object store is waited for
POLL = 0.5  # seconds between reports of progress

log = logging.getLogger("cdfl")


class Worker(Protocol):
    """An actor: it is made with its number of cores, started once, and then does orders."""

    def start(self, serialized: Serialized) -> str:
        """Take what all orders need; return the version of this package."""
        ...

    def work(self, order: Any) -> np.ndarray:
        """Do an order."""
        ...

    def steps(self) -> int:
        """Return the number of steps so far, also while `work` runs."""
        ...


class Pool:
    """Workers on a cluster. Those that are lost are replaced, and as the cluster grows there are more.

    If it is `elastic`, it starts no more workers than there are orders at a time, and `shrink` ends idle ones.
    """

    def __init__(
        self,
        ray: Any,
        engine: RayEngine,
        worker: Callable[[int], Worker],
        serialized: Serialized,
        *,
        gpus: bool = False,
        elastic: bool = False,
    ) -> None:
        self.ray = ray
        self.engine = engine
        self._elastic = elastic
        self._resources = resources(engine, gpus=gpus)
        self._make = ray.remote(worker)
        self._work = ray.put(serialized)
        self._starting: dict[Any, Any] = {}  # reference that is ready when it has started -> worker
        self._idle: list[tuple[float, Any]] = []  # since when; the last one is used first
        self._busy: dict[Any, tuple[Any, int]] = {}  # reference to its result -> worker, number of the order
        self._seen: dict[Any, int] = {}  # steps that a worker has reported
        self._tries: Counter[int | str] = Counter()  # workers lost, by what they did
        self._looked = -SECONDS_BETWEEN_LOOKS
        self._asked = time.monotonic()  # when there was work last
        self.size = 1  # workers wanted; of an elastic pool the most
        check_room(ray, self._resources)

    @property
    def workers(self) -> list[Any]:
        """All workers, also those that are starting."""
        idle, busy = (worker for _, worker in self._idle), (worker for worker, _ in self._busy.values())
        return [*self._starting.values(), *idle, *busy]

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            self.ray.kill(worker)
        self._starting, self._idle, self._busy = {}, [], {}

    def has_idle(self, orders: int) -> bool:
        """Return whether a worker can begin now; start those that these orders need."""
        self._asked = time.monotonic()
        self._look(orders)
        self._take_started()
        return bool(self._idle)

    def shrink(self, seconds: float) -> None:
        """End the workers that had nothing to do for so long."""
        self._take_started()
        now = time.monotonic()
        ended = [worker for since, worker in self._idle if now - since > seconds]
        self._idle = [(since, worker) for since, worker in self._idle if now - since <= seconds]
        if now - self._asked > seconds:
            ended += self._starting.values()  # the cluster has no room for them
            self._starting = {}
        for worker in ended:
            self.ray.kill(worker)

    def work(
        self,
        count: int,
        order: Callable[[int], Any],
        take: Callable[[int, np.ndarray], None],
        on_step: Callable[[int], Any] | None = None,
    ) -> None:
        """Let the workers do `count` orders, and pass on what each gave."""
        waiting = deque(range(count))
        self._tries.clear()
        begun = told = time.monotonic()
        try:
            while waiting or self._busy:
                self._look(len(waiting))
                while waiting and self._idle:
                    self._submit(waiting.popleft(), order)
                ready = self._wait()
                for reference in ready:
                    if reference in self._starting:
                        self._started(reference)
                    else:
                        self._done(reference, waiting, take)
                if on_step is not None:
                    self._report(on_step)
                if not ready and not self._busy and time.monotonic() - told > SECONDS_BETWEEN_NOTES:
                    told = time.monotonic()
                    log.warning("waiting for a worker since %.0f s: %s", told - begun, free_cores(self.ray))
        except BaseException:
            self.close()  # what they still do belongs to nobody
            raise
        self._asked = time.monotonic()

    def _look(self, orders: int) -> None:
        """Start workers until there are as many as wanted; the cluster may have grown."""
        if time.monotonic() - self._looked > SECONDS_BETWEEN_LOOKS:
            self._looked = time.monotonic()
            self.size = self.engine.workers or max(1, room(self.ray, self._resources))
        wanted = min(self.size, len(self._busy) + orders) if self._elastic else self.size
        while len(self.workers) < wanted:
            worker = self._make.options(**self._resources, max_concurrency=2).remote(self.engine.cores)
            self._starting[worker.start.remote(self._work)] = worker

    def _submit(self, number: int, order: Callable[[int], Any]) -> None:
        worker, given = self._idle.pop()[1], order(number)
        begun = time.monotonic()
        while True:
            try:
                self._busy[worker.work.remote(given)] = worker, number
                return
            except (self.ray.exceptions.ObjectStoreFullError, self.ray.exceptions.OutOfDiskError) as error:
                if time.monotonic() - begun > SECONDS_FOR_STORE:
                    raise RuntimeError(f"the object store stays full: {first_line(error)}") from error
                time.sleep(POLL)  # others may free some of it

    def _wait(self) -> list[Any]:
        """Return the references that are ready; wait a moment for the first."""
        waiting = [*self._busy, *self._starting]
        ready: list[Any] = self.ray.wait(waiting, num_returns=len(waiting), timeout=0)[0]
        return ready or self.ray.wait(waiting, num_returns=1, timeout=POLL)[0]

    def _take_started(self) -> None:
        """Let the workers that have started take orders; do not wait for the others."""
        starting = list(self._starting)
        if starting:
            for reference in self.ray.wait(starting, num_returns=len(starting), timeout=0)[0]:
                self._started(reference)

    def _started(self, reference: Any) -> None:
        """Let a worker take orders."""
        worker = self._starting.pop(reference)
        try:
            there, here = self.ray.get(reference), version("cdfl")
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self.ray.exceptions.RayError as error:
            self._lost(worker, "start", error)
            return
        if there != here:
            raise ValueError(f"a node of the cluster has cdfl {there}, and this one {here}; install the same version")
        self._idle.append((time.monotonic(), worker))

    def _done(self, reference: Any, waiting: deque[int], take: Callable[[int, np.ndarray], None]) -> None:
        """Take the result of an order; if its worker is lost, put the order back."""
        worker, number = self._busy.pop(reference)
        try:
            take(number, self.ray.get(reference))
        except self.ray.exceptions.RayTaskError as error:  # raised by the code of the worker
            raise error.cause from error
        except self.ray.exceptions.RayError as error:
            waiting.appendleft(number)
            self._lost(worker, number, error)
        else:
            self._idle.append((time.monotonic(), worker))

    def _lost(self, worker: Any, doing: "int | str", error: Exception) -> None:
        """Forget a worker. `_look` starts another, on any node that has room."""
        self._seen.pop(worker, None)
        self.ray.kill(worker)
        self._tries[doing] += 1
        log.warning("a worker is lost: %s; its work goes to another", first_line(error))
        if self._tries[doing] == MOST_TRIES:
            raise RuntimeError(
                f"{MOST_TRIES} workers were lost over the same work, the last one with: {first_line(error)}; if "
                "memory was short, use fewer workers"
            ) from error

    def _report(self, on_step: Callable[[int], Any]) -> None:
        """Report the steps that busy workers have taken since they were asked last."""
        asked = {worker: worker.steps.remote() for worker, _ in self._busy.values()}
        for worker, reference in asked.items():
            try:
                steps = self.ray.get(reference, timeout=POLL)
            except self.ray.exceptions.RayError:  # it is lost, or too busy
                continue
            on_step(steps - self._seen.get(worker, 0))
            self._seen[worker] = steps


def first_line(error: Exception) -> str:
    """Return what an error of Ray says, without its log."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def resources(engine: RayEngine, *, gpus: bool) -> dict[str, int]:
    """Return what a worker takes, as an actor's options."""
    return {"num_cpus": engine.cores} | ({"num_gpus": 1} if gpus else {})


def room(ray: Any, wanted: dict[str, int]) -> int:
    """Return how many workers the nodes of the cluster have resources for, those in use included."""
    shares = {name.removeprefix("num_").upper().rstrip("S"): share for name, share in wanted.items()}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(min(int(node.get(kind, 0) // share) for kind, share in shares.items()) for node in nodes)


def check_room(ray: Any, wanted: dict[str, int]) -> None:
    """Raise ValueError if no node of the cluster has what a worker takes."""
    if room(ray, wanted) == 0:
        unit = f"{wanted['num_cpus']} CPU cores" + (" and a GPU" if "num_gpus" in wanted else "")
        raise ValueError(f"no node of the Ray cluster has {unit} for a worker; add a node, or use fewer cores each")


def free_cores(ray: Any) -> str:
    """Return in words how many cores are free."""
    there, free = ray.cluster_resources(), ray.available_resources()
    return f"{free.get('CPU', 0):.0f} of the cluster's {there.get('CPU', 0):.0f} CPU cores are free"
