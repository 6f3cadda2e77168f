"""A small web application for run folders: the page, and one stream with the events of all runs."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from cdfl.page import HEADERS, page_routes
from cdfl.watch.follow import Follower

POLL_SECONDS = 0.5
QUIET_SECONDS = 15.0  # a line without content is sent this often, so that a browser that is gone is noticed
LOCAL = ["127.0.0.1", "localhost", "[::1]"]  # other names could lead other web sites here


def create_watch_app(runs: Sequence[tuple[str, Path]]) -> Starlette:
    """Return the application for some runs, as (name, folder)."""

    async def events(request: Request) -> Response:
        lines = _all_lines([Follower(folder) for _, folder in runs])
        headers = HEADERS | {"Cache-Control": "no-store"}
        return StreamingResponse(lines, media_type="text/plain; charset=utf-8", headers=headers)

    config = {"kind": "runs", "runs": [{"name": name} for name, _ in runs]}
    return Starlette(
        routes=[*page_routes(config), Route("/runs/events", events)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=LOCAL)],
    )


async def _all_lines(followers: Sequence[Follower]) -> AsyncIterator[bytes]:
    """Yield `NUMBER<tab>EVENT` lines of all runs until all are finished; `NUMBER<tab>reset` begins one again."""
    quiet = 0.0
    while True:
        pieces = []
        for number, follower in enumerate(followers):
            is_new, lines = await asyncio.to_thread(follower.read)
            if is_new:
                pieces.append(b"%d\treset\n" % number)
            pieces += [b"%d\t%s\n" % (number, line) for line in lines]
        if pieces:
            quiet = 0.0
            yield b"".join(pieces)
        elif all(follower.is_finished for follower in followers):
            return
        else:
            quiet += POLL_SECONDS
            if quiet >= QUIET_SECONDS:
                quiet = 0.0
                yield b"\n"
            await asyncio.sleep(POLL_SECONDS)
