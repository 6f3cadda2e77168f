"""What a scheduler needs to run a service: threads, event loop, engine and requests that move only when it says so."""

import asyncio
import queue
from collections import deque
from concurrent.futures import Executor, Future
from contextlib import suppress
from random import Random
from typing import Any

import httpx
import torch

from cdfl.server.engine import Engine
from cdfl.server.store_errors import StoreUnavailable

from .toy import TARGETS, evaluate


class Threads:
    """Jobs that threads would do. The scheduler does them, one at a time; those of one pool may overtake each other."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.jobs: list[tuple[Any, int, Any]] = []  # pool, its threads, what to call

    def add(self, pool: Any, width: int, call) -> None:
        self.jobs.append((pool, width, call))

    def run_one(self) -> None:
        """Do a job that some thread could be doing: one of the first of its pool."""
        pools = list({id(pool): pool for pool, _, _ in self.jobs}.values())
        self.run_of(self.random.choice(pools))

    def run_of(self, pool: Any) -> None:
        """Do a job of a pool."""
        mine = [job for job in self.jobs if job[0] is pool]
        job = self.random.choice(mine[: mine[0][1]])
        self.jobs.remove(job)
        job[2]()

    def drain(self) -> None:
        while self.jobs:
            self.run_one()


class Pool(Executor):
    """A pool of one thread."""

    def __init__(self, threads: Threads) -> None:
        self.threads = threads

    def submit(self, function, /, *arguments, **options):
        future: Future = Future()

        def call():
            try:
                future.set_result(function(*arguments, **options))
            except Exception as error:  # a crash of the process passes
                future.set_exception(error)

        self.threads.add(self, 1, call)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do what waits."""
        while any(pool is self for pool, _, _ in self.threads.jobs):
            self.threads.run_of(self)


class Loop(asyncio.SelectorEventLoop):
    """An event loop with the scheduler's clock, whose executors are its `Threads`."""

    def __init__(self, threads: Threads, clock, before_job) -> None:
        super().__init__()
        self.threads, self.clock, self.before_job = threads, clock, before_job
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        return self.clock()

    @property
    def is_ready(self) -> bool:
        """Whether a callback waits."""
        return bool(self._ready) or any(timer.when() <= self.time() for timer in self._scheduled)

    def turn(self) -> None:
        """Call what is ready, once."""
        self.call_soon(self.stop)
        self.run_forever()

    def run_in_executor(self, pool, function, *arguments):
        future = self.create_future()

        def call():
            try:
                self.before_job(function)
                result, error = function(*arguments), None
            except Exception as raised:  # a crash of the process passes
                result, error = None, raised
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self.threads.add(pool, getattr(pool, "_max_workers", 6), call)
        return future


class Still(Engine):
    """An engine whose threads do not run: the scheduler calls what they would do."""

    def _evaluate_all(self):
        """Nothing: see `step_evaluate`."""

    def _apply_all(self):
        """Nothing: see `step_apply`."""

    def step_evaluate(self, most):
        """What the evaluating thread does with the next uploads."""
        batch = _taken(self._waiting, most)
        self._evaluate(batch)
        for submission in batch:
            if not submission.answer.done():
                self._evaluated.put(submission)

    def step_apply(self, most):
        """What the applying thread does with the next uploads."""
        group = _taken(self._evaluated, most)
        try:
            self._apply_group(group)
            if self.outage.is_on:
                self.store.check()
                self.outage.end()
            self.maintenance.run_due(self.state)
        except StoreUnavailable as error:
            self.outage.begin(error)


class Proxy:
    """Evaluates as the toy does."""

    def __call__(self, models, clusters):
        return evaluate(models, clusters)

    def of_each(self, vectors):
        """The losses on every set."""
        every = torch.arange(len(TARGETS))
        return torch.stack([evaluate(vector.expand(len(TARGETS), -1), every) for vector in vectors])


def _taken(source, most):
    taken = []
    with suppress(queue.Empty):
        while len(taken) < most:
            submission = source.get_nowait()
            if submission is not None:
                taken.append(submission)
    return taken


class Exchange:
    """One HTTP request to an ASGI application: its body comes in pieces, and its peer may hang up at any moment."""

    def __init__(self, loop: Loop, app, method: str, target: str, headers: dict[str, str], pieces=(b"",)) -> None:
        path, _, query = target.partition("?")
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(b"host", b"x"), *raw],
            "client": ("192.0.2.7", 7),
            "server": ("192.0.2.1", 80),
            "state": {},
        }
        self.pieces = deque(pieces)
        self.status, self.headers, self.body = 0, httpx.Headers(), b""
        self.is_answered = self.is_cut = False
        self._come: deque[dict[str, Any]] = deque()
        self._news = asyncio.Event()
        self.task = loop.create_task(app(scope, self._receive, self._send))
        self.deliver()

    @property
    def is_over(self) -> bool:
        return self.task.done()

    def deliver(self) -> None:
        """Bring the next piece of the body."""
        body = self.pieces.popleft()
        self._come.append({"type": "http.request", "body": body, "more_body": bool(self.pieces)})
        self._news.set()

    def cut(self) -> None:
        """Hang up."""
        self.is_cut = True
        self.pieces.clear()
        self._come.append({"type": "http.disconnect"})
        self._news.set()

    async def _receive(self):
        while not self._come:
            self._news.clear()
            await self._news.wait()
        return self._come[0] if self.is_cut and len(self._come) == 1 else self._come.popleft()

    async def _send(self, message) -> None:
        if self.is_cut:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = httpx.Headers(message["headers"])
        else:
            self.body += bytes(message.get("body", b""))
            self.is_answered = not message.get("more_body", False)
