"""Routes for operators and the page: all clients, and how the clusters compare. On an open server, for everybody."""

import math
from typing import Annotated

from fastapi import Depends, FastAPI, Query, Request

from cdfl.page import docs_routes, page_routes
from cdfl.server.auth import Access
from cdfl.server.engine import Engine
from cdfl.server.openapi import REFUSED, ClientInfo, ClientList, ClusterComparison, refusals
from cdfl.server.uploads import Uploads
from cdfl.wire import UnauthorizedError, UnavailableError

MOST_CLIENTS = 1000  # in one answer


def add_watching(app: FastAPI, engine: Engine, access: Access, uploads: Uploads) -> None:
    """Add the page, `/docs`, and the routes that only the page and the command line need."""

    async def watcher(request: Request) -> None:
        """Refuse everyone but operators, unless the server is open."""
        if not (access.is_open or access.is_operator(request.headers)):
            raise UnauthorizedError("this is for the operator; expected 'Bearer ' and the operator's token")

    allowed = [Depends(watcher)]

    @app.get("/v1/clients", dependencies=allowed, responses=refusals(400, 401, 503) | REFUSED)
    async def clients(
        after: Annotated[str, Query(description="List names above this one.", pattern="^[A-Za-z0-9._-]{0,64}$")] = "",
        limit: Annotated[int, Query(ge=1, le=MOST_CLIENTS)] = MOST_CLIENTS,
    ) -> ClientList:
        """List the clients by name, with the mixture of the last reply to each."""
        found = await uploads.in_thread(engine.store.clients, after, limit + 1)
        return ClientList(clients=[ClientInfo.of_record(each) for each in found[:limit]], more=len(found) > limit)

    @app.get("/v1/clusters", dependencies=allowed, responses=refusals(401, 503))
    async def clusters() -> ClusterComparison:
        """Compare the clusters: the loss of each on every proxy set, and the distances between them."""
        if engine.matrices is None:
            raise UnavailableError("this server does not compare its clusters", retry_after=60)
        found = await uploads.in_thread(engine.matrices.of, engine.state)
        return ClusterComparison(epoch=found.epoch, losses=_finite(found.losses), distances=_finite(found.distances))

    app.router.routes.extend([*page_routes({"kind": "server"}), *docs_routes()])


def _finite(rows: list[list[float]]) -> list[list[float | None]]:
    return [[value if math.isfinite(value) else None for value in row] for row in rows]
