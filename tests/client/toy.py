"""A small server that follows the protocol: the same core and codec, no network, no disk."""

import hashlib
import json
from collections import defaultdict

import httpx
import torch
from torch import nn

from cdfl import wire
from cdfl.core import NEWCOMER, Layout, Settings, Upload, flatten, initial_state, join, server_update

CLUSTERS = 2


def make_model() -> nn.Module:
    """Parameters, float buffers and an integer buffer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def make_data(turned: bool = False, count: int = 24, seed: int = 0):
    """Two blobs; `turned` swaps the labels."""
    noise = torch.Generator().manual_seed(seed)
    targets = torch.arange(count) % 2
    inputs = torch.randn(count, 2, generator=noise) * 0.3 + (2.0 * targets[:, None] - 1)
    return inputs, 1 - targets if turned else targets


class ToyServer:
    """Pass `transport` to a client."""

    def __init__(self, settings: Settings | None = None, tokens: dict[str, str] | None = None) -> None:
        self.settings = settings or Settings()
        self.tokens = tokens  # token -> client_id; None: open
        model = make_model()
        self.layout = Layout.of(model)
        start = flatten(model)
        self.state = initial_state(torch.stack([start, start * 0.9]), self.evaluate, self.layout.num_parameters)
        self.given = defaultdict(set)
        self.clients = defaultdict(lambda: NEWCOMER)  # client_id -> ClientMemory
        self.last = {}  # client_id -> (key, digest, reply) of the last upload
        self.applied: list[tuple[str, str]] = []  # (client_id, key), one entry each time an upload moved the server
        self.requests: list[httpx.Request] = []
        self.keeps_replies = True
        self.transport = httpx.MockTransport(self.handle)

    def evaluate(self, models, clusters):
        return (models.mean(dim=1) - clusters).abs()

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        try:
            return self.answer(request)
        except wire.WireError as error:
            headers = {wire.VERSION: "1"}
            if error.retry_after is not None:
                headers["Retry-After"] = str(error.retry_after)
            return httpx.Response(error.status, headers=headers, text=json.dumps({"detail": error.detail}))

    def answer(self, request: httpx.Request) -> httpx.Response:
        client_id = self.who(request)
        if (request.method, request.url.path) == ("GET", "/v1/model"):
            reply = join(self.state, self.settings, self.clients[client_id])
            self.given[client_id].add(reply.epoch)
            return self.respond(request, reply, is_upload=False)
        if (request.method, request.url.path) == ("POST", "/v1/updates"):
            return self.update(request, client_id)
        raise wire.NotFoundError(f"there is no {request.url.path}")

    def who(self, request: httpx.Request) -> str:
        named = request.headers.get(wire.CLIENT)
        if self.tokens is None:
            return wire.check_client_id(named)
        client_id = self.tokens.get(wire.bearer_token(request.headers.get("Authorization")))
        if client_id is None:
            raise wire.UnauthorizedError("the token is unknown")
        if named != client_id:
            raise wire.ForbiddenError("the token of another client")
        return client_id

    def update(self, request: httpx.Request, client_id: str) -> httpx.Response:
        body = request.content
        if request.headers.get("Content-Encoding") == "zstd":
            body = wire.decompress_bytes(body, 10**6)
        key, digest = wire.check_key(request.headers.get(wire.KEY)), hashlib.sha256(body).hexdigest()
        last_key, last_digest, last_reply = self.last.get(client_id, (None, None, None))
        if key == last_key:
            if digest != last_digest:
                raise wire.UnfitError("the key came with another body")
            if not self.keeps_replies:
                raise wire.GoneError("the reply is no longer kept; ask for the model.")
            return self.respond(request, last_reply)
        assert (client_id, key) not in self.applied, "a key that was answered and superseded came back"
        base_epoch = wire.parse_base_epoch(request.headers.get(wire.BASE_EPOCH))
        if base_epoch not in self.given[client_id]:
            raise wire.ConflictError("this epoch was never sent to this client; ask for the model.")
        upload = Upload(wire.decode_model(body, self.layout), base_epoch)
        self.state, reply = server_update(self.state, upload, self.settings, self.evaluate, self.clients[client_id])
        self.applied.append((client_id, key))
        self.given[client_id].add(reply.epoch)
        self.clients[client_id] = reply.client
        self.last[client_id] = key, digest, reply
        return self.respond(request, reply)

    def respond(self, request, reply, is_upload=True) -> httpx.Response:
        head = wire.ReplyHead(reply.epoch, tuple(reply.mixture.tolist()))
        if is_upload:
            done = tuple(reply.rates.tolist()), reply.staleness, reply.outcome, reply.verdict.reason
            head = wire.ReplyHead(head.epoch, head.mixture, *done)
        headers = head.to_headers()
        body = wire.encode_model(reply.personal_model, self.layout, request.url.params.get("dtype", "float32"))
        if request.headers["Accept-Encoding"] == "zstd":
            body, headers["Content-Encoding"] = wire.compress(body), "zstd"
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(body))
