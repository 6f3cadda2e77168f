"""What is done to the rows, each function inside a transaction of its caller.

The journal is the one truth about a client's uploads: its last mixture, key and reply are those of its newest entry.
So taking entries back (`cut`) restores everything.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import sqlalchemy as sa
import torch
from sqlalchemy import func, select

from cdfl.core import Layout, Settings
BEFORE: dict[str, object] = {}
from cdfl.server import schema
from cdfl.server.database import Database
from cdfl.server.journal import ClientRecord, Entry, Retention, Snapshot
from cdfl.server.schema import clients, forgets, grants, journal, snapshots, tokens

PIECE = 1000  # names in one question


class Sent(NamedTuple):
    """A model that a client was sent: as a reply, or because it asked for one."""

    client_id: str
    epoch: int
    blob: str
    is_reply: bool


# -- entries


def last_epoch(connection: sa.Connection) -> int | None:
    """The epoch of the newest entry or snapshot; None: nothing was begun."""
    newest = select(func.max(journal.c.epoch)).union_all(select(func.max(snapshots.c.epoch)))
    epochs = [epoch for epoch in connection.execute(newest).scalars() if epoch is not None]
    return max(epochs, default=None)


def entries(connection: sa.Connection, *conditions: sa.ColumnElement[bool], limit: int) -> list[Entry]:
    """Entries, oldest first."""
    asked = select(journal).where(*conditions).order_by(journal.c.epoch).limit(limit)
    return [_entry(row) for row in connection.execute(asked)]


def last_entry(connection: sa.Connection, client_id: str, before: int | None = None) -> Entry | None:
    """The newest entry of a client, or its newest before an epoch."""
    asked = select(journal).where(journal.c.client_id == client_id).order_by(journal.c.epoch.desc()).limit(1)
    if before is not None:
        asked = asked.where(journal.c.epoch < before)
    row = connection.execute(asked).first()
    return None if row is None else _entry(row)


def complete_since(connection: sa.Connection) -> int:
    """The epoch after which every entry is there and whole: not forgotten, with its upload where it was applied."""
    not_kept = sa.and_(journal.c.outcome == "applied", journal.c.upload.is_(None))
    broken = select(func.max(journal.c.epoch)).where(sa.or_(not_kept, journal.c.client_id.is_(None)))
    return max(connection.execute(broken).scalar() or 0, journal_start(connection) - 1)


def add_entries(connection: sa.Connection, database: Database, added: Sequence[Entry]) -> list[Sent]:
    """Append to the journal; returns the models that these clients were sent before, which no row speaks of now."""
    uploads = Counter(entry.client_id for entry in added)
    since = {entry.client_id: entry.received for entry in reversed(added)}
    superseded = _supersede(connection, uploads)
    connection.execute(sa.insert(journal), [asdict(entry) for entry in added])
    new = database.insert(clients)
    counted = new.on_conflict_do_update(
        index_elements=["client_id"], set_={"uploads": clients.c.uploads + new.excluded.uploads}
    )
    counts = [
        {"client_id": client_id, "since": since[client_id], "uploads": count} for client_id, count in uploads.items()
    ]
    connection.execute(counted, counts)
    return superseded


def _supersede(connection: sa.Connection, client_ids: Collection[str]) -> list[Sent]:
    """Let go of the models that these clients were sent."""
    superseded: list[Sent] = []
    for table, column, is_reply in ((journal, journal.c.reply, True), (grants, grants.c.model, False)):
        old = sa.and_(table.c.client_id.in_(client_ids), column.is_not(None))
        found = connection.execute(select(table.c.client_id, table.c.epoch, column).where(old)).all()
        if found:
            connection.execute(sa.update(table).where(old).values({column: None}))
        superseded += [Sent(*row, is_reply) for row in found]
    return superseded


def restore(connection: sa.Connection, superseded: Iterable[Sent]) -> None:
    """Take back what `add_entries` did to models that were sent before."""
    for client_id, epoch, blob, is_reply in superseded:
        table, column = (journal, journal.c.reply) if is_reply else (grants, grants.c.model)
        row = sa.and_(table.c.client_id == client_id, table.c.epoch == epoch)
        connection.execute(sa.update(table).where(row).values({column: blob}))


def cut(connection: sa.Connection, epoch: int) -> list[str]:
    """Take back everything after an epoch, as if it had not been; returns the blobs nobody speaks of any more."""
    later = journal.c.epoch > epoch
    names = blobs_of(connection, later)
    for models in connection.execute(select(snapshots.c.models).where(snapshots.c.epoch > epoch)).scalars():
        names += models
    names += _let_go(connection, grants.c.epoch > epoch)
    taken_back = select(func.count()).where(later, journal.c.client_id == clients.c.client_id).scalar_subquery()
    concerned = clients.c.client_id.in_(select(journal.c.client_id).where(later))
    connection.execute(sa.update(clients).where(concerned).values(uploads=clients.c.uploads - taken_back))
    for table in (journal, snapshots, grants):
        connection.execute(sa.delete(table).where(table.c.epoch > epoch))
    return names


def count_after(connection: sa.Connection, epoch: int) -> tuple[int, int]:
    """How many entries of how many clients come after an epoch."""
    counts = select(func.count(), func.count(journal.c.client_id.distinct())).where(journal.c.epoch > epoch)
    entries, of_clients = connection.execute(counts).one()
    return entries, of_clients


def blobs_of(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> list[str]:
    """The blobs of some entries."""
    columns = (journal.c.upload, journal.c.base, journal.c.reply)
    kept = sa.or_(*(column.is_not(None) for column in columns))
    found = connection.execute(select(*columns).where(kept, condition))
    return [name for row in found for name in row if name is not None]


def blobs_of_client(connection: sa.Connection, client_id: str) -> list[str]:
    """The blobs of a client that are nobody else's."""
    own, others = grants.c.client_id == client_id, grants.alias()
    alike = sa.exists().where(others.c.model == grants.c.model, others.c.client_id != client_id)
    given = connection.execute(select(grants.c.model).where(own, grants.c.model.is_not(None), ~alike).distinct())
    return [*blobs_of(connection, journal.c.client_id == client_id), *given.scalars()]


