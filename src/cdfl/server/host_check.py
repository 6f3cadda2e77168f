"""Refuse requests for other hosts, so that a web page cannot reach a local server under a name of its own."""

from collections.abc import Collection

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
MISDIRECTED = 421


class HostCheck:
    """Answers 421 unless the request's `Host` is one of `names`; any is allowed if there are none."""

    def __init__(self, app: ASGIApp, names: Collection[str] = ()) -> None:
        self._app = app
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if self._names and scope["type"] == "http":
            given = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
            if host_in(given) not in self._names:
                expected = " or ".join(sorted(self._names))
                detail = f"the host is {given[:80]!r}; expected {expected}; `cdfl serve --allow-host` names others"
                await JSONResponse({"detail": detail}, MISDIRECTED)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def host_in(header: str) -> str:
    """Return the name in a `Host` header, without its port.

    >>> host_in("LocalHost:8000"), host_in("[::1]:8000"), host_in("[::1]"), host_in("cdfl.example")
    ('localhost', '::1', '::1', 'cdfl.example')
    """
    name = header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0]
