"""The routes of a server."""

import asyncio
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Query, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from fastapi.security import APIKeyHeader, HTTPBearer
from fastapi.security.base import SecurityBase
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from cdfl.core import Layout
from cdfl.server.auth import Access
from cdfl.server.blobs import digest_of
from cdfl.server.connection_limit import PIECE, Connection
from cdfl.server.engine import Engine
from cdfl.server.events import Notifier, StreamLimit, Told, stream
from cdfl.server.metrics import CONTENT_TYPE as METRICS_TYPE
from cdfl.server.openapi import (
    EVENTS_PAGE,
    METRICS_PAGE,
    REFUSED,
    ROUTER_PAGE,
    UPLOAD,
    ClientStatus,
    Health,
    Status,
    model_reply,
    refusals,
)
from cdfl.server.rate_limits import RateLimit
from cdfl.server.store_errors import StoreError, StoreLost, StoreUnavailable
from cdfl.server.store_records import Claim
from cdfl.server.submission import RETRY_SECONDS, Answer
from cdfl.server.uploads import Uploads
from cdfl.server.watch_routes import add_watching
from cdfl.wire import (
    BASE_EPOCH,
    CLIENT,
    CONTENT_TYPE,
    DIGEST,
    KEY,
    MIXTURE,
    REPLY,
    REPORT,
    DType,
    ForbiddenError,
    NotFoundError,
    UnauthorizedError,
    UnfitError,
    WireError,
    body_parts,
    check_key,
    compress,
    decode_model,
    digest_header,
    parse_count,
    parse_mixture,
    parse_report,
    wants_model,
)

logger = logging.getLogger("cdfl.server")

CHECK_SECONDS = 5.0  # /readyz waits this long for the store
CHECKED_SECONDS = 1.0  # the result of a check stays valid this long
DESCRIPTION = "Client-Driven Federated Learning: upload one model, receive one. `docs/reference/http.md` explains it."


class ModelQuery(BaseModel):
    """What a client may ask for."""

    model_config = ConfigDict(extra="forbid")
    dtype: DType = "float32"


# The schemas are for the OpenAPI page. `cdfl.wire` checks the values, with better error messages.
Asked = Annotated[ModelQuery, Query()]
Key = Annotated[
    str,
    Header(
        alias=KEY,
        description="New for every upload; the same when one is sent again.",
        json_schema_extra={"pattern": "^[!-~]{1,128}$"},
    ),
]
BaseEpoch = Annotated[
    str,
    Header(
        alias=BASE_EPOCH,
        description="CDFL-Epoch of the model that was trained from.",
        json_schema_extra={"type": "integer", "minimum": 0},
    ),
]
Report = Annotated[
    str | None,
    Header(
        alias=REPORT,
        description="The client's loss on its own data before and after its last reply: two numbers and a comma.",
        json_schema_extra={"type": "string", "pattern": r"^-?[0-9]{1,9}(\.[0-9]{1,9})?,-?[0-9]{1,9}(\.[0-9]{1,9})?$"},
    ),
]
Mixture = Annotated[
    str | None,
    Header(
        alias=MIXTURE,
        description="The client's own mixture, if its owner sends it: K shares that sum to one, with commas.",
        json_schema_extra={"type": "string", "pattern": r"^[0-9.e+-]+(,[0-9.e+-]+)*$"},
    ),
]
AskedReply = Annotated[
    str | None,
    Header(
        alias=REPLY,
        description="`model` asks for one model where replies are experts.",
        json_schema_extra={"enum": ["model", "experts"]},
    ),
]
Coding = Annotated[
    str,
    Header(
        alias="Content-Encoding",
        description="How the body is compressed.",
        json_schema_extra={"enum": ["identity", "zstd"]},
    ),
]
LastEvent = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        description="Send the events after this number, too.",
        json_schema_extra={"type": "integer", "minimum": 0},
    ),
]


