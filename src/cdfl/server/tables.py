"""The tables of a store. Column types are those that SQLite and PostgreSQL spell alike.

The journal is the one truth about a client's uploads: its last mixture, key and reply are those of its newest entry.
JSON keeps every bit of a float.
"""

import json
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Double, Index, Table, Text, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeDecorator

from cdfl.server.store_errors import StoreVersion

SCHEMA = "cdfl 3"  # the version of the tables below, stored in `meta`


class Json(TypeDecorator[Any]):
    """A JSON value."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str:
        """Write a value."""
        return json.dumps(value, allow_nan=False)

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Any:
        """Read a value."""
        return None if value is None else json.loads(value)


TABLES = sa.MetaData()
meta = Table("meta", TABLES, Column("name", Text, primary_key=True), Column("value", Text, nullable=False))
snapshots = Table(
    "snapshots",
    TABLES,
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("created", Double, nullable=False),
    Column("models", Json, nullable=False),  # blobs, one a cluster
    Column("state", Json, nullable=False),  # the small tensors
    Column("settings", Json, nullable=False),  # in force after this epoch
)
journal = Table(
    "journal",
    TABLES,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),  # never falls; the same as before if the upload was rejected
    Column("client_id", Text),  # NULL if forgotten
    Column("key", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("received", Double, nullable=False),
    Column("upload", Text),
    Column("base", Text),
    Column("reply", Text),
    Column("decision", Json, nullable=False),
)
clients = Table(
    "clients",
    TABLES,
    Column("client_id", Text, primary_key=True),
    Column("since", Double, nullable=False),
    Column("uploads", BigInteger, nullable=False),
)
sent_models = Table(
    "sent_models",
    TABLES,
    Column("client_id", Text, primary_key=True),
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("model", Text),  # a blob, which several clients may share; NULL if not kept
    Column("sent", Double, nullable=False),  # unix time
)
tokens = Table(
    "tokens",
    TABLES,
    Column("hash", Text, primary_key=True),
    Column("client_id", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("expires", Double),
    Column("revoked", Double),
)
forgets = Table("forgets", TABLES, Column("client_id", Text, primary_key=True), Column("asked", Double, nullable=False))

offers = Table(  # uploads that one front end has taken and another one applies
    "offers",
    TABLES,
    Column("number", BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("upload", Text, nullable=False, unique=True),
    Column("client_id", Text, nullable=False),
    Column("offered", Double, nullable=False),  # unix time
    Column("submission", Json, nullable=False),
    Column("refusal", Json),  # why it was not applied; NULL while it waits
)


def _partial_index(name: str, column: Column[Any], is_set: Column[Any], covering: tuple[Column[Any], ...] = ()) -> None:
    Index(name, column, *covering, sqlite_where=is_set.is_not(None), postgresql_where=is_set.is_not(None))


Index("journal_epoch", journal.c.epoch)
Index("journal_key", journal.c.client_id, journal.c.key, unique=True)
Index("journal_client", journal.c.client_id, journal.c.number)
Index("journal_client_epoch", journal.c.client_id, journal.c.epoch)
_partial_index("journal_upload", journal.c.epoch, journal.c.upload)
_partial_index("journal_base", journal.c.epoch, journal.c.base)
# All columns that `_supersede` reads, or SQLite may prefer `journal_client` and read every entry of a client.
_partial_index("journal_reply", journal.c.client_id, journal.c.reply, covering=(journal.c.number, journal.c.reply))
_partial_index("sent_models_epoch", sent_models.c.epoch, sent_models.c.model)
_partial_index("sent_models_model", sent_models.c.model, sent_models.c.model)


def exist(connection: sa.Connection) -> bool:
    """Return whether the tables exist; raise StoreVersion if this cdfl cannot use them."""
    present = set(sa.inspect(connection).get_table_names()) & set(TABLES.tables)
    if not present:
        return False
    found = get(connection, "schema") if "meta" in present else None
    if found != SCHEMA:
        if found is None:
            raise StoreVersion(
                f"the database holds tables of another program or of an unknown version; expected those of {SCHEMA!r}: "
                "name another folder or database"
            )
        raise StoreVersion(
            f"the database holds the tables of {found!r}; expected those of {SCHEMA!r}: use the cdfl that made them, "
            "or a new --store"
        )
    return True


def create(connection: sa.Connection) -> None:
    """Create the tables unless they exist."""
    if not exist(connection):
        TABLES.create_all(connection, checkfirst=False)
        put(connection, "schema", SCHEMA)


def get(connection: sa.Connection, name: str) -> str | None:
    """Return a value of the store as a whole."""
    return connection.execute(_GET, {"name": name}).scalar()


def put(connection: sa.Connection, name: str, value: str) -> None:
    """Set a value of the store as a whole."""
    connection.execute(_put(connection.dialect.name), {"name": name, "value": value})


def insert(dialect: str, table: Table) -> Any:
    """Return an INSERT with `on_conflict_do_nothing` and `on_conflict_do_update`."""
    return (sqlite if dialect == "sqlite" else postgresql).insert(table)


_GET = select(meta.c.value).where(meta.c.name == bindparam("name"))


@lru_cache
def _put(dialect: str) -> Any:
    new = insert(dialect, meta)
    return new.on_conflict_do_update(index_elements=["name"], set_={"value": new.excluded.value})
