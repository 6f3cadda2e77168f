"""The statements on the tables of a store. Each function runs inside a transaction of its caller.

Building a statement takes as long as executing it. So those that every upload needs are built once, with parameters.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa
import torch
from sqlalchemy import BigInteger, Column, Double, Text, bindparam, func, select

from cdfl.core import Layout
from cdfl.server.store_records import Claim, ClientRecord, Entry, Retention, Snapshot
from cdfl.server.tables import clients, forgets, get, insert, journal, offers, put, sent_models, snapshots, tokens

MAX_NAMES = 1000  # names in one statement
KEEP_REFUSALS = 600.0  # seconds; the front end that offered the upload reads its refusal at once, unless it died


def layout(connection: sa.Connection) -> Layout | None:
    """Return the layout of the stored model; None if the store is empty."""
    text = get(connection, "layout")
    if text is None:
        return None
    read = json.loads(text)
    shapes = tuple(torch.Size(shape) for shape in read["shapes"])
    return Layout(tuple(read["names"]), shapes, read["num_parameters"], sum(shape.numel() for shape in shapes))


def put_layout(connection: sa.Connection, layout: Layout) -> None:
    """Set the layout of the stored model."""
    shapes = [list(shape) for shape in layout.shapes]
    text = json.dumps({"names": layout.names, "shapes": shapes, "num_parameters": layout.num_parameters})
    put(connection, "layout", text)


# -- entries


def last_epoch(connection: sa.Connection) -> int | None:
    """Return the epoch of the newest entry or snapshot; None if the store is empty."""
    newest = select(func.max(journal.c.epoch)).union_all(select(func.max(snapshots.c.epoch)))
    return max((epoch for epoch in connection.execute(newest).scalars() if epoch is not None), default=None)


def last_number(connection: sa.Connection, epoch: int | None = None) -> int:
    """Return the number of the newest entry, or of the last one up to an epoch; 0 if there is none.

    A newest entry that was deleted when its client was forgotten counts, so that no number is used twice.
    """
    upto = sa.true() if epoch is None else journal.c.epoch <= epoch
    found = connection.execute(select(func.max(journal.c.number)).where(upto)).scalar() or 0
    return found if epoch is not None else max(found, int(get(connection, "number") or 0))


def count_entries(connection: sa.Connection) -> int:
    """Return how many entries there are."""
    return connection.execute(select(func.count()).select_from(journal)).scalar_one()


def entries(connection: sa.Connection, after: int, limit: int) -> list[Entry]:
    """Return entries with numbers above `after`, oldest first."""
    chosen = select(journal).where(journal.c.number > after).order_by(journal.c.number).limit(limit)
    return [Entry.from_row(row._asdict()) for row in connection.execute(chosen)]


def complete_since(connection: sa.Connection) -> int:
    """Return the last epoch whose entry cannot be replayed: deleted, forgotten, or applied without its upload."""
    not_kept = sa.and_(journal.c.outcome == "applied", journal.c.upload.is_(None))
    forgotten = sa.and_(journal.c.outcome != "rejected", journal.c.client_id.is_(None))
    broken = select(func.max(journal.c.epoch)).where(sa.or_(not_kept, forgotten))
    return max(connection.execute(broken).scalar() or 0, journal_start(connection) - 1)


class SentModel(NamedTuple):
    """A model that a client was sent before, and that a new reply replaces."""

    client_id: str
    place: int  # the number of the entry, or the epoch of a model that was asked for
    blob: str
    is_reply: int  # 1 if it answered an upload, 0 if the client asked for it
    is_shared: int  # 1 if clients outside the group were sent the same blob


def add_entries(connection: sa.Connection, added: Sequence[Entry]) -> list[SentModel]:
    """Append to the journal; clear and return the models that clients with a new reply were sent before."""
    uploads = Counter(entry.client_id for entry in added)
    since = {entry.client_id: entry.received for entry in reversed(added)}
    superseded = _supersede(connection, [entry.client_id for entry in added if entry.reply is not None])
    connection.execute(_ADD_ENTRIES, [entry.to_row() for entry in added])
    counts = [{"client_id": name, "since": since[name], "uploads": count} for name, count in uploads.items()]
    connection.execute(_count_uploads(connection.dialect.name), counts)
    return superseded


_ADD_ENTRIES = sa.insert(journal)


@lru_cache
def _count_uploads(dialect: str) -> Any:
    new = insert(dialect, clients)
    total = clients.c.uploads + new.excluded.uploads
    return new.on_conflict_do_update(index_elements=["client_id"], set_={"uploads": total})


def _supersede(connection: sa.Connection, client_ids: Sequence[str]) -> list[SentModel]:
    if not client_ids:
        return []
    superseded = [SentModel(*row) for row in connection.execute(_SENT_BEFORE, {"names": client_ids})]
    if answered := [model.place for model in superseded if model.is_reply]:
        connection.execute(_CLEAR_REPLIES, {"numbers": answered})
    if len(answered) < len(superseded):
        connection.execute(_CLEAR_SENT, {"names": client_ids})
    return superseded


_NAMES = bindparam("names", expanding=True, type_=Text)
_YES: sa.ColumnElement[int] = sa.literal_column("1")
_NO: sa.ColumnElement[int] = sa.literal_column("0")
_OTHERS = sent_models.alias()
_IS_SHARED = sa.exists().where(_OTHERS.c.model == sent_models.c.model, _OTHERS.c.client_id.not_in(_NAMES))
_IS_SENT = sa.and_(sent_models.c.client_id.in_(_NAMES), sent_models.c.model.is_not(None))
_SENT_BEFORE = (
    select(journal.c.client_id, journal.c.number, journal.c.reply, _YES, _NO)
    .where(journal.c.client_id.in_(_NAMES), journal.c.reply.is_not(None))
    .union_all(
        select(
            sent_models.c.client_id,
            sent_models.c.epoch,
            sent_models.c.model,
            _NO,
            sa.case((_IS_SHARED, _YES), else_=_NO),
        ).where(_IS_SENT)
    )
)
_CLEAR_REPLIES = sa.update(journal).where(journal.c.number.in_(bindparam("numbers", expanding=True))).values(reply=None)
_CLEAR_SENT = sa.update(sent_models).where(_IS_SENT).values(model=None)


def restore(connection: sa.Connection, superseded: Iterable[SentModel]) -> None:
    """Undo what `add_entries` cleared."""
    for sent in superseded:
        if sent.is_reply:
            connection.execute(sa.update(journal).where(journal.c.number == sent.place).values(reply=sent.blob))
        else:
            row = sa.and_(sent_models.c.client_id == sent.client_id, sent_models.c.epoch == sent.place)
            connection.execute(sa.update(sent_models).where(row).values(model=sent.blob))


def delete_after(connection: sa.Connection, epoch: int, number: int | None = None) -> list[str]:
    """Delete everything after an epoch, and entries after a number; return blobs that are no longer referenced."""
    later = journal.c.epoch > epoch if number is None else journal.c.number > number
    names = blobs_of(connection, later)
    for models in connection.execute(select(snapshots.c.models).where(snapshots.c.epoch > epoch)).scalars():
        names += models
    names += _clear_sent(connection, sent_models.c.epoch > epoch)
    taken_back = select(func.count()).where(later, journal.c.client_id == clients.c.client_id).scalar_subquery()
    concerned = clients.c.client_id.in_(select(journal.c.client_id).where(later))
    connection.execute(sa.update(clients).where(concerned).values(uploads=clients.c.uploads - taken_back))
    connection.execute(sa.delete(journal).where(later))
    for table in (snapshots, sent_models):
        connection.execute(sa.delete(table).where(table.c.epoch > epoch))
    if number is None:  # what waits was trained from what is deleted now
        names += connection.execute(select(offers.c.upload)).scalars()
        connection.execute(sa.delete(offers))
    if journal_start(connection) > epoch + 1:  # the epochs that come now are new ones
        put(connection, "journal_start", str(epoch + 1))
    return names


def count_after(connection: sa.Connection, epoch: int) -> tuple[int, int]:
    """Return how many entries of how many clients come after an epoch."""
    counts = select(func.count(), func.count(journal.c.client_id.distinct())).where(journal.c.epoch > epoch)
    num_entries, num_clients = connection.execute(counts).one()
    return num_entries, num_clients


# -- blobs


def blobs_of(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> list[str]:
    """Return the blobs of some entries."""
    columns = (journal.c.upload, journal.c.base, journal.c.reply)
    kept = sa.or_(*(column.is_not(None) for column in columns))
    found = connection.execute(select(*columns).where(kept, condition))
    return [name for row in found for name in row if name is not None]


def blobs_of_client(connection: sa.Connection, client_id: str) -> list[str]:
    """Return the blobs that belong to this client alone."""
    own, others = sent_models.c.client_id == client_id, sent_models.alias()
    shared = sa.exists().where(others.c.model == sent_models.c.model, others.c.client_id != client_id)
    sent = connection.execute(
        select(sent_models.c.model).where(own, sent_models.c.model.is_not(None), ~shared).distinct()
    )
    offered = connection.execute(select(offers.c.upload).where(offers.c.client_id == client_id))
    return [*blobs_of(connection, journal.c.client_id == client_id), *sent.scalars(), *offered.scalars()]


def all_blobs(connection: sa.Connection) -> set[str]:
    """Return all blobs that are referenced."""
    models = connection.execute(select(snapshots.c.models)).scalars()
    sent = connection.execute(select(sent_models.c.model).where(sent_models.c.model.is_not(None)).distinct()).scalars()
    router = get(connection, "router")
    offered = connection.execute(select(offers.c.upload).where(offers.c.refusal.is_(None))).scalars()
    found = {*blobs_of(connection, sa.true()), *sent, *offered, *(name for names in models for name in names)}
    return found if router is None else found | {router}


def unreferenced(connection: sa.Connection, names: Sequence[str]) -> list[str]:
    """Return the blobs among `names` that `sent_models` does not reference; no other table shares blobs."""
    needed: set[str | None] = set()
    for begin in range(0, len(names), MAX_NAMES):
        asked = select(sent_models.c.model).where(sent_models.c.model.in_(names[begin : begin + MAX_NAMES]))
        needed.update(connection.execute(asked.distinct()).scalars())
    return [name for name in names if name not in needed]


# -- retention


def expire(connection: sa.Connection, retention: Retention, now: float) -> list[str]:
    """Delete old snapshots; clear uploads, bases and sent models that are old; return their blobs."""
    all_ = all_snapshots(connection)
    kept = retention.snapshots_to_keep(all_, now)
    if not kept:
        return []
    old = snapshots.c.epoch.not_in(kept)
    names = [name for models in connection.execute(select(snapshots.c.models).where(old)).scalars() for name in models]
    connection.execute(sa.delete(snapshots).where(old))
    recent = kept[: max(1, retention.keep_snapshots)]
    recoverable = journal.c.epoch <= (recent[-1] if retention.keep_uploads else recent[0])
    names += _clear(connection, journal.c.upload, recoverable)
    names += _clear(connection, journal.c.base, recoverable)
    names += _clear(connection, journal.c.reply, journal.c.received < now - retention.keep_replies)
    names += _clear_sent(connection, sent_models.c.sent < now - retention.keep_replies)
    unread = sa.and_(offers.c.refusal.is_not(None), offers.c.offered < now - KEEP_REFUSALS)
    connection.execute(sa.delete(offers).where(unread))
    return names + _delete_rejected(connection)


def _delete_rejected(connection: sa.Connection) -> list[str]:
    """Delete rejected uploads except the last entry of each client; return their blobs."""
    newer = journal.alias()
    superseded = sa.exists().where(newer.c.client_id == journal.c.client_id, newer.c.number > journal.c.number)
    chosen = sa.and_(journal.c.outcome == "rejected", superseded)
    names = blobs_of(connection, chosen)
    connection.execute(sa.delete(journal).where(chosen))
    return names


def _clear(connection: sa.Connection, column: Column[Any], condition: sa.ColumnElement[bool]) -> list[str]:
    """Set a column of blobs to NULL; return the blobs."""
    chosen = sa.and_(column.is_not(None), condition)
    names = list(connection.execute(select(column).where(chosen).distinct()).scalars())
    if names:
        connection.execute(sa.update(column.table).where(chosen).values({column: None}))
    return names


def _clear_sent(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> list[str]:
    """Clear some sent models; return blobs that are no longer referenced."""
    return unreferenced(connection, _clear(connection, sent_models.c.model, condition))


def journal_start(connection: sa.Connection) -> int:
    """Return the epoch before which entries may have been deleted."""
    return int(get(connection, "journal_start") or 0)


def journal_needed(connection: sa.Connection, retention: Retention, epoch: int) -> int:
    """Return the first epoch whose entry must stay: the newest `keep_entries`, and all after the recent snapshots."""
    recent = select(snapshots.c.epoch).order_by(snapshots.c.epoch.desc()).limit(max(1, retention.keep_snapshots))
    oldest = min(connection.execute(recent).scalars(), default=0)
    return min(epoch - retention.keep_entries + 1, oldest + 1)


def shorten_journal(connection: sa.Connection, start: int) -> list[str]:
    """Delete entries before `start` except the last one of every client, and the last that was not rejected.

    Return blobs no longer referenced.
    """
    newer = journal.alias()
    superseded = sa.exists().where(
        newer.c.client_id == journal.c.client_id,
        newer.c.number > journal.c.number,
        sa.or_(newer.c.outcome != "rejected", journal.c.outcome == "rejected"),
    )
    gone = sa.or_(journal.c.client_id.is_(None), superseded)
    connection.execute(sa.delete(journal).where(journal.c.epoch < start, gone))
    names = _clear_sent(connection, sent_models.c.epoch < start)
    connection.execute(sa.delete(sent_models).where(sent_models.c.epoch < start))
    put(connection, "journal_start", str(start))
    return names


# -- clients


def client(
    connection: sa.Connection, client_id: str, epoch: int | None = None, key: str | None = None
) -> ClientRecord | None:
    """Return what is known of a client, and whether it was sent `epoch` and has used `key`: one statement."""
    rows = connection.execute(_CLIENT, {"name": client_id, "epoch": epoch, "key": key}).all()
    if not rows:
        return None
    columns = journal.c.keys()
    found = [Entry.from_row(dict(zip(columns, row[4:], strict=True))) for row in rows if row.decision is not None]
    replies = [entry for entry in found if entry.epoch == epoch and entry.outcome != "rejected"]
    mixture = replies[-1].mixture if replies else found[-1].mixture if found else None
    if not replies and found and epoch is not None and found[-1].epoch > epoch:  # it returns to what it had before
        mixture = _mixture_at(connection, client_id, epoch)
    return ClientRecord(
        client_id,
        rows[0].since,
        rows[0].uploads,
        last=found[-1] if found else None,
        repeated=next((entry for entry in found if entry.key == key), None),
        was_sent=rows[0].sent_epoch is not None or bool(replies),
        sent=next((entry.reply for entry in reversed(replies) if entry.reply), None) or rows[0].model,
        sent_mixture=mixture,
    )


def _client_statement() -> sa.Select[Any]:
    """Return the statement of `client`. A parameter that is None, as NULL, equals nothing."""
    name, key = bindparam("name", type_=Text), bindparam("key", type_=Text)
    epoch = bindparam("epoch", type_=BigInteger)
    newer, own = journal.alias(), journal.c.client_id == name
    newest = select(func.max(newer.c.number)).where(newer.c.client_id == name).scalar_subquery()
    wanted = sa.or_(  # one search of an index for each
        sa.and_(own, journal.c.number == newest),
        sa.and_(own, journal.c.epoch == epoch, journal.c.outcome != "rejected"),
        sa.and_(own, journal.c.key == key),
    )
    sent = sa.and_(sent_models.c.client_id == name, sent_models.c.epoch == epoch)
    return (
        select(
            clients.c.since, clients.c.uploads, sent_models.c.epoch.label("sent_epoch"), sent_models.c.model, journal
        )
        .select_from(clients.outerjoin(sent_models, sent).outerjoin(journal, wanted))
        .where(clients.c.client_id == name)
        .order_by(journal.c.number)
    )


_CLIENT = _client_statement()


def _mixture_at(connection: sa.Connection, client_id: str, epoch: int) -> tuple[float, ...] | None:
    """Return the mixture of a client's newest reply up to an epoch; None if there was none."""
    own = sa.and_(journal.c.client_id == client_id, journal.c.epoch <= epoch)
    row = connection.execute(select(journal).where(own).order_by(journal.c.number.desc()).limit(1)).first()
    return None if row is None else Entry.from_row(dict(row._mapping)).mixture