def all_blobs(connection: sa.Connection) -> set[str]:
    """All blobs the rows speak of."""
    models = connection.execute(select(snapshots.c.models)).scalars()
    given = connection.execute(select(grants.c.model).where(grants.c.model.is_not(None)).distinct()).scalars()
    return {*blobs_of(connection, sa.true()), *given, *(name for names in models for name in names)}


def free(connection: sa.Connection, names: Sequence[str]) -> list[str]:
    """Those of some blobs that nobody speaks of any more; only a model that was given may be several clients'."""
    needed: set[str | None] = set()
    for begin in range(0, len(names), PIECE):
        asked = select(grants.c.model).where(grants.c.model.in_(names[begin : begin + PIECE]))
        needed.update(connection.execute(asked.distinct()).scalars())
    return [name for name in names if name not in needed]


def find(connection: sa.Connection, client_id: str, key: str) -> Entry | None:
    """The entry of an idempotency key."""
    found = entries(connection, journal.c.client_id == client_id, journal.c.key == key, limit=1)
    return found[0] if found else None


# -- what is kept how long


def expire(connection: sa.Connection, retention: Retention, now: float) -> list[str]:
    """Forget old snapshots, uploads and what they were trained from, and models that were sent; returns their blobs."""
    epochs = list(connection.execute(select(snapshots.c.epoch).order_by(snapshots.c.epoch.desc())).scalars())
    kept = epochs[: max(1, retention.keep_snapshots)]
    if not kept:
        return []
    old = snapshots.c.epoch < kept[-1]
    names = [name for models in connection.execute(select(snapshots.c.models).where(old)).scalars() for name in models]
    connection.execute(sa.delete(snapshots).where(old))
    recoverable = journal.c.epoch <= (kept[-1] if retention.keep_uploads else kept[0])
    names += _clear(connection, journal.c.upload, recoverable)
    names += _clear(connection, journal.c.base, recoverable)
    names += _clear(connection, journal.c.reply, journal.c.received < now - retention.keep_replies)
    names += _let_go(connection, grants.c.given < now - retention.keep_replies)
    return names


