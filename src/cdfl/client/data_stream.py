"""Follow a stream of fresh data: at each turn the policy decides whether to train and upload."""

import random
import re
from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from cdfl.argument_checks import check_number
from cdfl.client.batches import Batch, Data, batches_of, count_samples, mean_loss, nonempty, to_device
from cdfl.client.errors import DivergedError, ServerAwayError
from cdfl.upload_policies import Observation, Policy, check_policy, decide_upload

if TYPE_CHECKING:
    from cdfl.client.client import Client, Reply


@dataclass(frozen=True)
class Turn:
    """One arrival of fresh data: what the client saw, decided and did."""

    number: int  # from 1
    samples: int
    loss: float | None  # of the model on the fresh data; None: the policy did not ask for it
    decided: bool  # True: to train and upload
    reply: "Reply | None" = None  # the answer to this turn's upload, or to one that waited
    pending: bool = False  # True: an upload waits for the server
    error: str = ""  # what went wrong, if anything
    served: float | None = None  # loss of its predictions on fresh data, before any upload; None without experts
    mixture: tuple[float, ...] = ()  # its own estimate, by the router
    strange: float = 0.0  # share of inputs that fit no cluster


class StreamFollower:
    """Takes the turns of one client. `Client.watch` makes one."""

    def __init__(self, client: "Client", policy: Policy, recent: int = 1) -> None:
        check_number("recent", recent, 1, whole=True)
        check_policy(policy)
        self.client, self.policy = client, policy
        self._name = re.sub(r" at 0x[0-9a-f]+", "", repr(policy))  # the same after a restart
        self._recent: deque[list[Batch]] = deque(maxlen=recent)
        self._number = 0
        self._failures, self._not_before = 0, 0.0
        if not client.joined:
            client.join()

    def turn(self, data: Data) -> Turn:
        """Show fresh data to the policy; train and upload if it says so. Empty data are not shown."""
        client = self.client
        batches = list(nonempty(batches_of(data, client.settings.training.batch_size)))
        self._number += 1
        samples, losses, reply = count_samples(batches), list[float](), self._flush()
        if not batches:
            return Turn(self._number, samples, None, decided=False, reply=reply, pending=client.pending)
        self._recent.append(batches)

        def measure() -> float:
            losses.append(mean_loss(client.model, batches, client.loss, client.device))
            return losses[-1]

        decided, error, seen = False, "", client.follow(batches)
        told: dict[str, Any] = {} if seen is None else {"mixture": seen.mixture, "strange": seen.strange}
        served = None if seen is None else self._served(batches)
        try:
            observation = Observation(
                samples,
                cache(measure),
                random.random(),  # noqa: S311
                client.clock(),
                mixture_moved=0.0 if seen is None else client.mixture_moved,
                **told,
            )
            memory, decided = decide_upload(self.policy, client.recall(self._name), observation)
            client.remember(self._name, memory, now=not decided)
            if decided:
                reply = client.update([batch for recent in self._recent for batch in recent]) or reply
                self._recent.clear()
        except DivergedError as diverged:
            error = str(diverged)
        loss = losses[0] if losses else None
        return Turn(self._number, samples, loss, decided, reply, client.pending, error, served, **told)

    def _served(self, batches: list[Batch]) -> float:
        """Return the loss of the client's predictions on the first of some batches."""
        inputs, targets = batches[0]
        client = self.client
        with torch.no_grad():
            return float(client.loss(client.predict(inputs), to_device(targets, client.device)))

    def _flush(self) -> "Reply | None":
        """Try once to send a waiting upload; wait longer after each failure."""
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
