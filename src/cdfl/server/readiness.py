"""A server that listens but is not open yet: it answers 503 and says what it does and how long it takes."""

import math
import time
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cdfl.page import page_routes

LEAST_SHARE = 0.02  # of the work must be done before the time left is estimated
MOST_RETRY = 10  # seconds; clients ask again at least this often


class Starting:
    """What the server does before it opens. Written by the main thread, read by the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.stage = "starting"
        self.done, self.total = 0, 0
        self._clock, self._begun = clock, clock()

    def say(self, stage: str) -> None:
        """Begin another stage of the same work."""
        self.stage = stage

    def step(self, done: int, total: int) -> None:
        """Note how much of the work is done."""
        if done < self.done or total != self.total:
            self._begun = self._clock()
        self.done, self.total = done, total

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds until the work is done, from the time so far; None if too little is done."""
        if not self.total or self.done < LEAST_SHARE * self.total:
            return None
        return (self._clock() - self._begun) * (self.total - self.done) / self.done

    @property
    def words(self) -> str:
        """Return a sentence: what is done, and how long it takes."""
        left = self.seconds_left
        return self.stage if left is None else f"{self.stage}, about {duration(left)} left"


def duration(seconds: float) -> str:
    """Return seconds in words.

    >>> duration(0.2), duration(42.3), duration(600), duration(9000)
    ('1 s', '42 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{max(1, math.ceil(seconds - 0.5))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Gate:
    """The application of a web server: `Starting` until it is opened, then the service."""

    def __init__(self, starting: Starting) -> None:
        self._app: ASGIApp = _waiting_room(starting)

    def open(self, app: ASGIApp) -> None:
        """Pass all requests on to the service from now on."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._app(scope, receive, send)


def _waiting_room(starting: Starting) -> Starlette:
    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def refuse(request: Request, error: Exception) -> Response:
        wait = min(MOST_RETRY, max(1, math.ceil((starting.seconds_left or 4) / 4)))
        return JSONResponse({"detail": starting.words}, 503, {"Retry-After": str(wait), "Cache-Control": "no-store"})

    routes = [*page_routes({"kind": "server"}), Route("/healthz", healthz)]
    return Starlette(routes=routes, exception_handlers={404: refuse, 405: refuse})
