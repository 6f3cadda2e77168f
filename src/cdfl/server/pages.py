"""What the server says in JSON, and how its OpenAPI page describes models, headers and refusals."""

from typing import Any, get_args

from fastapi import FastAPI
from pydantic import BaseModel, Field

from cdfl.server.journal import ClientRecord
from cdfl.server.limits import Limits
from cdfl.server.session import Session
from cdfl.server.snapshots import from_losses
from cdfl.wire import (
    BASE_EPOCH,
    CLIENT,
    CONTENT_TYPE,
    CONTENT_TYPES,
    DETAIL,
    DTYPES,
    EPOCH,
    KEY,
    MIXTURE,
    OUTCOME,
    RATES,
    STALENESS,
    Outcome,
)


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str = Field(description="One sentence: what came, what was expected, what to do.")


class TensorInfo(BaseModel):
    """A tensor of the model."""

    name: str
    shape: list[int]


class LimitsInfo(BaseModel):
    """What the server takes."""

    body_bytes: int
    queue: int
    requests_per_second: float
    burst: int


class Status(BaseModel):
    """Where the server stands."""

    epoch: int
    num_clusters: int
    cluster_epochs: list[int] = Field(description="The epoch at which each cluster last moved.")
    cluster_losses: list[float | None] = Field(description="The loss of each cluster on its proxy set.")
    clients: int
    uploads: int
    num_parameters: int
    layout: list[TensorInfo] = Field(description="The tensors a body must hold, with their shapes.")
    limits: LimitsInfo


class ClientStatus(BaseModel):
    """What the server knows of one client."""

    client_id: str
    is_known: bool
    since: float | None = Field(description="Unix time of its first request for a model.")
    uploads: int
    epoch: int | None = Field(description="The epoch of its last upload.")
    mixture: list[float] | None = Field(description="The mixture of the last reply to an upload.")
    outcome: str | None = Field(description="What became of its last upload: applied, deprecated or rejected.")


class Health(BaseModel):
    """A server that answers."""

    status: str


def status_of(session: Session, limits: Limits, body_limit: int) -> Status:
    """Where the server stands now."""
    state, layout = session.state, session.layout
    return Status(
        epoch=state.epoch,
        num_clusters=state.num_clusters,
        cluster_epochs=state.cluster_epochs.tolist(),
        cluster_losses=list(from_losses(state.cluster_losses)),
        clients=session.store.num_clients(),
        uploads=state.epoch,
        num_parameters=layout.num_parameters,
        layout=[
            TensorInfo(name=name, shape=list(shape)) for name, shape in zip(layout.names, layout.shapes, strict=True)
        ],
        limits=LimitsInfo(
            body_bytes=body_limit,
            queue=session.capacity,
            requests_per_second=limits.requests_per_second,
            burst=limits.burst,
        ),
    )


def client_status_of(client_id: str, record: ClientRecord | None) -> ClientStatus:
    """What is known of a client."""
    last = None if record is None else record.last
    return ClientStatus(
        client_id=client_id,
        is_known=record is not None,
        since=None if record is None else record.since,
        uploads=0 if record is None else record.uploads,
        epoch=None if last is None else last.epoch,
        mixture=None if last is None else list(last.mixture),
        outcome=None if last is None else last.outcome,
    )


# -- how the OpenAPI page describes the routes

_WHY = {
    400: "A header, the body or the safetensors in it cannot be read.",
    401: "No token, or one that is unknown or revoked; in open mode, no name.",
    403: "The token of another client; or the server takes no more clients.",
    408: "The body came too slowly.",
    409: "A base epoch this client was never given; or, with Retry-After, an upload that is still being worked on.",
    410: "This upload was taken, but its reply is no longer kept.",
    411: "A body without a length.",
    413: "The body is too large, as it came or once decompressed.",
    415: "A content type or encoding the server does not read.",
    422: "The tensors do not fit the model or are not finite; or the key was used with another body.",
    429: "Too many requests of this client.",
    503: "The queue is full, too many streams of events are open, the store is away, or the server shuts down.",
}
_COUNT = {"type": "integer", "minimum": 0}
_NUMBERS = {"type": "string", "pattern": r"^[0-9.e+-]+(,[0-9.e+-]+)*$"}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_TEXT = {"schema": {"type": "string"}}
_RETRY = {"Retry-After": {"description": "Seconds to wait.", "schema": _COUNT}}
SECURITY = {
    "token": {"type": "http", "scheme": "bearer", "description": "The token of one client."},
    "name": {"type": "apiKey", "in": "header", "name": CLIENT, "description": "In open mode: a client's name."},
}


