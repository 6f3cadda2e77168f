"""The body of a request, streamed to a file: never more than a piece of it is in memory."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from starlette.requests import Request

from cdfl.server.limits import Limits
from cdfl.wire import (
    CONTENT_TYPES,
    LengthRequiredError,
    MalformedError,
    TooLargeError,
    TooSlowError,
    UnsupportedError,
    WireError,
    parse_count,
)

PIECE = 2**20  # bytes that are collected before they are written


def check_head(headers: Mapping[str, str], limit: int) -> None:
    """Refuse by its header what need not be read."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in CONTENT_TYPES:
        raise UnsupportedError(f"the content type is {kind[:80]!r}; expected {' or '.join(CONTENT_TYPES)}")
    coding = content_coding(headers)
    if coding not in ("identity", "zstd"):
        raise UnsupportedError(f"the content encoding is {coding[:80]!r}; expected zstd or none")
    length = headers.get("content-length")
    if length is None and "chunked" not in headers.get("transfer-encoding", "").lower():
        raise LengthRequiredError("the length of the body is unknown; expected Content-Length or a chunked body")
    if length is not None and parse_count("Content-Length", length) > limit:
        raise TooLargeError(f"the body is {length} bytes; expected at most {limit}")


def content_coding(headers: Mapping[str, str]) -> str:
    """How the body is packed."""
    return headers.get("content-encoding", "identity").strip().lower()


class Body:
    """The body of one request. It is waited for, but not without end for a byte, and not for one byte a minute."""

    def __init__(self, request: Request, limits: Limits) -> None:
        self.received = 0
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
                if len(held) >= PIECE:
                    await asyncio.to_thread(file.write, held)
                    held = bytearray()
            await asyncio.to_thread(file.write, held)
        if self._reason is not None:  # it came after the last piece: all the same there is room for one only
            raise self._reason

    def give_up(self, reason: WireError) -> None:
        """Wait no longer, and do not take it even if all of it is there; whoever waits gets `reason`."""
        self._reason = reason
        if self._timer is not None:
            self._timer.reschedule(asyncio.get_running_loop().time())

    async def _pieces(self) -> AsyncIterator[bytes]:
        while not self._is_over:
            try:
                async with asyncio.timeout(self._left()) as self._timer:
                    message = await self._request.receive()
            except TimeoutError:
                slow = TooSlowError(f"the body came too slowly, {self.received} bytes so far; send it again")
                raise self._reason or slow from None
            finally:
                self._timer = None
            self._is_over = not message.get("more_body", False)
            if message["type"] == "http.disconnect":
                raise MalformedError("the connection was closed in the middle of the body")
            self.received += len(message.get("body", b""))
            yield message.get("body", b"")

    def _left(self) -> float:
        """Seconds until the next byte must be here."""
        if self._reason is not None:
            return 0.0
        behind = time.monotonic() - self._begun - self.received / self._limits.least_rate
        return max(0.0, self._limits.stall_seconds - max(0.0, behind))