def withdrawn(connection: sa.Connection, claims: Iterable[Claim], now: float) -> tuple[set[str], set[str]]:
    """Return the clients among `claims` that may no longer write, and those of which another upload was taken since.

    The first were forgotten, or have a token that is not valid.
    """
    claims = list(claims)
    names, hashes = [claim.client_id for claim in claims], [claim.token for claim in claims if claim.token]
    found = connection.execute(_CLAIMED, {"names": names, "hashes": hashes, "now": now}).all()
    since = {name: value for name, value, _, kind in found if kind == 1}
    uploads = {name: count for name, _, count, kind in found if kind == 1}
    gone = {name for name, _, _, kind in found if kind == 2}
    tokens_left = {name for name, _, _, kind in found if kind == 3}
    withdrawn = {
        claim.client_id
        for claim in claims
        if since.get(claim.client_id) != claim.since
        or claim.client_id in gone
        or (claim.token is not None and claim.token not in tokens_left)
    }
    overtaken = {each.client_id for each in claims if each.uploads not in (None, uploads.get(each.client_id))}
    return withdrawn, overtaken - withdrawn


# A token is neither revoked nor expired at the time `now`.
VALID_TOKEN = sa.and_(
    tokens.c.revoked.is_(None), sa.or_(tokens.c.expires.is_(None), tokens.c.expires > bindparam("now", type_=Double))
)


