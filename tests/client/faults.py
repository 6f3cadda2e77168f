"""A network that fails in all possible ways."""

from collections.abc import Iterator

import httpx

# What can happen to one request. The last ones happen after the server has done its work.
FAULTS = ("fine", "refused", "lost", "busy", "reply lost", "reply cut", "garbled", "twice")


class Killed(BaseException):
    """Stands for a kill: `except Exception` does not catch it."""


class Cut(httpx.SyncByteStream):
    """A body that ends too early."""

    def __init__(self, body: bytes, error: BaseException) -> None:
        self.body, self.error = body, error

    def __iter__(self) -> Iterator[bytes]:
        yield self.body[: len(self.body) // 2]
        raise self.error


class BadNetwork(httpx.BaseTransport):
    """Applies a list of faults, one to each request. With `kill`, a fault ends the process."""

    def __init__(self, handler, faults=(), kill: bool = False) -> None:
        self.handler, self.faults, self.kill = handler, list(faults), kill

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        fault = self.faults.pop(0) if self.faults else "fine"
        if fault == "refused":
            raise self.error(httpx.ConnectError("connection refused"))
        if fault == "lost":
            raise self.error(httpx.WriteTimeout("timed out"))
        if fault == "busy":
            return httpx.Response(503, headers={"Retry-After": "1"}, json={"detail": "the queue is full"})
        status, headers, body = self.pass_on(request)
        if fault == "twice":  # a proxy that sends again by itself
            status, headers, body = self.pass_on(request)
        if fault == "reply lost":
            raise self.error(httpx.ReadError("connection reset"))
        if fault == "reply cut":
            error = self.error(httpx.RemoteProtocolError("peer closed connection"))
            return httpx.Response(status, headers=headers, stream=Cut(body, error))
        if fault == "garbled":
            return httpx.Response(200, stream=httpx.ByteStream(b"<html>Please log in to the hotel's network</html>"))
        return httpx.Response(status, headers=headers, stream=httpx.ByteStream(body))

    def pass_on(self, request: httpx.Request) -> tuple[int, httpx.Headers, bytes]:
        response = self.handler(request)
        try:
            return response.status_code, response.headers, b"".join(response.stream)
        finally:
            response.close()

    def error(self, error: httpx.TransportError) -> BaseException:
        return Killed() if self.kill else error