def _clear(connection: sa.Connection, column: sa.Column[Any], condition: sa.ColumnElement[bool]) -> list[str]:
    chosen = sa.and_(column.is_not(None), condition)
    names = list(connection.execute(select(column).where(chosen).distinct()).scalars())
    if names:
        connection.execute(sa.update(column.table).where(chosen).values({column: None}))
    return names


def _let_go(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> list[str]:
    """Some clients need the model no more that they were given; returns those that nobody does."""
    return free(connection, _clear(connection, grants.c.model, condition))


def journal_start(connection: sa.Connection) -> int:
    """The entry before which entries may be gone."""
    return int(schema.get(connection, "journal_start") or 0)


def journal_needed(connection: sa.Connection, retention: Retention, epoch: int) -> int:
    """The entry from which on the journal must stay: enough of them, and all that a snapshot needs."""
    oldest = connection.execute(select(func.min(snapshots.c.epoch))).scalar() or 0
    return min(epoch - retention.keep_entries + 1, oldest + 1)


def shorten_journal(connection: sa.Connection, start: int) -> list[str]:
    """Delete entries before `start` that recovery does not need, but for the last one of every client.

    Returns the blobs nobody speaks of any more: models that were given before.
    """
    newer = journal.alias()
    superseded = sa.exists().where(newer.c.client_id == journal.c.client_id, newer.c.epoch > journal.c.epoch)
    gone = sa.or_(journal.c.client_id.is_(None), superseded)
    connection.execute(sa.delete(journal).where(journal.c.epoch < start, gone))
    names = _let_go(connection, grants.c.epoch < start)
    connection.execute(sa.delete(grants).where(grants.c.epoch < start))
    schema.put(connection, "journal_start", str(start))
    return names


# -- clients


def client(connection: sa.Connection, client_id: str) -> ClientRecord | None:
    """What is known of a client."""
    row = connection.execute(select(clients).where(clients.c.client_id == client_id)).first()
    if row is None:
        return None
    return ClientRecord(row.client_id, row.since, row.uploads, last_entry(connection, client_id))


def num_clients(connection: sa.Connection) -> int:
    """How many clients are known."""
    return connection.execute(select(func.count()).select_from(clients)).scalar_one()


def add_grant(
    connection: sa.Connection,
    database: Database,
    client_id: str,
    epoch: int,
    keep: int,
    now: float,
    model: str | None = None,
) -> list[str]:
    """Remember that a client was given an epoch, and the model; of epochs the newest `keep`, of models the newest.

    Returns the blobs nobody speaks of any more.
    """
    known = database.insert(clients).values(client_id=client_id, since=now, uploads=0).on_conflict_do_nothing()
    connection.execute(known)
    own = grants.c.client_id == client_id
    old = [] if model is None else _clear(connection, grants.c.model, own)
    new = database.insert(grants).values(client_id=client_id, epoch=epoch, model=model, given=now)
    if model is None:
        connection.execute(new.on_conflict_do_nothing())
    else:
        given = {"model": new.excluded.model, "given": new.excluded.given}
        connection.execute(new.on_conflict_do_update(index_elements=["client_id", "epoch"], set_=given))
    newest = select(grants.c.epoch).where(own).order_by(grants.c.epoch.desc()).limit(keep)
    connection.execute(sa.delete(grants).where(own, grants.c.epoch.not_in(newest.scalar_subquery())))
    return free(connection, old)


def given_model(connection: sa.Connection, epoch: int, digest: str) -> str | None:
    """A blob with this sha256 that some client was given at this epoch: newcomers all get the same."""
    alike = grants.c.model.like(f"%-{digest}")
    return connection.execute(select(grants.c.model).where(grants.c.epoch == epoch, alike).limit(1)).scalar()


def sent(connection: sa.Connection, client_id: str, epoch: int) -> str | None:
    """The blob of the model that this client was sent at this epoch; None: it was not, or it is not kept."""
    reply = select(journal.c.reply).where(journal.c.client_id == client_id, journal.c.epoch == epoch)
    given = select(grants.c.model).where(grants.c.client_id == client_id, grants.c.epoch == epoch)
    found = connection.execute(reply.union_all(given)).scalars()
    return next((name for name in found if name is not None), None)


def was_given(connection: sa.Connection, client_id: str, epoch: int) -> bool:
    """Whether a model of this epoch went to this client, as a reply or because it asked."""
    asked = sa.exists().where(grants.c.client_id == client_id, grants.c.epoch == epoch)
    uploaded = sa.exists().where(journal.c.client_id == client_id, journal.c.epoch == epoch)
    return bool(connection.execute(select(sa.or_(asked, uploaded))).scalar())


def erase(connection: sa.Connection, client_id: str) -> bool:
    """Remove a client from all tables; its entries stay, without anything of it. Was there anything?"""
    nothing = {"key": "", "digest": "", "mixture": (), "rates": (), "past_harm": 1.0} | dict.fromkeys(
        ("client_id", "losses", "distances", "harm", "usual_harm", "upload", "base", "reply")
    )
    own = sa.update(journal).where(journal.c.client_id == client_id)
    found = connection.execute(own.values(nothing)).rowcount
    for table in (clients, grants, tokens):
        found += connection.execute(sa.delete(table).where(table.c.client_id == client_id)).rowcount
    connection.execute(sa.delete(forgets).where(forgets.c.client_id == client_id))
    return found > 0


def knows(connection: sa.Connection, client_id: str) -> bool:
    """Whether anything is stored of a client."""
    found = [sa.exists().where(table.c.client_id == client_id) for table in (clients, journal, grants, tokens)]
    return bool(connection.execute(select(sa.or_(*found))).scalar())


def ask_to_forget(connection: sa.Connection, database: Database, client_id: str, now: float) -> None:
    """Leave word for the owner."""
    connection.execute(database.insert(forgets).values(client_id=client_id, asked=now).on_conflict_do_nothing())


def asked_to_forget(connection: sa.Connection) -> list[str]:
    """What the owner was asked."""
    return list(connection.execute(select(forgets.c.client_id).order_by(forgets.c.asked)).scalars())


# -- snapshots


def all_snapshots(connection: sa.Connection) -> list[Snapshot]:
    """Oldest first."""
    return [_snapshot(row) for row in connection.execute(select(snapshots).order_by(snapshots.c.epoch))]


def add_snapshot(connection: sa.Connection, snapshot: Snapshot) -> None:
    """Write a row."""
    connection.execute(sa.insert(snapshots).values(asdict(snapshot)))


def change_settings(connection: sa.Connection, epoch: int, settings: Settings) -> None:
    """Other settings are in force after a snapshot."""
    chosen = sa.update(snapshots).where(snapshots.c.epoch == epoch)
    connection.execute(chosen.values(settings=asdict(settings)))


def layout_to_json(layout: Layout) -> str:
    """Names and shapes of a model's tensors."""
    shapes = [list(shape) for shape in layout.shapes]
    return json.dumps({"names": layout.names, "shapes": shapes, "num_parameters": layout.num_parameters})


def layout_from_json(text: str) -> Layout:
    """The other way."""
    read = json.loads(text)
    shapes = tuple(torch.Size(shape) for shape in read["shapes"])
    size = sum(shape.numel() for shape in shapes)
    return Layout(tuple(read["names"]), shapes, read["num_parameters"], size)


def _snapshot(row: Any) -> Snapshot:
    values = row._asdict()
    return Snapshot(**values | {"settings": Settings(**BEFORE | values["settings"])})


def _entry(row: Any) -> Entry:
    values = row._asdict()
    return Entry(**values | {"client_id": values["client_id"] or ""})
