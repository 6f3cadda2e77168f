"""Forward uploads: one front end takes and offers them, the owner of the store applies them.

A front end keeps the upload as a blob and adds a row that says what came. The owner applies the rows in order. It
deletes a row in the transaction that adds the entry to the journal, or writes into the row why it refused the upload;
then the front end that offered it answers its client. If a front end dies, its rows stay and are applied; its clients
get the stored reply when they send the upload again, to any front end.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import select

from cdfl.core import ClientMemory, Layout
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreDamaged
from cdfl.server.store_records import Claim, numbers, tensor
from cdfl.server.submission import Submission
from cdfl.server.tables import offers
from cdfl.wire import UnavailableError, WireError, error_of

POLL_SECONDS = 0.02  # the owner looks for offers, and others for its answers, this often while there are some
QUIET_SECONDS = 0.25  # and this often otherwise
BUSY_SECONDS = 10.0  # after the last offer


def offer(store: Store, submissions: Iterable[Submission]) -> None:
    """Offer uploads to the owner of the store."""
    rows = [
        {"upload": each.upload, "client_id": each.client_id, "offered": time.time(), "submission": _described(each)}
        for each in submissions
    ]
    if rows:
        with store.writing() as connection:
            connection.execute(sa.insert(offers), rows)


def waiting(store: Store, limit: int, layout: Layout) -> list[Submission]:
    """Return the uploads that were offered first and wait to be applied. One that cannot be read is refused."""
    chosen = select(offers).where(offers.c.refusal.is_(None)).order_by(offers.c.number).limit(limit)
    with store.reading() as connection:
        rows = connection.execute(chosen).all()
    found = []
    for row in rows:
        try:
            found.append(_submission(row.upload, row.client_id, row.submission, store, layout))
        except (StoreDamaged, WireError):
            again = UnavailableError("the upload was lost on the server; send it again", retry_after=0.0)
            refuse(store, {row.upload: again})
    return found


def refuse(store: Store, refused: Mapping[str, WireError]) -> None:
    """Say why uploads are not applied, and delete them; `refused` is by their blobs."""
    if not refused:
        return
    with store.writing(as_owner=True) as connection:
        for upload, error in refused.items():
            what = {"status": error.status, "detail": error.detail, "retry_after": error.retry_after}
            connection.execute(sa.update(offers).where(offers.c.upload == upload).values(refusal=what))
    store.drop(*refused)


def answers(store: Store, uploads: Collection[str]) -> dict[str, WireError | None]:
    """Return those of our offers that are still there: refused, or None while they wait."""
    chosen = select(offers.c.upload, offers.c.refusal).where(offers.c.upload.in_(uploads))
    with store.reading() as connection:
        found = connection.execute(chosen).all()
    return {row.upload: None if row.refusal is None else error_of(**row.refusal) for row in found}


def _described(submission: Submission) -> dict[str, Any]:
    """Return what a row says of an upload: all that its client sent, and what was found out about it."""
    claim, memory = submission.claim, submission.client
    return {
        "key": submission.key,
        "base_epoch": submission.base_epoch,
        "digest": submission.digest,
        "claim": [claim.token, claim.since, claim.uploads],
        "memory": [None if memory.mixture is None else numbers(memory.mixture), list(memory.defence)],
        "was_rejected": submission.was_rejected,
        "sent": submission.sent,
        "mixture": None if submission.mixture is None else numbers(submission.mixture),
        "wants_model": submission.wants_model,
        "report": list(submission.report),
        "received": submission.received,
        "losses": None if submission.losses is None else numbers(submission.losses),
    }


def _submission(upload: str, client_id: str, row: dict[str, Any], store: Store, layout: Layout) -> Submission:
    """Return the upload of a row."""
    mixture, defence = row["memory"]
    return Submission(
        client_id,
        row["key"],
        row["base_epoch"],
        row["digest"],
        store.read_model(upload, layout),
        upload,
        Claim(client_id, *row["claim"]),
        client=ClientMemory(None if mixture is None else tensor(mixture), tuple(defence)),
        was_rejected=row["was_rejected"],
        sent=row["sent"],
        mixture=None if row["mixture"] is None else tensor(row["mixture"]),
        wants_model=row["wants_model"],
        report=tuple(row["report"]),
        received=row["received"],
        losses=None if row["losses"] is None else tensor(row["losses"]),
        is_offered=True,
    )