def _claimed_statement() -> sa.CompoundSelect[Any]:
    """Return the statement of `withdrawn`: known clients (1), those to forget (2) and valid tokens (3)."""
    hashes = bindparam("hashes", expanding=True, type_=Text)
    nothing: sa.ColumnElement[float] = sa.literal_column("0.0")
    known = select(clients.c.client_id, clients.c.since, clients.c.uploads, _YES)
    asked = select(forgets.c.client_id, nothing, _NO, sa.literal_column("2"))
    valid = select(tokens.c.hash, nothing, _NO, sa.literal_column("3"))
    return sa.union_all(
        known.where(clients.c.client_id.in_(_NAMES)),
        asked.where(forgets.c.client_id.in_(_NAMES)),
        valid.where(tokens.c.hash.in_(hashes), VALID_TOKEN),
    )


_CLAIMED = _claimed_statement()


def all_clients(connection: sa.Connection, after: str, limit: int) -> list[ClientRecord]:
    """Return clients with names above `after`, by name, each with its newest entry."""
    chosen = select(clients).where(clients.c.client_id > after).order_by(clients.c.client_id).limit(limit)
    known = connection.execute(chosen).all()
    names = [row.client_id for row in known]
    last: dict[str, Entry] = {}
    for begin in range(0, len(names), MAX_NAMES):
        named = journal.c.client_id.in_(names[begin : begin + MAX_NAMES])
        newest = select(func.max(journal.c.number)).where(named).group_by(journal.c.client_id)
        for row in connection.execute(select(journal).where(journal.c.number.in_(newest))):
            last[row.client_id] = Entry.from_row(row._asdict())
    return [ClientRecord(row.client_id, row.since, row.uploads, last=last.get(row.client_id)) for row in known]


