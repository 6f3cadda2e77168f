"""When to upload: the client's own decision, made each time fresh data arrive.

A policy is a setting; what it remembers of one client is a short list of numbers that the caller keeps and passes in
again, so a policy serves a simulated client, ten thousand of them, or a real one that survives its own restart.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Memory = tuple[float, ...]  # what a policy remembers of one client; () at first


@dataclass(frozen=True)
class Look:
    """What a client knows when fresh data arrive."""

    samples: int  # how many arrived
    measure: Callable[[], float]  # the loss of its personal model on them; costs a pass over the data
    chance: float = 0.0  # a uniform random number from 0 to 1, the client's own

    @property
    def loss(self) -> float:
        """The loss of the personal model on the fresh data, measured when asked for."""
        return self.measure()


class Policy(Protocol):
    """Anything that decides."""

    def decide(self, memory: Memory, look: Look) -> tuple[Memory, bool]:
        """Is it time to train and upload? Also returns what to remember."""
        ...


@dataclass(frozen=True)
class Always:
    """Upload whenever there are fresh data, as in the paper's experiments."""

    def decide(self, memory: Memory, look: Look) -> tuple[Memory, bool]:
        """Yes."""
        return memory, True


@dataclass(frozen=True)
class EverySamples:
    """Upload once at least `count` samples have arrived since the last upload.

    >>> policy = EverySamples(100)
    >>> memory, first = policy.decide((), Look(60, lambda: 0.1))
    >>> policy.decide(memory, Look(60, lambda: 0.1))
    ((0.0,), True)
    """

    count: int = 1000

    def decide(self, memory: Memory, look: Look) -> tuple[Memory, bool]:
        """Count what has arrived."""
        seen = (memory[0] if memory else 0.0) + look.samples
        return ((0.0,), True) if seen >= self.count else ((seen,), False)


@dataclass(frozen=True)
class Sometimes:
    """Upload with a fixed probability."""

    probability: float = 0.5

    def decide(self, memory: Memory, look: Look) -> tuple[Memory, bool]:
        """Throw the dice that came with the look."""
        return memory, look.chance < self.probability


@dataclass(frozen=True)
class LossRises:
    """Upload when the loss on fresh data exceeds its recent mean by a factor.

    >>> policy, memory = LossRises(factor=1.5), ()
    >>> for loss in (1.0, 1.0, 1.1, 2.0):
    ...     memory, upload = policy.decide(memory, Look(50, lambda: loss))
    ...     print(upload, end=" ")
    False False False True
    """

    factor: float = 1.2
    window: int = 5

    def decide(self, memory: Memory, look: Look) -> tuple[Memory, bool]:
        """Compare with the mean of the last losses; after an upload the past no longer counts."""
        loss = look.loss
        if memory and loss > self.factor * sum(memory) / len(memory):
            return (), True
        return (*memory, loss)[-self.window :], False


@dataclass(frozen=True)
class PageHinkley:
    """Upload when a Page-Hinkley test says that the loss on fresh data has drifted upwards (Page, 1954).

    Sums how far losses lie above their mean so far, less a tolerance, and fires when the sum has risen by `threshold`.
    """

    threshold: float = 1.0
    tolerance: float = 0.05

    def decide(self, memory: Memory, look: Look) -> tuple[Memory, bool]:
        """Update mean and sum; start over after an upload."""
        count, mean, total, lowest = memory or (0.0, 0.0, 0.0, 0.0)
        loss = look.loss
        count += 1
        mean += (loss - mean) / count
        total += loss - mean - self.tolerance
        lowest = min(lowest, total)
        if total - lowest > self.threshold:
            return (), True
        return (count, mean, total, lowest), False


ALWAYS = Always()
POLICIES: dict[str, Policy] = {
    "always": ALWAYS,
    "every-samples": EverySamples(),
    "sometimes": Sometimes(),
    "loss-rises": LossRises(),
    "page-hinkley": PageHinkley(),
}
