"""`cdfl clients`: the clients of a server or a store."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cdfl.cli.options import Json, counted
from cdfl.cli.remote import Certificate, Remote, StartingError, Token, is_url, remote
from cdfl.cli.status import Place
from cdfl.cli.stores import DEFAULT_STORE, BlobsPlace, open_store, refuse_store
from cdfl.cli.tables import make_table, show

if TYPE_CHECKING:  # needs the extra `server`
    from cdfl.server.store import Store


def clients(
    place: Place = DEFAULT_STORE,
    token: Token = None,
    verify: Certificate = None,
    blobs: BlobsPlace = None,
    json_: Json = False,
) -> None:
    """List the clients: uploads, when and how the last one ended, and the mixture of the last reply."""
    with refuse_store():
        if is_url(place):
            with remote(place, token, verify) as server:
                try:
                    found = list(_asked(server))
                except StartingError as starting:
                    raise ValueError(f"{place} is not open yet: {starting}") from None
        else:
            with open_store(place, blobs, own=False) as opened:
                opened.layout()  # refuses an empty store
                found = list(_stored(opened))
    table = make_table("client", "uploads", "last upload", "outcome", "epoch", "mixture...")
    for client in found:
        table.add_row(
            client["client_id"],
            str(client["uploads"]),
            "-" if client["last_upload"] is None else _ago(time.time() - client["last_upload"]),
            client["outcome"] or "-",
            "-" if client["epoch"] is None else str(client["epoch"]),
            " ".join(f"{share:.2f}" for share in client["mixture"] or []),
        )
    show({"clients": found}, table, as_json=json_, notes=[counted(len(found), "client")])


def _asked(server: Remote) -> Iterator[dict[str, Any]]:
    after, more = "", True
    while more:
        page = server.get("/v1/clients", after=after)
        yield from page["clients"]
        more = page["more"]
        after = page["clients"][-1]["client_id"] if more else ""


def _stored(opened: "Store") -> Iterator[dict[str, Any]]:
    from cdfl.server.openapi import ClientInfo

    after = ""
    while page := opened.clients(after):
        yield from (ClientInfo.of_record(record).model_dump() for record in page)
        after = page[-1].client_id


def _ago(seconds: float) -> str:
    """Return how long ago something was.

    >>> _ago(5), _ago(600), _ago(7200), _ago(200000)
    ('5 s ago', '10 min ago', '2 h ago', '2 days ago')
    """
    for limit, unit, name in ((100, 1, "s"), (5400, 60, "min"), (129600, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name} ago"
    return f"{seconds / 86400:.0f} days ago"
