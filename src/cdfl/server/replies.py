"""What clients are answered with: one model or experts, new or stored."""

import hashlib
import logging
from dataclasses import replace

from cdfl.core import Layout, Reply, ServerState, Settings
from cdfl.server.blobs import digest_of
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreDamaged
from cdfl.server.store_records import Entry
from cdfl.server.submission import Answer, Parts, reply_head
from cdfl.wire import GoneError, ReplyHead, body_parts, encode_experts, expert_type

logger = logging.getLogger("cdfl.server")


class Replies:
    """Makes answers. `router` is as clients get it; None if replies are one model."""

    def __init__(
        self, store: Store, layout: Layout, settings: Settings, num_clusters: int, router: bytes | None
    ) -> None:
        self.store, self.layout, self.settings, self.num_clusters = store, layout, settings, num_clusters
        self.router = router
        self.router_digest = "" if router is None else digest_of(router)
        self._experts: tuple[ServerState, Parts] | None = None  # the last ones that were encoded

    def body(self, state: ServerState, reply: Reply, *, wants_model: bool) -> Parts:
        """Return the body of a reply: the experts of a state, or one model."""
        if self.router is None or wants_model:
            return body_parts(reply.personal_model.cpu(), self.layout)
        known = self._experts
        if known is None or known[0] is not state:
            dtype = self.settings.replies.expert_dtype
            known = self._experts = state, encode_experts(state.cluster_models, self.layout, dtype)
        return known[1]

    def answer(self, head: ReplyHead, body: Parts, digest: str = "") -> Answer:
        """Return an answer whose headers say what its body is."""
        experts = expert_type(body[0], self.layout, self.num_clusters) if self.router else None
        if experts is not None:
            head = replace(head, experts=experts, router=self.router_digest)
        return Answer(head, body, digest)

    def stored(self, entry: Entry) -> Answer:
        """Return the stored answer to an upload; GoneError if it is no longer kept."""
        try:
            body = self._stored_body(entry)
        except StoreDamaged as error:
            logger.error("a reply cannot be sent again: %s", error)
            body = None
        if body is None:
            raise GoneError("this upload was taken, but its reply is no longer kept; GET /v1/model")
        return self.answer(reply_head(entry), (body,), hashlib.sha256(body).hexdigest())

    def _stored_body(self, entry: Entry) -> bytes | None:
        """Return what an upload was answered with: a reply of its own or, if rejected, what its client was sent."""
        if entry.outcome != "rejected":
            return self.store.read_reply(entry)
        record = self.store.client(entry.client_id, entry.base_epoch)
        return None if record is None or record.sent is None else self.store.read_sent(record.sent)
