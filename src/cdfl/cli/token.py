"""`cdfl token`: manage the tokens of clients. Works beside a running server."""

import time
from dataclasses import asdict
from typing import Annotated

import typer

from cdfl.cli.options import Json
from cdfl.cli.stores import DEFAULT_STORE, StorePlace, open_tokens, refuse_store, store_exists
from cdfl.cli.tables import make_table, show
from cdfl.wire import check_client_id

app = typer.Typer(help="Create, list and revoke the tokens of clients.", no_args_is_help=True)


@app.command()
def create(
    client_id: Annotated[str, typer.Argument(metavar="CLIENT", help="1 to 64 characters of A-Z a-z 0-9 . _ -")],
    days: Annotated[float | None, typer.Option(min=0, help="Days that it is valid. Without: until revoked.")] = None,
    store: StorePlace = DEFAULT_STORE,
    json_: Json = False,
) -> None:
    """Create a token for a client and print it. Only its hash is stored, so it cannot be shown again.

    If there is no store yet, one is created.
    """
    with refuse_store():
        from cdfl.server.database_engine import without_password

        check_client_id(client_id)
        is_new = not store_exists(store)
        with open_tokens(store, new=True) as tokens:
            token = tokens.create(client_id, None if days is None else days * 24 * 3600)
        if is_new:
            typer.echo(
                f"began a new store in {without_password(store)}, for a `cdfl serve` with the same --store", err=True
            )
    show({"client_id": client_id, "token": token}, None, as_json=json_, notes=[token])


@app.command("list")
def list_(store: StorePlace = DEFAULT_STORE, json_: Json = False) -> None:
    """List the tokens: client, creation, expiry, revocation. The tokens themselves are not stored."""
    with refuse_store(), open_tokens(store) as tokens:
        records = tokens.all()
    table = make_table("client", "token", "created", "expires", "revoked")
    for record in records:
        moments = (record.created, record.expires, record.revoked)
        table.add_row(record.client_id, record.token_id, *("-" if each is None else _date(each) for each in moments))
    show([asdict(record) for record in records], table, as_json=json_)


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="CLIENT|TOKEN", help="All tokens of a client, or one from the list.")],
    store: StorePlace = DEFAULT_STORE,
    json_: Json = False,
) -> None:
    """Revoke all tokens of a client, or one token, for good."""
    with refuse_store(), open_tokens(store) as tokens:
        revoked = tokens.revoke(name)
        if not revoked:
            raise ValueError(f"there is no valid token of a client or with the id {name}; see `cdfl token list`")
    notes = [f"revoked token {record.token_id} of {record.client_id}" for record in revoked]
    show([asdict(record) for record in revoked], None, as_json=json_, notes=notes)


def _date(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))