def create_app(engine: Engine, access: Access, notifier: Notifier) -> FastAPI:
    """Return the service of one engine."""
    app = FastAPI(title="cdfl", version="1", description=DESCRIPTION, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False  # a redirect would repeat the request's Host
    uploads, limits = Uploads(engine), engine.limits
    rate_limit = RateLimit(limits.requests_per_second, limits.burst)
    engine.listeners.append(notifier)
    engine.metrics.streams.set_function(lambda: notifier.num_streams)
    check_store = _StoreCheck(engine.store.check)
    scheme: SecurityBase = HTTPBearer(auto_error=False, scheme_name="token", description="The token of one client.")
    if access.is_open:
        scheme = APIKeyHeader(name=CLIENT, auto_error=False, scheme_name="name", description="The name of a client.")

    async def authenticate(request: Request, _: Annotated[Any, Security(scheme)]) -> Claim:
        """Return the client that asks; refuse one that asks too often."""
        connection = _connection(request)
        try:
            claim = await uploads.read(access.identify, request.headers, connection and connection.certified)
        except (UnauthorizedError, ForbiddenError) as error:
            note_failure(request, error)
            raise
        rate_limit.check(claim.client_id)
        if connection is not None:
            connection.is_known = True
        return claim

    def is_operator(request: Request) -> bool:
        """Return whether the operator asks."""
        connection, found = _connection(request), access.is_operator(request.headers)
        if found and connection is not None:
            connection.is_known = True
        return found

    def note_failure(request: Request, error: WireError) -> None:
        """Count and log a failed authentication."""
        engine.metrics.auth_failures.inc()
        address = request.client.host if request.client else "an unknown address"
        logger.warning("authentication failed from %s: %s", address, error.detail)

    async def client_or_operator(request: Request, _: Annotated[Any, Security(scheme)]) -> Claim | None:
        """Return the client that asks; None for the operator, and for one without a name on an open server."""
        is_watcher = is_operator(request) or (access.is_open and CLIENT not in request.headers)
        return None if is_watcher else await authenticate(request, _)

    async def first_number(last_event: LastEvent = None) -> int:
        """Return the number of the entry after which events are sent."""
        return engine.store.number if last_event is None else parse_count("Last-Event-ID", last_event)

    streams = StreamLimit(limits)

    Client = Annotated[Claim, Depends(authenticate)]
    ClientOrOperator = Annotated[Claim | None, Depends(client_or_operator)]

    async def stream_place(request: Request, claim: ClientOrOperator) -> AsyncIterator[None]:
        """Count a stream while its response is sent; as a dependency of the route it may refuse before that."""
        name = None if claim is None else claim.client_id
        with streams.place(name, is_operator=access.is_operator(request.headers)):
            yield

    @app.get(
        "/v1/model",
        response_class=Response,
        responses=model_reply(to_upload=False) | refusals(400, 401, 403, 422, 429, 503),
    )
    async def model(request: Request, client: Client, query: Asked, reply: AskedReply = None) -> Response:
        """Join or refresh: a newcomer gets the average of the clusters, a known client its last mixture."""
        wants_one = wants_model(request.headers.get(REPLY))
        answer = await uploads.in_thread(partial(engine.join, wants_model=wants_one), client)
        return await _model_response(answer, request, client, query.dtype, uploads)

    @app.post(
        "/v1/updates",
        response_class=Response,
        responses=model_reply(to_upload=True) | refusals(400, 401, 403, 408, 409, 410, 411, 413, 415, 422, 429, 503),
        openapi_extra=UPLOAD,
    )
    async def updates(
        request: Request,
        client: Client,
        query: Asked,
        key: Key,
        base_epoch: BaseEpoch,
        coding: Coding = "identity",
        report: Report = None,
        mixture: Mixture = None,
        reply: AskedReply = None,
    ) -> Response:
        """Upload the trained model, receive a personal one. With the same key an upload counts once."""
        epoch, own = parse_count(BASE_EPOCH, base_epoch), parse_mixture(mixture, engine.state.num_clusters)
        answer = await uploads.receive(request, client, check_key(key), epoch, coding, parse_report(report), own)
        return await _model_response(answer, request, client, query.dtype, uploads)

    @app.get(
        "/v1/router",
        response_class=Response,
        responses=ROUTER_PAGE | refusals(400, 401, 403, 404, 429, 503),
    )
    async def router(request: Request, client: Client) -> Response:
        """Send the router, which tells from which cluster an input comes; where replies are experts."""
        if engine.replies.router is None:
            raise NotFoundError("replies of this server are one model, so there is no router")
        tag = f'"{engine.replies.router_digest}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        asked = [each.strip().removeprefix("W/") for each in request.headers.get("If-None-Match", "").split(",")]
        if tag in asked or "*" in asked:
            return Response(status_code=304, headers=headers)
        headers[DIGEST] = digest_header(engine.replies.router_digest)
        return ModelResponse((engine.replies.router,), headers, _connection(request), client.client_id)

    @app.get("/v1/status", responses=refusals(400, 401, 403, 429, 503))
    async def status(client: ClientOrOperator) -> Status:
        """Show the epoch and the tensors that the server expects; to the operator, the clusters, too."""
        whole = access.is_open or client is None
        return await uploads.read(Status.of, engine, uploads.body_limit, whole)

    @app.get("/v1/clients/me", responses=refusals(400, 401, 403, 429, 503))
    async def me(client: Client) -> ClientStatus:
        """Show what the server knows of the client that asks."""
        return ClientStatus.of(client.client_id, await uploads.read(engine.store.client, client.client_id))

    @app.get(
        "/v1/events",
        response_class=StreamingResponse,
        responses=EVENTS_PAGE | refusals(400, 401, 403, 429, 503) | REFUSED,
    )
    async def events(
        client: ClientOrOperator,
        after: Annotated[int, Depends(first_number)],
        _: Annotated[None, Depends(stream_place)],
    ) -> StreamingResponse:
        """Stream events: one an upload, `id` is its number. Last-Event-ID continues after that one."""
        sees_all = access.is_open or client is None
        own = client and client.client_id

        def show(told: Told) -> bytes:
            return told.whole if sees_all or told.entry.client_id == own else told.public

        async def is_allowed() -> bool:
            """Return whether the token is still valid; checked again and again while the stream is open."""
            return client is None or await uploads.read(access.tokens.is_valid, client)

        content = stream(engine.store, notifier, streams, after, show, is_allowed, joins=sees_all)
        return StreamingResponse(content, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    @app.get("/metrics", response_class=Response, responses=METRICS_PAGE | refusals(401))
    async def metrics(request: Request) -> Response:
        """Show counters and timings for Prometheus."""
        try:
            access.check_metrics(request.headers)
        except UnauthorizedError as error:
            note_failure(request, error)
            raise
        return Response(await asyncio.to_thread(engine.metrics.page), media_type=METRICS_TYPE)

    @app.get("/healthz")
    async def healthz() -> Health:
        """Answer while the process runs."""
        return Health(status="alive")

    @app.get("/readyz", responses=refusals(503))
    async def readyz() -> Health:
        """Answer while uploads can be taken: the store works, and the queue has room."""
        engine.check_room()
        await check_store()
        return Health(status="ready")

    add_watching(app, engine, access, uploads)
    _handle_errors(app, engine)
    return app


def _handle_errors(app: FastAPI, engine: Engine) -> None:
    """Answer every refusal with one sentence as JSON, and count it."""

    def refuse(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
        engine.metrics.refused.labels(str(status)).inc()
        words = json.dumps(
            {"detail": detail}, separators=(",", ":")
        )  # in ASCII: what a peer sent may hold characters that UTF-8 has not
        return Response(words, status, headers, "application/json")

    @app.exception_handler(WireError)
    async def wire_error(_: Request, error: WireError) -> Response:
        headers = {"WWW-Authenticate": "Bearer"} if error.status == UnauthorizedError.status else {}
        if error.retry_after is not None:
            headers["Retry-After"] = str(math.ceil(error.retry_after))
        return refuse(error.status, error.detail, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return refuse(400, _sentence(error.errors()[0]))

    @app.exception_handler(StoreError)
    async def store_error(_: Request, error: StoreError) -> Response:
        if isinstance(error, StoreUnavailable):
            engine.outage.begin(error)
        elif isinstance(error, StoreLost):
            engine.lose(error)
        else:
            logger.error("a request could not be answered: %s", error)
        return refuse(
            503, "the store is unavailable; try again in a moment", {"Retry-After": str(math.ceil(RETRY_SECONDS))}
        )

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        what = f"there is no {request.method} {request.url.path[:80]}; /docs lists what there is"
        return refuse(error.status_code, what, error.headers)


def _sentence(error: Mapping[str, Any]) -> str:
    """Describe a parameter that FastAPI refused."""
    kind, name = error["loc"][0], str(error["loc"][-1])[:40]
    if error["type"] == "missing":
        return f"the {kind} {name} is missing; /docs describes it"
    if error["type"] == "extra_forbidden":
        return f"the {kind} has {name!r}; expected only what /docs describes"
    return f"{name} is {str(error['input'])[:40]!r}; {error['msg'].replace('Input should be', 'expected')}"


class _StoreCheck:
    """Checks the store at most once in `CHECKED_SECONDS`: the check writes, and anyone may call /readyz.

    One check runs at a time. A store that does not respond within `CHECK_SECONDS` counts as unavailable.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._running: asyncio.Task[None] | None = None
        self._valid_until = 0.0

    async def __call__(self) -> None:
        """Raise StoreUnavailable unless the store can be used."""
        if time.monotonic() < self._valid_until:
            return
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(asyncio.to_thread(self._check))
        done, _ = await asyncio.wait({self._running}, timeout=CHECK_SECONDS)
        if not done:
            raise StoreUnavailable(f"the store has not answered for {CHECK_SECONDS:g} s")
        await self._running
        self._valid_until = time.monotonic() + CHECKED_SECONDS


class ModelResponse(Response):
    """A model, sent in pieces without a copy, within the budget of its connection."""

    def __init__(
        self, parts: tuple[bytes | memoryview, ...], headers: dict[str, str], connection: Connection | None, owner: str
    ) -> None:
        self._parts, self._connection, self._owner = parts, connection, owner
        self._length = sum(map(len, parts))
        super().__init__(media_type=CONTENT_TYPE, headers=headers | {"Content-Length": str(self._length)})

    def render(self, content: Any) -> bytes:
        """Return nothing: the parts are sent by `__call__`."""
        return b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts."""
        if self._connection is not None:
            self._connection.limit.replies.begin(self._connection, self._owner, self._length)
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._send_parts(send)
        finally:
            if self._connection is not None:
                self._connection.limit.replies.end(self._connection, self._owner)
        await send({"type": "http.response.body", "body": b""})

    async def _send_parts(self, send: Send) -> None:
        for part in self._parts:
            for begin in range(0, len(part), PIECE):
                await send({"type": "http.response.body", "body": part[begin : begin + PIECE], "more_body": True})
                if self._connection is not None and not self._connection.limit.replies.progress(self._connection):
                    return  # it was given up for another one


async def _model_response(answer: Answer, request: Request, client: Claim, dtype: DType, uploads: Uploads) -> Response:
    """Return a reply in the dtype and the encoding that the client asked for."""
    headers = answer.head.to_headers() | {"Cache-Control": "no-store"}
    parts, digest = answer.body, answer.digest
    if dtype != "float32" and answer.head.experts is None:  # experts are rounded already
        parts, digest = await uploads.in_thread(_converted, answer, uploads.engine.layout, dtype)
    if request.headers.get("Accept-Encoding", "").strip().lower() == "zstd":  # only on request: weights hardly compress
        parts, digest = await uploads.in_thread(_compressed, parts)
        headers["Content-Encoding"] = "zstd"
    headers[DIGEST] = digest_header(digest or await uploads.in_thread(digest_of, parts))
    return ModelResponse(parts, headers, _connection(request), client.client_id)


Parts = tuple[bytes | memoryview, ...]


def _converted(answer: Answer, layout: Layout, dtype: DType) -> tuple[Parts, str]:
    """Return a reply in another dtype; in float32 if a value does not fit, since the upload counts already."""
    try:
        parts = body_parts(decode_model(b"".join(answer.body), layout, is_checked=True), layout, dtype)
    except UnfitError:
        return answer.body, answer.digest
    return parts, digest_of(parts)


def _compressed(parts: Parts) -> tuple[Parts, str]:
    packed = compress(b"".join(parts))
    return (packed,), digest_of(packed)


def _connection(request: Request) -> Connection | None:
    """Return the connection of a request; None if the server does not run in uvicorn."""
    found = request.scope.get("state", {}).get("connection")
    return found if isinstance(found, Connection) else None