def num_clients(connection: sa.Connection) -> int:
    """Return how many clients are known."""
    return connection.execute(select(func.count()).select_from(clients)).scalar_one()


def add_sent(
    connection: sa.Connection, client_id: str, epoch: int, model: str | None, *, keep: int, now: float
) -> list[str]:
    """Record that a client was sent a model of an epoch; return blobs that are no longer referenced.

    `model` is its blob; None if it is not kept. The newest `keep` epochs of the client stay, and its newest blob.
    """
    known = insert(connection.dialect.name, clients).values(client_id=client_id, since=now, uploads=0)
    connection.execute(known.on_conflict_do_nothing())
    own = sent_models.c.client_id == client_id
    old = [] if model is None else _clear(connection, sent_models.c.model, own)
    new = insert(connection.dialect.name, sent_models).values(client_id=client_id, epoch=epoch, model=model, sent=now)
    if model is None:
        connection.execute(new.on_conflict_do_nothing())
    else:
        changed = {"model": new.excluded.model, "sent": new.excluded.sent}
        connection.execute(new.on_conflict_do_update(index_elements=["client_id", "epoch"], set_=changed))
    newest = select(sent_models.c.epoch).where(own).order_by(sent_models.c.epoch.desc()).limit(keep)
    connection.execute(sa.delete(sent_models).where(own, sent_models.c.epoch.not_in(newest.scalar_subquery())))
    return unreferenced(connection, old)


