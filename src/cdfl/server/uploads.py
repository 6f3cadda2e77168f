"""Receive uploads: check, store and decode them, then put them into the engine's queue."""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from starlette.requests import Request

from cdfl.server.byte_limits import ByteLimit
from cdfl.server.connection_limit import PIECE
from cdfl.server.engine import Engine, use_torch_threads
from cdfl.server.limits import Limits
from cdfl.server.store_errors import StoreUnavailable
from cdfl.server.store_records import Claim, ClientRecord, Entry
from cdfl.server.submission import RETRY_SECONDS, Answer, Submission
from cdfl.wire import (
    BASE_EPOCH,
    CONTENT_TYPES,
    DIGEST,
    KEY,
    MIXTURE,
    REPLY,
    ConflictError,
    LengthRequiredError,
    MalformedError,
    TooLargeError,
    TooSlowError,
    UnavailableError,
    UnfitError,
    UnsupportedError,
    WireError,
    body_size,
    decode_file,
    decompress,
    parse_count,
    sha256_in,
    wants_model,
)

logger = logging.getLogger("cdfl.server")

T = TypeVar("T")
SLACK = 2**20  # a body may be this many bytes longer than ours, for other headers and metadata
NUM_THREADS = 8  # threads that decode uploads and write to the store
NUM_READERS = 4  # threads that look up clients: they do not wait for those that write
HELD = 4 * PIECE  # bytes of a body that are collected before they are written


