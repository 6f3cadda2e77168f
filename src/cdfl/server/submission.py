"""An upload on its way through the server, and the answer to it."""

import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from torch import Tensor

from cdfl.core import NEWCOMER, ClientMemory
from cdfl.server.store_records import Claim, Entry
from cdfl.wire import ReplyHead

Parts = tuple[bytes | memoryview, ...]
RETRY_SECONDS = 2.0  # clients are asked to wait this long


@dataclass(eq=False)
class Submission:
    """A received upload: checked and durable, it waits to be applied."""

    client_id: str
    key: str
    base_epoch: int
    digest: str
    local_model: Tensor  # (P,)
    upload: str  # blob of the local model
    claim: Claim  # why its client may write
    client: ClientMemory = NEWCOMER
    was_rejected: bool = False  # its client's last upload
    sent: str | None = None  # blob of the model that the client was sent at `base_epoch`; None if deleted
    mixture: Tensor | None = None  # (K,) the client's own estimate, if it came with the upload
    wants_model: bool = False  # the client asks for one model, not for experts
    sent_experts: bytes | None = None  # what the client was sent at `base_epoch`, if that are experts
    report: tuple[float, ...] = ()  # what its client says of its last reply
    received: float = field(default_factory=time.time)
    is_offered: bool = False  # another front end took it
    losses: Tensor | None = None  # (K,) once they are known
    tried: Tensor | None = None  # (2, K) losses that the guard needs, if known: `tried_on_base`
    base: str | None = None  # blob of the model it was trained from, once it is kept
    base_model: Tensor | None = None  # (P,) that model
    answer: "Future[Answer]" = field(default_factory=Future)


@dataclass(frozen=True, eq=False)
class Answer:
    """What a client gets: the headers, and the model in float32 or the experts."""

    head: ReplyHead
    body: Parts
    digest: str = ""  # sha256 of the body, if it is known


def reply_head(entry: Entry) -> ReplyHead:
    """Return the headers of the reply to an entry; a repeated upload gets the same ones."""
    detail = entry.verdict.reason if entry.outcome == "rejected" else ""
    return ReplyHead(entry.reply_epoch, entry.mixture, entry.rates, entry.staleness, entry.outcome, detail)