def sent_blob(connection: sa.Connection, epoch: int, digest: str) -> str | None:
    """Return a blob with this sha256 that any client was sent at this epoch: all newcomers get the same model."""
    alike = sent_models.c.model.like(f"%-{digest}")
    return connection.execute(select(sent_models.c.model).where(sent_models.c.epoch == epoch, alike).limit(1)).scalar()


def knows(connection: sa.Connection, client_id: str) -> bool:
    """Return whether anything is stored about a client."""
    found = [sa.exists().where(table.c.client_id == client_id) for table in (clients, journal, sent_models, tokens)]
    return bool(connection.execute(select(sa.or_(*found))).scalar())


def erase(connection: sa.Connection, client_id: str) -> bool:
    """Remove a client from all tables; return whether there was anything.

    Its entries stay, without its data; rejected ones go.
    """
    own = journal.c.client_id == client_id
    put(connection, "number", str(last_number(connection)))
    found = connection.execute(sa.delete(journal).where(own, journal.c.outcome == "rejected")).rowcount
    rows = connection.execute(select(journal).where(own)).all()
    if rows:
        nothing = {"client_id": None, "key": "", "digest": "", "upload": None, "base": None, "reply": None}
        changed = sa.update(journal).where(journal.c.number == sa.bindparam("at"))
        left = [Entry.from_row(row._asdict()) for row in rows]
        connection.execute(
            changed.values(**nothing, decision=sa.bindparam("left")),
            [{"at": entry.number, "left": entry.forgotten().decision} for entry in left],
        )
    found += len(rows)
    for table in (clients, sent_models, tokens, offers):
        found += connection.execute(sa.delete(table).where(table.c.client_id == client_id)).rowcount
    connection.execute(sa.delete(forgets).where(forgets.c.client_id == client_id))
    put(connection, "forgotten", str(num_forgotten(connection) + 1))
    return found > 0