class Uploads:
    """Receives uploads, one a client at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.store, self.limits = engine, engine.store, engine.limits
        self.body_limit = self.limits.body_bytes or body_size(engine.layout) + SLACK
        self._places: dict[str, _Place] = {}
        self.arriving: ByteLimit[Body] = ByteLimit(self.limits.arriving_bytes)
        self._threads = ThreadPoolExecutor(
            NUM_THREADS, thread_name_prefix="cdfl-uploads", initializer=use_torch_threads, initargs=(1,)
        )
        self._readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="cdfl-reads")

    async def receive(
        self,
        request: Request,
        claim: Claim,
        key: str,
        base_epoch: int,
        coding: str,
        report: tuple[float, ...] = (),
        mixture: tuple[float, ...] | None = None,
    ) -> Answer:
        """Receive one upload; return the answer once the upload is durable."""
        if mixture is not None and not (self.engine.replies.router and self.engine.settings.replies.send_mixture):
            raise UnfitError(f"this server estimates mixtures itself; leave {MIXTURE} out")
        wants_one = wants_model(request.headers.get(REPLY))
        client_id = claim.client_id
        body = Body(request, self.limits, self.arriving)
        coding = coding.strip().lower()
        _check_head(request.headers, coding, self.body_limit)
        async with self._place(client_id, key, body) as place:
            # This client has no other upload in process, so the record stays true.
            record = await self.read(self._check, client_id, key, base_epoch)
            spool = self.store.spool()
            try:
                with self.engine.metrics.timed("receive"):
                    await body.spool(spool, self.body_limit)
                place.body = None
                declared = sha256_in(request.headers.get(DIGEST))
                digest = await self.in_thread(self._unpack_and_hash, spool, coding, declared)
                if record.repeated is not None:
                    return await self.in_thread(self._repeat, record.repeated, digest)
                claim = replace(claim, since=record.since, uploads=record.uploads)
                submission = await self.in_thread(self._keep, record, claim, key, base_epoch, spool, digest)
                submission.report, submission.wants_model = report, wants_one
                submission.mixture = None if mixture is None else torch.tensor(mixture, dtype=torch.float64)
            except OSError as error:  # the disk is full, or gone
                raise StoreUnavailable(f"the upload cannot be written: {error}") from error
            finally:
                self.arriving.end(body)
                with suppress(OSError):
                    spool.unlink(missing_ok=True)
            try:
                answer = self.engine.submit(submission)
            except WireError:
                self.store.drop(submission.upload)
                raise
            return await asyncio.wrap_future(answer)

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a blocking function in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def read(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function that only reads the store, in a thread of its own kind."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, function, *arguments)

    @asynccontextmanager
    async def _place(self, client_id: str, key: str, body: "Body") -> AsyncIterator["_Place"]:
        """Take the one place of a client. A newer upload replaces one that is still arriving."""
        other = self._places.get(client_id)
        if other is not None and other.body is None:
            which = "this upload is" if other.key == key else "another upload of this client is"
            raise ConflictError(f"{which} still being processed; send it again in a moment", RETRY_SECONDS)
        if other is not None and other.body is not None:
            other.body.give_up(ConflictError("a newer upload of this client has come; one at a time", RETRY_SECONDS))
        place = self._places[client_id] = _Place(key, body)
        try:
            yield place
        finally:
            if self._places.get(client_id) is place:
                del self._places[client_id]

    # -- in threads

    def _check(self, client_id: str, key: str, base_epoch: int) -> ClientRecord:
        """Refuse what can be refused before the body is read."""
        record = self.store.client(client_id, base_epoch, key)
        if record is not None and record.repeated is not None:
            return record
        if record is None or not record.was_sent:
            raise ConflictError(
                f"{BASE_EPOCH} is {base_epoch}, which this client was never sent; train from GET /v1/model"
            )
        self.engine.check_room()
        return record

    def _unpack_and_hash(self, spool: Path, coding: str, declared: str | None) -> str:
        """Return the sha256 of the safetensors; a compressed file is unpacked in place.

        A body that is not the one its `Content-Digest` declares was damaged on the way, and should be sent again.
        """
        with self.engine.metrics.timed("decode"):
            digest = _file_digest(spool) if declared or coding == "identity" else ""
            if declared and digest != declared:
                raise UnavailableError(
                    f"the body does not have the sha-256 that {DIGEST} declares, so it was damaged; send it again",
                    retry_after=0.0,
                )
            if coding != "zstd":
                return digest
            self._unpack(spool)
            return _file_digest(spool)

    def _unpack(self, spool: Path) -> None:
        unpacked = self.store.spool()
        try:
            with spool.open("rb") as source, unpacked.open("wb") as sink:
                decompress(source, sink, self.body_limit)
            unpacked.replace(spool)
        finally:
            unpacked.unlink(missing_ok=True)

    def _keep(
        self, record: ClientRecord, claim: Claim, key: str, base_epoch: int, spool: Path, digest: str
    ) -> Submission:
        """Decode an upload and make it durable."""
        with self.engine.metrics.timed("decode"):
            local_model = decode_file(spool, self.engine.layout)  # before `keep` renames the file
            upload = self.store.keep(spool, digest)
        return Submission(
            record.client_id,
            key,
            base_epoch,
            digest,
            local_model,
            upload,
            claim,
            client=record.memory_then,
            was_rejected=record.last is not None and record.last.outcome == "rejected",
            sent=record.sent,
            received=self.engine.clock(),
        )

    def _repeat(self, known: Entry, digest: str) -> Answer:
        """Return the stored reply to an upload that was taken before."""
        if known.digest != digest:
            raise UnfitError(f"{KEY} was used before with another body; use a new one for every upload")
        answer = self.engine.replies.stored(known)
        self.engine.metrics.repeated.inc()
        return answer


class Body:
    """The body of one request, streamed to a file. A body that stalls or trickles is refused."""

    def __init__(self, request: Request, limits: Limits, arriving: "ByteLimit[Body]") -> None:
        self.received = 0
        self._arriving = arriving
        self._request, self._limits = request, limits
        self._begun = time.monotonic()
        self._is_over = False
        self._timer: asyncio.Timeout | None = None
        self._reason: WireError | None = None

    async def spool(self, path: Path, limit: int) -> None:
        """Write the body to a file; the first byte beyond `limit` ends it."""
        held = bytearray()
        with await asyncio.to_thread(path.open, "wb") as file:
            async for piece in self._pieces():
                if self.received > limit:
                    raise TooLargeError(f"the body is more than {limit} bytes; expected at most that")
                held += piece
                if len(held) >= HELD:
                    await asyncio.to_thread(file.write, held)
                    held = bytearray()
            await asyncio.to_thread(file.write, held)
        if self._reason is not None:  # `give_up` was called after the last piece
            raise self._reason

    def give_up(self, reason: WireError) -> None:
        """Stop waiting: `spool` raises `reason`, even if the whole body is there."""
        self._reason = reason
        if self._timer is not None:
            self._timer.reschedule(asyncio.get_running_loop().time())

    def _make_room(self) -> None:
        self.give_up(UnavailableError("too many uploads are on their way; send it again", RETRY_SECONDS))

    async def _pieces(self) -> AsyncIterator[bytes]:
        while not self._is_over:
            try:
                async with asyncio.timeout(self._seconds_left()) as self._timer:
                    message = await self._request.receive()
            except TimeoutError:
                slow = TooSlowError(f"the body came too slowly, {self.received} bytes so far; send it again")
                raise self._reason or slow from None
            finally:
                self._timer = None
            self._is_over = not message.get("more_body", False)
            if message["type"] == "http.disconnect":
                raise MalformedError("the connection was closed in the middle of the body")
            piece = message.get("body", b"")
            self.received += len(piece)
            self._arriving.add(self, len(piece), self._make_room)
            yield piece

    def _seconds_left(self) -> float:
        """Return the seconds until the next byte must arrive."""
        if self._reason is not None:
            return 0.0
        behind = time.monotonic() - self._begun - self.received / self._limits.least_rate
        return max(0.0, self._limits.stall_seconds - max(0.0, behind))


@dataclass(eq=False)
class _Place:
    """The one upload of a client that is under way."""

    key: str
    body: Body | None  # None once it has arrived


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_head(headers: Mapping[str, str], coding: str, limit: int) -> None:
    """Refuse a body by its headers."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in CONTENT_TYPES:
        raise UnsupportedError(f"the content type is {kind[:80]!r}; expected {' or '.join(CONTENT_TYPES)}")
    if coding not in ("identity", "zstd"):
        raise UnsupportedError(f"the content encoding is {coding[:80]!r}; expected zstd or none")
    length = headers.get("content-length")
    if length is None and "chunked" not in headers.get("transfer-encoding", "").lower():
        raise LengthRequiredError("the length of the body is unknown; expected Content-Length or a chunked body")
    if length is not None and parse_count("Content-Length", length) > limit:
        raise TooLargeError(f"the body is {length} bytes; expected at most {limit}")
