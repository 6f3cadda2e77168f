"""An upload on its way through the server: what is submitted, what is answered, what is written down."""

import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from torch import Tensor

from cdfl.core import Reply, ServerState
from cdfl.server.journal import Entry
from cdfl.server.snapshots import from_losses
from cdfl.wire import Outcome, ReplyHead


@dataclass(eq=False)
class Submission:
    """An upload that was received, found to be in order, and is durable; it waits to be applied."""

    client_id: str
    key: str
    base_epoch: int
    digest: str
    local_model: Tensor  # (P,)
    upload: str  # blob
    last_mixture: tuple[float, ...] | None
    past_harm: float = 1.0
    received: float = field(default_factory=time.time)
    losses: Tensor | None = None  # (K,) once they are known
    base: str | None = None  # blob of the model it was trained from, once that is found
    base_model: Tensor | None = None  # (P,) that model
    answer: "Future[Answer]" = field(default_factory=Future)


@dataclass(frozen=True, eq=False)
class Answer:
    """What goes back to a client."""

    head: ReplyHead
    personal_model: Tensor  # (P,)


def head_of(entry: Entry) -> ReplyHead:
    """What the headers of the reply to an entry say."""
    return ReplyHead(entry.epoch, entry.mixture, entry.rates, entry.staleness, entry.outcome, _detail_of(entry))


def _detail_of(entry: Entry) -> str:
    """Why an upload was rejected, for its client; from the journal alone, so that a repeated reply says the same."""
    if entry.outcome != "rejected" or entry.harm is None:
        return ""
    if entry.usual_harm is None:
        why = "it is absurdly far from all of them, compared with their size and its losses"
    else:
        why = f"it would do {entry.harm / entry.usual_harm:.3g} times the usual harm, more than the server allows"
        if entry.past_harm > 1:
            why += (
                " a client with such a past: its last uploads did too much, "
                "and count until a few usual ones have made up for them"
            )
    return (
        f"the upload is answered, but it moved no cluster: {why}. Where the data have just changed that may happen; "
        "if it goes on, look at them and their labels, train with a smaller learning_rate, or, where noise is added "
        "for privacy, add less of it"
    )


def outcome_of(reply: Reply) -> Outcome:
    """What became of an upload, in the word that journal and headers have for it."""
    return "deprecated" if reply.deprecated else "rejected" if reply.rejected else "applied"


def distances_of(reply: Reply) -> tuple[float, ...] | None:
    """What the journal keeps of them: a rejected upload may be farther away than numbers reach."""
    if reply.measures is None or not bool(reply.measures.distances.isfinite().all()):
        return None
    return tuple(reply.measures.distances.tolist())


def entry_of(submission: Submission, state: ServerState, reply: Reply) -> Entry:
    """What the journal keeps of an upload; `state` is the one after it."""
    outcome = outcome_of(reply)
    losses = None if outcome == "deprecated" else submission.losses
    return Entry(
        epoch=reply.epoch,
        client_id=submission.client_id,
        base_epoch=submission.base_epoch,
        key=submission.key,
        digest=submission.digest,
        outcome=outcome,
        losses=None if losses is None else tuple(losses.tolist()),
        cluster_losses=from_losses(state.cluster_losses),
        mixture=tuple(reply.mixture.tolist()),
        rates=tuple(reply.rates.tolist()),
        staleness=reply.staleness,
        received=submission.received,
        harm=reply.harm,
        usual_harm=reply.usual_harm,
        past_harm=submission.past_harm,
        distances=distances_of(reply),
        upload=submission.upload,
        base=submission.base,
    )
