"""The page that shows a server or simulations: static files, served without a build step and without the internet.

Chart.js comes from the package chartkick, Swagger UI from fastapi-offline. Nothing is loaded from another host, and no
script or style is inline.
"""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

OWN = files("cdfl.page") / "static"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
WORTH_PACKING = 1000  # bytes


@dataclass(frozen=True)
class Asset:
    """One file of the page."""

    file: Traversable

    @cached_property
    def body(self) -> bytes:
        """Its bytes, read once."""
        return self.file.read_bytes()

    @cached_property
    def packed(self) -> bytes:
        """The same, compressed."""
        return gzip.compress(self.body, 6, mtime=0)

    @cached_property
    def tag(self) -> str:
        """Its ETag: browsers ask every time and load it only if it changed."""
        return f'"{hashlib.sha256(self.body).hexdigest()[:20]}"'

    def response(self, request: Request) -> Response:
        """Answer a request for it."""
        headers = HEADERS | {"ETag": self.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == self.tag:
            return Response(status_code=304, headers=headers)
        body, kind = self.body, KINDS[self.file.name[self.file.name.rindex(".") :]]
        if len(body) > WORTH_PACKING and "gzip" in request.headers.get("Accept-Encoding", ""):
            body, headers = self.packed, headers | {"Content-Encoding": "gzip"}
        return Response(body, media_type=kind, headers=headers)


def page_routes(config: Mapping[str, Any]) -> list[Route]:
    """Return the routes of the page; `config` says where its events come from.

    `{"kind": "server"}` reads the server's own `/v1`, `{"kind": "runs", "runs": [...]}` reads `/runs/events`.
    """
    own = {file.name: Asset(file) for file in OWN.iterdir() if not file.name.startswith("docs.")}
    assets = own | {"chart.js": Asset(files("chartkick") / "django/static/chartkick/Chart.bundle.js")}

    async def about(request: Request) -> Response:
        return JSONResponse(dict(config), headers=HEADERS | {"Cache-Control": "no-cache"})

    return [
        _route("/", assets.pop("index.html")),
        Route("/page/config.json", about, include_in_schema=False),
        *(_route(f"/page/{name}", asset) for name, asset in assets.items()),
    ]


def docs_routes() -> list[Route]:
    """Return the routes of `/docs`: Swagger UI, which reads `/openapi.json`."""
    swagger = files("fastapi_offline") / "static"
    return [
        _route("/docs", Asset(OWN / "docs.html")),
        _route("/page/api_docs.js", Asset(OWN / "api_docs.js")),
        _route("/page/swagger.js", Asset(swagger / "swagger-ui-bundle.js")),
        _route("/page/swagger.css", Asset(swagger / "swagger-ui.css")),
    ]


def _route(path: str, asset: Asset) -> Route:
    async def answer(request: Request) -> Response:
        return asset.response(request)

    return Route(path, answer, include_in_schema=False)
