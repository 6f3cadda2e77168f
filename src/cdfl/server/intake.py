"""From a request to a place in the queue: who asks, whether the upload is new, whether it fits."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from starlette.requests import Request

from cdfl.server.auth import Access
from cdfl.server.journal import ClientRecord, Entry, StoreUnavailable
from cdfl.server.limits import Limits, RateLimit
from cdfl.server.receive import Body, check_head, content_coding
from cdfl.server.session import RETRY_SECONDS, Session
from cdfl.server.threads import pool
from cdfl.server.uploads import Answer, Submission, head_of
from cdfl.wire import (
    BASE_EPOCH,
    KEY,
    ConflictError,
    ForbiddenError,
    GoneError,
    UnfitError,
    WireError,
    body_size,
    check_key,
    decode_file,
    decode_model,
    decompress,
    parse_base_epoch,
)

T = TypeVar("T")
ROOM = 2**20  # bytes that a body may be longer than ours: other headers, metadata
THREADS = 8  # that decode uploads and ask the store


@dataclass(eq=False)
class _Place:
    """The one upload of a client that is under way."""

    key: str
    body: Body | None  # None: it has arrived


@dataclass(frozen=True)
class _Visit:
    """An upload whose headers are in order."""

    client_id: str
    key: str
    base_epoch: int


class Intake:
    """Takes uploads and requests for models. One upload a client at a time."""

    def __init__(self, session: Session, access: Access, limits: Limits) -> None:
        self.session, self.store, self.metrics = session, session.store, session.metrics
        self.access, self.limits = access, limits
        self.body_limit = limits.body_bytes or body_size(session.layout) + ROOM
        self._rate = RateLimit(limits.requests_per_second, limits.burst)
        self._places: dict[str, _Place] = {}
        self._threads = pool(THREADS, "cdfl-intake")

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown()

    async def model(self, request: Request) -> Answer:
        """Join or refresh."""
        return await self.in_thread(self._model, request.headers)

    async def client(self, request: Request) -> tuple[str, ClientRecord | None]:
        """Who asks, and what is known of it."""
        return await self.in_thread(self._client, request.headers)

    async def update(self, request: Request) -> Answer:
        """Take one upload, and answer it when it is durable."""
        body = Body(request, self.limits)
        check_head(request.headers, self.body_limit)
        visit = await self.in_thread(self._visit, request.headers)
        async with self._place(visit, body) as place:
            return await self._take(visit, body, place, content_coding(request.headers))

    # -- on the event loop

    async def _take(self, visit: _Visit, body: Body, place: _Place, coding: str) -> Answer:
        spool = self.store.spool()
        try:
            with self.metrics.timed("receive"):
                await body.spool(spool, self.body_limit)
            place.body = None
            ready = await self.in_thread(self._ready, visit, spool, coding)
        except OSError as error:  # the disk is full, or gone
            raise StoreUnavailable(f"the upload cannot be written: {error}") from error
        finally:
            with suppress(OSError):
                spool.unlink(missing_ok=True)
        if isinstance(ready, Answer):
            return ready
        try:
            answer = self.session.submit(ready)
        except WireError:
            self.store.drop(ready.upload)
            raise
        return await asyncio.wrap_future(answer)

    @asynccontextmanager
    async def _place(self, visit: _Visit, body: Body) -> AsyncIterator[_Place]:
        """The place of a client. An upload that is still on its way makes room: its connection is probably dead."""
        other = self._places.get(visit.client_id)
        if other is not None and other.body is None:
            which = "this upload is" if other.key == visit.key else "another upload of this client is"
            raise ConflictError(f"{which} still being worked on; send it again in a moment", RETRY_SECONDS)
        if other is not None and other.body is not None:
            other.body.give_up(ConflictError("a newer upload of this client has come; one at a time", RETRY_SECONDS))
        place = self._places[visit.client_id] = _Place(visit.key, body)
        try:
            yield place
        finally:
            if self._places.get(visit.client_id) is place:
                del self._places[visit.client_id]

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Call something that takes a while."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    # -- in threads

    def _client(self, headers: Mapping[str, str]) -> tuple[str, ClientRecord | None]:
        client_id = self.access.client(headers)
        self._rate.check(client_id)
        return client_id, self.store.client(client_id)

    def _model(self, headers: Mapping[str, str]) -> Answer:
        client_id, record = self._client(headers)
        if record is None and self.store.num_clients() >= self.limits.clients:
            raise ForbiddenError(f"the server knows {self.limits.clients} clients already and takes no more")
        return self.session.join(client_id, None if record is None else record.mixture)

    def _visit(self, headers: Mapping[str, str]) -> _Visit:
        """Everything that can be refused before the body is read."""
        client_id = self.access.client(headers)
        visit = _Visit(client_id, check_key(headers.get(KEY)), parse_base_epoch(headers.get(BASE_EPOCH)))
        self._rate.check(client_id)
        if self.store.find(client_id, visit.key) is None:
            self._check_epoch(visit)
            self.session.check_room()
        return visit

    def _check_epoch(self, visit: _Visit) -> None:
        if not self.store.was_given(visit.client_id, visit.base_epoch):
            raise ConflictError(
                f"{BASE_EPOCH} is {visit.base_epoch}, which this client was never given; train from GET /v1/model"
            )

    def _ready(self, visit: _Visit, spool: Path, coding: str) -> Submission | Answer:
        """An upload that can wait in the queue, or, where it was taken before, its reply."""
        with self.metrics.timed("decode"):
            if coding == "zstd":
                self._unpack(spool)
            with spool.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            known = self.store.find(visit.client_id, visit.key)
            if known is not None:
                return self._again(known, digest)
            self._check_epoch(visit)
            record = self.store.client(visit.client_id)
            local_model = decode_file(spool, self.session.layout)  # while it is called so: `keep` renames it
            return Submission(
                client_id=visit.client_id,
                key=visit.key,
                base_epoch=visit.base_epoch,
                digest=digest,
                local_model=local_model,
                upload=self.store.keep(spool),
                last_mixture=None if record is None else record.mixture,
                past_harm=1.0 if record is None else record.past_harm,
            )

    def _unpack(self, spool: Path) -> None:
        unpacked = self.store.spool()
        try:
            with spool.open("rb") as source, unpacked.open("wb") as sink:
                decompress(source, sink, self.body_limit)
            unpacked.replace(spool)
        finally:
            unpacked.unlink(missing_ok=True)

    def _again(self, known: Entry, digest: str) -> Answer:
        if known.digest != digest:
            raise UnfitError(f"{KEY} was used before with another body; take a new one for every upload")
        body = self.store.read_reply(known)
        if body is None:
            raise GoneError("this upload was taken, but its reply is no longer kept; GET /v1/model")
        self.metrics.repeated.inc()
        return Answer(head_of(known), decode_model(body, self.session.layout))
