"""A client that decides for itself: fresh data in, a decision, and now and then an upload."""

import random
import re
from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from cdfl.client.data import Batch, Data, batches_of, count_samples, filled, mean_loss
from cdfl.client.errors import DivergedError, ServerAwayError
from cdfl.policy import Observation, Policy, ask, check_policy

if TYPE_CHECKING:
    from cdfl.client.client import Client, Reply


@dataclass(frozen=True)
class Seen:
    """One look at fresh data: what was seen, what was decided, what came of it."""

    number: int  # of the look, from 1
    samples: int
    loss: float | None  # of the model on the fresh data; None: the policy did not ask
    decided: bool  # to train and upload
    reply: "Reply | None" = None  # to an upload that was answered now: this look's, or one that had waited
    pending: bool = False  # an upload waits for the server to come back
    trouble: str = ""  # what went wrong, if anything


class Watcher:
    """Looks at fresh data for one client."""

    def __init__(self, client: "Client", policy: Policy, recent: int = 1) -> None:
        if recent < 1:
            raise ValueError(f"recent is {recent}; expected at least 1: the data of a look, to train on")
        check_policy(policy)
        self.client, self.policy = client, policy
        self._name = re.sub(r" at 0x[0-9a-f]+", "", repr(policy))  # of this policy after a restart, too
        self._recent: deque[list[Batch]] = deque(maxlen=recent)
        self._number = 0
        self._failures, self._not_before = 0, 0.0
        if not client.joined:
            client.join()

    def look(self, data: Data) -> Seen:
        """Observation at fresh data; train and upload if the policy says so. Of no samples it is not asked."""
        client = self.client
        batches = list(filled(batches_of(data, client.settings.training.batch_size)))
        self._number += 1
        samples, losses, reply = count_samples(batches), list[float](), self._flush()
        if not batches:
            return Seen(self._number, samples, None, decided=False, reply=reply, pending=client.pending)
        self._recent.append(batches)

        def measure() -> float:
            losses.append(mean_loss(client.model, batches, client.loss, client.device))
            return losses[-1]

        decided, trouble = False, ""
        try:
            look = Observation(samples, cache(measure), random.random(), client.clock())  # noqa: S311
            memory, decided = ask(self.policy, client.recall(self._name), look)
            client.remember(self._name, memory, now=not decided)
            if decided:
                reply = client.update([batch for recent in self._recent for batch in recent]) or reply
                self._recent.clear()
        except DivergedError as error:
            trouble = str(error)
        return Seen(self._number, samples, losses[0] if losses else None, decided, reply, client.pending, trouble)

    def _flush(self) -> "Reply | None":
        """Try what waits, once, and not at every look while the server is away."""
        client, now = self.client, self.client.clock()
        if not client.pending or now < self._not_before:
            return None
        try:
            reply = client.flush(attempts=1)
        except ServerAwayError as away:
            self._failures += 1
            wait = max(client.retry.wait(self._failures, random.random()), away.retry_after or 0.0)  # noqa: S311
            self._not_before = now + wait
            return None
        self._failures = 0
        return reply
