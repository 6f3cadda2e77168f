"""Additions to the OpenAPI page that FastAPI does not find in the routes: JSON answers, refusals, reply headers."""

from typing import Any, get_args

from pydantic import BaseModel, Field

from cdfl.server.engine import Engine
from cdfl.server.store_records import ClientRecord, numbers
from cdfl.wire import (
    CONTENT_TYPE,
    CONTENT_TYPES,
    DETAIL,
    EPOCH,
    MIXTURE,
    OUTCOME,
    RATES,
    REPLY,
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
    """What the server accepts."""

    body_bytes: int
    queue: int
    requests_per_second: float
    burst: int


class Status(BaseModel):
    """The state of the server."""

    epoch: int
    num_clusters: int
    clusters: list[str] = Field(description="The names of the clusters.")
    cluster_epochs: list[int] | None = Field(description="When each cluster last moved; for the operator only.")
    cluster_losses: list[float | None] | None = Field(
        description="The loss of each cluster on its proxy set; for the operator only."
    )
    clients: int
    uploads: int = Field(description="All uploads so far, also those that were rejected.")
    num_parameters: int
    layout: list[TensorInfo] = Field(description="The tensors that a body must hold, with their shapes.")
    limits: LimitsInfo
    reply: str = Field(description="What a reply carries: `model`, or `experts`, the models of all clusters.")
    expert_dtype: str | None = Field(description="How experts are rounded.")
    router: str | None = Field(description="The ETag of /v1/router, without quotes.")

    @classmethod
    def of(cls, engine: Engine, body_limit: int, whole: bool) -> "Status":
        """Describe an engine. What the last upload did is shown only if `whole`: it would tell of its client."""
        state, layout, limits = engine.state, engine.layout, engine.limits
        shapes = zip(layout.names, layout.shapes, strict=True)
        return cls(
            epoch=state.epoch,
            num_clusters=state.num_clusters,
            clusters=engine.cluster_names,
            cluster_epochs=state.cluster_epochs.tolist() if whole else None,
            cluster_losses=list(numbers(state.cluster_losses)) if whole else None,
            clients=engine.store.num_clients(),
            uploads=engine.store.number,
            num_parameters=layout.num_parameters,
            layout=[TensorInfo(name=name, shape=list(shape)) for name, shape in shapes],
            limits=LimitsInfo(
                body_bytes=body_limit,
                queue=engine.capacity,
                requests_per_second=limits.requests_per_second,
                burst=limits.burst,
            ),
            reply="model" if engine.replies.router is None else "experts",
            expert_dtype=None if engine.replies.router is None else engine.settings.replies.expert_dtype,
            router=engine.replies.router_digest or None,
        )


class ClientStatus(BaseModel):
    """What the server knows of one client."""

    client_id: str
    is_known: bool
    since: float | None = Field(description="Unix time of its first request for a model.")
    uploads: int
    epoch: int | None = Field(description="The epoch of its last upload.")
    mixture: list[float] | None = Field(description="The mixture of the last reply to an upload.")
    outcome: str | None = Field(description="The outcome of its last upload: applied, deprecated or rejected.")

    @classmethod
    def of(cls, client_id: str, record: ClientRecord | None) -> "ClientStatus":
        """Describe a client."""
        last = None if record is None else record.last
        return cls(
            client_id=client_id,
            is_known=record is not None,
            since=None if record is None else record.since,
            uploads=0 if record is None else record.uploads,
            epoch=None if last is None else last.epoch,
            mixture=None if last is None else list(last.mixture),
            outcome=None if last is None else last.outcome,
        )


class ClientInfo(ClientStatus):
    """One client in the list of all."""

    last_upload: float | None = Field(description="Unix time of its last upload.")
    staleness: int | None = Field(description="The staleness of its last upload.")

    @classmethod
    def of_record(cls, record: ClientRecord) -> "ClientInfo":
        """Describe a known client."""
        known, last = ClientStatus.of(record.client_id, record), record.last
        return cls(
            **known.model_dump(),
            last_upload=None if last is None else last.received,
            staleness=None if last is None else last.staleness,
        )


class ClientList(BaseModel):
    """A part of the clients, by name."""

    clients: list[ClientInfo]
    more: bool = Field(description="Whether there are more; ask again with `after` set to the last name.")


class ClusterComparison(BaseModel):
    """How the clusters compare."""

    epoch: int
    losses: list[list[float | None]] = Field(description="Row k: the loss of cluster k's model on every proxy set.")
    distances: list[list[float | None]] = Field(description="The norm of the difference of two cluster models.")


class Health(BaseModel):
    """The answer of a running server."""

    status: str


_WHY = {
    400: "A header, the query, the body or the safetensors in it cannot be read.",
    401: "No token, or one that is unknown or revoked; in open mode, no name.",
    403: "The token of another client; or the server takes no more clients.",
    404: "Replies of this server are one model: there is no router.",
    408: "The body came too slowly.",
    409: "A base epoch that this client was never sent; or, with Retry-After, an upload still in process.",
    410: "This upload was taken, but its reply is no longer kept.",
    411: "A body without a length.",
    413: "The body is too large, as it came or once decompressed.",
    415: "A content type or encoding that the server does not read.",
    422: "The tensors do not fit the model or are not finite; or the key was used with another body.",
    429: "Too many requests of this client.",
    503: "The queue is full, too many event streams are open, the store is unavailable, or the server shuts down.",
}
_COUNT = {"type": "integer", "minimum": 0}
_NUMBERS = {"type": "string", "pattern": r"^[0-9.e+-]+(,[0-9.e+-]+)*$"}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_RETRY = {"headers": {"Retry-After": {"description": "Seconds to wait.", "schema": _COUNT}}}

Responses = dict[int | str, dict[str, Any]]
# A route that says this has no 422, which FastAPI adds to every route with parameters.
REFUSED: Responses = {"default": {"model": Problem, "description": "Refused."}}


def refusals(*statuses: int) -> Responses:
    """Describe the refusals of a route."""
    return {
        status: {"model": Problem, "description": _WHY[status]} | (_RETRY if status in (429, 503) else {})
        for status in statuses
    }


def model_reply(*, to_upload: bool) -> Responses:
    """Describe the reply that carries a model."""
    headers = {
        EPOCH: {"description": "The base epoch of the next upload.", "schema": _COUNT},
        MIXTURE: {"description": "The shares of the clusters, with commas between them.", "schema": _NUMBERS},
        REPLY: {
            "description": "What the body is: `model`, or `experts; dtype=int8; router=SHA256`.",
            "schema": {"type": "string"},
        },
    }
    if to_upload:
        headers |= {
            RATES: {"description": "How far each cluster moved to the upload.", "schema": _NUMBERS},
            STALENESS: {"description": "Epochs since the base epoch.", "schema": _COUNT},
            OUTCOME: {"description": "What happened to the upload.", "schema": {"enum": list(get_args(Outcome))}},
            DETAIL: {"description": "Why it was rejected, and what to do.", "schema": {"type": "string"}},
        }
    text = "The personal model as safetensors, with the tensors of /v1/status; or all cluster models, rounded."
    return {200: {"description": text, "content": {CONTENT_TYPE: _BINARY}, "headers": headers}}


EVENTS_PAGE: Responses = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
ROUTER_PAGE: Responses = {
    200: {
        "description": "The router as safetensors; its numbers and its description are in the metadata.",
        "content": {CONTENT_TYPE: _BINARY},
        "headers": {"ETag": {"description": "For If-None-Match.", "schema": {"type": "string"}}},
    },
    304: {"description": "The client has this router."},
}
METRICS_PAGE: Responses = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "The local model as safetensors: every tensor of /v1/status, all in F32, F16 or BF16.",
        "content": dict.fromkeys(CONTENT_TYPES, _BINARY),
    }
}
