"""The routes."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from cdfl.server import pages
from cdfl.server.auth import Access
from cdfl.server.events import Bell, EventStream, Streams, event_of, stream
from cdfl.server.intake import Intake
from cdfl.server.journal import StoreError, StoreLost, StoreUnavailable
from cdfl.server.limits import Limits
from cdfl.server.metrics import CONTENT_TYPE as METRICS_TYPE
from cdfl.server.session import RETRY_SECONDS, Session
from cdfl.server.uploads import Answer
from cdfl.wire import (
    CONTENT_TYPE,
    DTYPES,
    DType,
    MalformedError,
    UnauthorizedError,
    WireError,
    body_parts,
    compress,
    parse_count,
)

logger = logging.getLogger("cdfl.server")

CHECK_SECONDS = 5.0  # that /readyz waits for the store
FINE_SECONDS = 1.0  # that a check of the store is believed
PIECE = 2**20  # bytes of a model that are handed over at once
DESCRIPTION = "Client-Driven Federated Learning: upload one model, receive one. `docs/protocol.md` has the story."


def create_app(session: Session, access: Access, limits: Limits, bell: Bell) -> FastAPI:
    """The service of one session."""
    app = FastAPI(title="cdfl", version="1", description=DESCRIPTION, redoc_url=None)
    intake = Intake(session, access, limits)
    session.on_commit = bell.ring
    streams = Streams(limits.streams)
    check_store = _Check(session.store.check)

    @app.get("/v1/model", response_class=Response, **pages.MODEL)
    async def model(request: Request) -> Response:
        """Join or refresh: a newcomer gets the average of the clusters, a known client its last mixture."""
        dtype = _dtype(request)
        return await _model_response(await intake.model(request), request, dtype, intake)

    @app.post("/v1/updates", response_class=Response, **pages.UPDATES)
    async def updates(request: Request) -> Response:
        """Upload the model that was trained, receive a personal one. With one key an upload counts once."""
        dtype = _dtype(request)
        return await _model_response(await intake.update(request), request, dtype, intake)

    @app.get("/v1/status", **pages.QUESTION)
    async def status(request: Request) -> pages.Status:
        """Where the server stands: its epoch, its clusters, the tensors it expects."""
        if not access.is_operator(request.headers):
            await intake.client(request)
        return await asyncio.to_thread(pages.status_of, session, limits, intake.body_limit)

    @app.get("/v1/clients/me", **pages.QUESTION)
    async def me(request: Request) -> pages.ClientStatus:
        """What the server knows of the client that asks."""
        return pages.client_status_of(*await intake.client(request))

    @app.get("/v1/events", response_class=StreamingResponse, **pages.EVENTS)
    async def events(request: Request) -> Response:
        """What happens, as server-sent events: one an upload, `id` is its epoch. Last-Event-ID goes on from there."""
        told = request.headers.get("Last-Event-ID")
        after = session.state.epoch if told is None else parse_count("Last-Event-ID", told)
        sees_all = access.is_open or access.is_operator(request.headers)
        client_id = None if access.is_operator(request.headers) else (await intake.client(request))[0]
        see = lambda entry: event_of(entry, whole=sees_all or entry.client_id == client_id)  # noqa: E731
        return EventStream(stream(session.store, bell, after, see), streams)

    @app.get("/metrics", response_class=Response, **pages.METRICS)
    async def metrics(request: Request) -> Response:
        """Counters and timings for Prometheus."""
        access.check_metrics(request.headers)
        return Response(await asyncio.to_thread(session.metrics.page), media_type=METRICS_TYPE)

    @app.get("/healthz")
    async def healthz() -> pages.Health:
        """The process lives."""
        return pages.Health(status="alive")

    @app.get("/readyz", **pages.READY)
    async def readyz() -> pages.Health:
        """Uploads can be taken: the store is there, and the queue has room."""
        session.check_room()
        await check_store()
        return pages.Health(status="ready")

    pages.describe(app, is_open=access.is_open)
    _handle_errors(app, session)
    return app


def _handle_errors(app: FastAPI, session: Session) -> None:
    """Every refusal is one sentence as JSON, and is counted."""

    def refuse(status: int, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
        session.metrics.refused.labels(str(status)).inc()
        return JSONResponse({"detail": detail}, status, headers)

    @app.exception_handler(WireError)
    async def wire_error(_: Request, error: WireError) -> JSONResponse:
        headers = {"WWW-Authenticate": "Bearer"} if error.status == UnauthorizedError.status else {}
        if error.retry_after is not None:
            headers["Retry-After"] = str(math.ceil(error.retry_after))
        return refuse(error.status, error.detail, headers)

    @app.exception_handler(StoreError)
    async def store_error(_: Request, error: StoreError) -> JSONResponse:
        if isinstance(error, StoreUnavailable):
            session.outage.begins(error)
        elif isinstance(error, StoreLost):
            session.stop(error)
        else:
            logger.error("a request could not be answered: %s", error)
        return refuse(503, "the store is away; come back in a moment", {"Retry-After": str(math.ceil(RETRY_SECONDS))})

    @app.exception_handler(HTTPException)
    async def no_such_thing(request: Request, error: HTTPException) -> JSONResponse:
        what = f"there is no {request.method} {request.url.path[:80]}; /docs lists what there is"
        return refuse(error.status_code, what, error.headers)


class _Check:
    """A check of the store that is believed for a while: anybody may ask for it, and it writes.

    There is one at a time. Whoever asks waits for it, but not for long: a store that does not answer is away.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._under_way: asyncio.Task[None] | None = None
        self._fine_until = 0.0

    async def __call__(self) -> None:
        """Make sure that the store can be used."""
        if time.monotonic() < self._fine_until:
            return
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(asyncio.to_thread(self._check))
        done, _ = await asyncio.wait({self._under_way}, timeout=CHECK_SECONDS)
        if not done:
            raise StoreUnavailable(f"it has not answered for {CHECK_SECONDS:g} s")
        await self._under_way
        self._fine_until = time.monotonic() + FINE_SECONDS