def num_forgotten(connection: sa.Connection) -> int:
    """Return how often a client was forgotten: other front ends drop what they remember if it grows."""
    return int(get(connection, "forgotten") or 0)


def delete_offers(connection: sa.Connection, uploads: Iterable[str]) -> None:
    """Delete offers that were applied, by the blobs of the uploads."""
    connection.execute(_DELETE_OFFERS, {"names": list(uploads)})


_DELETE_OFFERS = sa.delete(offers).where(offers.c.upload.in_(_NAMES))


def unshare(connection: sa.Connection, client_id: str) -> None:
    """Clear the models that a client was sent: no other client can be sent the same blob from now on."""
    _clear(connection, sent_models.c.model, sent_models.c.client_id == client_id)


def ask_to_forget(connection: sa.Connection, client_id: str, now: float) -> None:
    """Ask the owner of the store to forget a client."""
    connection.execute(
        insert(connection.dialect.name, forgets).values(client_id=client_id, asked=now).on_conflict_do_nothing()
    )


def asked_to_forget(connection: sa.Connection) -> list[str]:
    """Return the clients that the owner was asked to forget."""
    return list(connection.execute(select(forgets.c.client_id).order_by(forgets.c.asked)).scalars())


# -- snapshots


def all_snapshots(connection: sa.Connection) -> list[Snapshot]:
    """Return all snapshots, oldest first."""
    found = connection.execute(select(snapshots).order_by(snapshots.c.epoch))
    return [Snapshot.from_row(row._asdict()) for row in found]


def add_snapshot(connection: sa.Connection, snapshot: Snapshot) -> None:
    """Add a snapshot."""
    connection.execute(sa.insert(snapshots).values(snapshot.to_row()))


def change_snapshot(connection: sa.Connection, snapshot: Snapshot) -> None:
    """Set the settings in force after a snapshot, and its small tensors."""
    chosen = sa.update(snapshots).where(snapshots.c.epoch == snapshot.epoch)
    row = snapshot.to_row()
    connection.execute(chosen.values(settings=row["settings"], state=row["state"]))