def _parameter(name: str, where: str, text: str, schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": where, "required": required, "description": text, "schema": schema}


def _header(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "schema": schema}


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    retry = {429: {"headers": _RETRY}, 503: {"headers": _RETRY}}
    return {status: {"model": Problem, "description": _WHY[status]} | retry.get(status, {}) for status in statuses}


def _answer(text: str, content: dict[str, Any], **more: Any) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": text, "content": content} | more}


_DTYPE = _parameter("dtype", "query", "The dtype of the reply.", {"enum": list(DTYPES), "default": "float32"})
_REPLY = "The personal model as safetensors, with the tensors of /v1/status."
_REPLY_HEADERS = {
    EPOCH: _header("The base epoch of the next upload.", _COUNT),
    MIXTURE: _header("The shares of the clusters, with commas between them.", _NUMBERS),
}
_UPDATE_HEADERS = _REPLY_HEADERS | {
    RATES: _header("How far each cluster moved to the upload.", _NUMBERS),
    STALENESS: _header("Epochs since the base epoch.", _COUNT),
    OUTCOME: _header("What became of the upload.", {"enum": list(get_args(Outcome))}),
    DETAIL: _header("Why it was rejected, and what to do; only then.", {"type": "string"}),
}
_UPLOAD = {
    "required": True,
    "description": "The local model as safetensors: every tensor of /v1/status, all in F32, F16 or BF16.",
    "content": dict.fromkeys(CONTENT_TYPES, _BINARY),
}
_UPLOAD_PARAMETERS = [
    _DTYPE,
    _parameter(BASE_EPOCH, "header", "CDFL-Epoch of the model that was trained from.", _COUNT, required=True),
    _parameter(
        KEY,
        "header",
        "New for every upload; the same when one is sent again.",
        {"type": "string", "pattern": "^[!-~]{1,128}$"},
        required=True,
    ),
    _parameter("Content-Encoding", "header", "How the body is packed.", {"enum": ["identity", "zstd"]}),
]
_LAST_EVENT = _parameter("Last-Event-ID", "header", "Tell what came after this epoch, too.", _COUNT)

# Arguments of the routes.
MODEL: dict[str, Any] = {
    "responses": _answer(_REPLY, {CONTENT_TYPE: _BINARY}, headers=_REPLY_HEADERS)
    | _refusals(400, 401, 403, 422, 429, 503),
    "openapi_extra": {"parameters": [_DTYPE]},
}
UPDATES: dict[str, Any] = {
    "responses": _answer(_REPLY, {CONTENT_TYPE: _BINARY}, headers=_UPDATE_HEADERS)
    | _refusals(400, 401, 403, 408, 409, 410, 411, 413, 415, 422, 429, 503),
    "openapi_extra": {"parameters": _UPLOAD_PARAMETERS, "requestBody": _UPLOAD},
}
QUESTION: dict[str, Any] = {"responses": _refusals(400, 401, 403, 429, 503)}
EVENTS: dict[str, Any] = {
    "responses": _answer("A stream without end.", {"text/event-stream": _TEXT}) | _refusals(400, 401, 403, 429, 503),
    "openapi_extra": {"parameters": [_LAST_EVENT]},
}
METRICS: dict[str, Any] = {"responses": _answer("Prometheus' text format.", {"text/plain": _TEXT}) | _refusals(401)}
READY: dict[str, Any] = {"responses": _refusals(503)}


def describe(app: FastAPI, *, is_open: bool) -> None:
    """Let the OpenAPI page say how a client shows who it is."""
    whole = app.openapi()
    scheme = "name" if is_open else "token"
    whole["components"]["securitySchemes"] = {scheme: SECURITY[scheme]}
    for path, methods in whole["paths"].items():
        if path.startswith("/v1/"):
            for operation in methods.values():
                operation["security"] = [{scheme: []}]
    app.openapi_schema = whole
