"""The tables, and the way from every earlier version of them to this one.

A new store runs the same steps as an old one. A step is never changed once released; a change is a new step.
Types are those SQLite and PostgreSQL spell alike. Lists are JSON, which keeps every bit of a float.
"""

import json
from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Double, Table, Text
from sqlalchemy.types import TypeDecorator

from cdfl.server.journal import StoreVersion


class Json(TypeDecorator[Any]):
    """A list as JSON; it comes back as a tuple. None stays None."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        """Write a value."""
        return None if value is None else json.dumps(value, allow_nan=False)

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Any:
        """Read a value."""
        read = None if value is None else json.loads(value)
        return tuple(read) if isinstance(read, list) else read


TABLES = sa.MetaData()
meta = Table("meta", TABLES, Column("name", Text, primary_key=True), Column("value", Text))
snapshots = Table(
    "snapshots",
    TABLES,
    Column("epoch", BigInteger, primary_key=True),
    Column("created", Double),
    Column("cluster_losses", Json),
    Column("cluster_epochs", Json),
    Column("recent_harms", Json),
    Column("usual_measures", Json),
    Column("settings", Json),  # in force after this epoch
    Column("models", Json),  # blobs, one a cluster
    Column("digests", Json),  # their sha256
)
journal = Table(
    "journal",
    TABLES,
    Column("epoch", BigInteger, primary_key=True),
    Column("client_id", Text),  # NULL: forgotten
    Column("base_epoch", BigInteger),
    Column("key", Text),
    Column("digest", Text),
    Column("outcome", Text),
    Column("losses", Json),
    Column("cluster_losses", Json),
    Column("mixture", Json),
    Column("rates", Json),
    Column("staleness", BigInteger),
    Column("received", Double),
    Column("harm", Double),
    Column("usual_harm", Double),
    Column("past_harm", Double),
    Column("distances", Json),
    Column("upload", Text),
    Column("reply", Text),
    Column("base", Text),
)
clients = Table(
    "clients",
    TABLES,
    Column("client_id", Text, primary_key=True),
    Column("since", Double),
    Column("uploads", BigInteger),
)
grants = Table(
    "grants",
    TABLES,
    Column("client_id", Text, primary_key=True),
    Column("epoch", BigInteger, primary_key=True),
    Column("model", Text),  # a blob, perhaps of several clients; NULL: not kept
    Column("given", Double),  # when it was
)
tokens = Table(
    "tokens",
    TABLES,
    Column("hash", Text, primary_key=True),
    Column("client_id", Text),
    Column("created", Double),
    Column("revoked", Double),
)
forgets = Table("forgets", TABLES, Column("client_id", Text, primary_key=True), Column("asked", Double))

# The n-th step leads to version n.
STEPS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE snapshots (epoch BIGINT PRIMARY KEY, created DOUBLE PRECISION NOT NULL,
            cluster_losses TEXT NOT NULL, cluster_epochs TEXT NOT NULL, settings TEXT NOT NULL,
            models TEXT NOT NULL, digests TEXT NOT NULL)""",
        """CREATE TABLE journal (epoch BIGINT PRIMARY KEY, client_id TEXT, base_epoch BIGINT NOT NULL,
            key TEXT NOT NULL, digest TEXT NOT NULL, outcome TEXT NOT NULL, losses TEXT,
            cluster_losses TEXT NOT NULL, mixture TEXT NOT NULL, rates TEXT NOT NULL, staleness BIGINT NOT NULL,
            received DOUBLE PRECISION NOT NULL, upload TEXT, reply TEXT)""",
        "CREATE UNIQUE INDEX journal_key ON journal (client_id, key)",
        "CREATE INDEX journal_client ON journal (client_id, epoch)",
        """CREATE TABLE clients (client_id TEXT PRIMARY KEY, since DOUBLE PRECISION NOT NULL,
            uploads BIGINT NOT NULL)""",
        "CREATE TABLE grants (client_id TEXT NOT NULL, epoch BIGINT NOT NULL, PRIMARY KEY (client_id, epoch))",
        """CREATE TABLE tokens (hash TEXT PRIMARY KEY, client_id TEXT NOT NULL, created DOUBLE PRECISION NOT NULL,
            revoked DOUBLE PRECISION)""",
    ),
    (  # the acceptance test; forgetting a client while a server runs; finding what is to be deleted
        "ALTER TABLE journal ADD COLUMN harm DOUBLE PRECISION",
        "ALTER TABLE snapshots ADD COLUMN recent_harms TEXT NOT NULL DEFAULT '[]'",
        "CREATE TABLE forgets (client_id TEXT PRIMARY KEY, asked DOUBLE PRECISION NOT NULL)",
        "CREATE INDEX journal_upload ON journal (epoch) WHERE upload IS NOT NULL",
        "CREATE INDEX journal_reply ON journal (client_id) WHERE reply IS NOT NULL",
    ),
    ("ALTER TABLE journal ADD COLUMN usual_harm DOUBLE PRECISION",),  # so that a refusal can be explained again
    (  # what uploads were trained from
        "ALTER TABLE journal ADD COLUMN base TEXT",
        "ALTER TABLE grants ADD COLUMN model TEXT",
        "ALTER TABLE grants ADD COLUMN given DOUBLE PRECISION",
        "CREATE INDEX grants_given ON grants (epoch) WHERE model IS NOT NULL",
        "CREATE INDEX grants_model ON grants (model) WHERE model IS NOT NULL",
        "CREATE INDEX journal_base ON journal (epoch) WHERE base IS NOT NULL",
    ),
    # what the acceptance test remembers of clients
    ("ALTER TABLE journal ADD COLUMN past_harm DOUBLE PRECISION NOT NULL DEFAULT 1",),
    (  # relative measures
        "ALTER TABLE journal ADD COLUMN distances TEXT",
        "ALTER TABLE snapshots ADD COLUMN usual_measures TEXT NOT NULL DEFAULT '[]'",
    ),
)
VERSION = len(STEPS)


def version_of(connection: sa.Connection) -> int:
    """The version of what is stored; 0: nothing."""
    if not sa.inspect(connection).has_table("meta"):
        return 0
    return int(get(connection, "schema_version") or 0)


def check_version(connection: sa.Connection) -> int:
    """The version of what is stored, which we must know."""
    version = version_of(connection)
    if version > VERSION:
        raise StoreVersion(f"the store has schema {version}, this cdfl knows schemas up to {VERSION}; upgrade cdfl")
    return version


def migrate(connection: sa.Connection) -> None:
    """Bring what is stored to `VERSION`, inside the caller's transaction: all steps or none."""
    version = check_version(connection)
    if version == 0:
        connection.exec_driver_sql("CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
    for step in STEPS[version:]:
        for statement in step:
            connection.exec_driver_sql(statement)
    put(connection, "schema_version", str(VERSION))


def get(connection: sa.Connection, name: str) -> str | None:
    """A value of the store as a whole."""
    return connection.execute(sa.select(meta.c.value).where(meta.c.name == name)).scalar()


def put(connection: sa.Connection, name: str, value: str) -> None:
    """Set a value of the store as a whole."""
    changed = connection.execute(sa.update(meta).where(meta.c.name == name).values(value=value))
    if changed.rowcount == 0:
        connection.execute(sa.insert(meta).values(name=name, value=value))