class ModelResponse(Response):
    """A model, sent piece by piece from where it lies."""

    def __init__(self, parts: tuple[bytes | memoryview, ...], headers: dict[str, str]) -> None:
        self._parts = parts
        length = {"Content-Length": str(sum(map(len, parts)))}
        super().__init__(media_type=CONTENT_TYPE, headers=headers | length)

    def render(self, content: Any) -> bytes:
        """There is no body in one piece."""
        return b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._parts:
            for begin in range(0, len(part), PIECE):
                piece = part[begin : begin + PIECE]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _model_response(answer: Answer, request: Request, dtype: DType, intake: Intake) -> Response:
    """A reply as this client wants it: another dtype, zstd."""
    headers = answer.head.to_headers() | {"Cache-Control": "no-store"}
    parts: tuple[bytes | memoryview, ...] = await intake.in_thread(
        body_parts, answer.personal_model, intake.session.layout, dtype
    )
    if request.headers.get("Accept-Encoding", "").strip().lower() == "zstd":  # it hardly shrinks weights: only if asked
        parts = (await intake.in_thread(compress, b"".join(parts)),)
        headers["Content-Encoding"] = "zstd"
    return ModelResponse(parts, headers)


def _dtype(request: Request) -> DType:
    """What comes behind the question mark: the dtype of the reply, and nothing else."""
    asked = request.query_params
    if [name for name in asked if name != "dtype"] or len(asked.getlist("dtype")) > 1:
        raise MalformedError(f"the query is {str(asked)[:80]!r}; expected dtype=... or nothing")
    dtype = asked.get("dtype", "float32")
    if dtype not in DTYPES:
        raise MalformedError(f"dtype is {dtype[:40]!r}; expected one of {', '.join(DTYPES)}")
    return dtype
