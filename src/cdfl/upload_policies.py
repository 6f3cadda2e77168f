"""Upload policies: a client decides at each turn, when fresh data arrive, whether to train and upload.

A policy has no state. Its memory of a client is a short tuple of numbers that the caller keeps and passes back. So one
policy serves many simulated clients, and a real client that restarts. Callers use `decide_upload`, which checks what a
user's policy returns.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from datetime import time as TimeOfDay
from statistics import fmean, median
from typing import Any, Protocol
from zoneinfo import ZoneInfo, available_timezones

import numpy as np

from cdfl.argument_checks import check_method, check_number, did_you_mean

DECIDES = "an object with decide(memory, observation) -> (memory, bool)"
Memory = tuple[float, ...]  # a policy's memory of one client; () at the start and after a reset


@dataclass(frozen=True)
class Observation:
    """What a policy may use to decide."""

    samples: int  # number that arrived
    measure: Callable[[], float]  # the loss of its personal model on them; costs a pass over the data
    chance: float = 0.0  # a uniform random number from 0 to 1
    time: float = 0.0  # the client's clock, in seconds since 1970
    mixture: tuple[float, ...] = ()  # its own estimate, by the router; () without one
    mixture_moved: float = 0.0  # share of its data that changed clusters since its last upload, 0 to 1
    strange: float = 0.0  # share of its inputs that fit no cluster

    @property
    def loss(self) -> float:
        """The loss of the personal model on the fresh data; computed when read."""
        return self.measure()


class Policy(Protocol):
    """Decides when a client uploads."""

    def decide(self, memory: Memory, observation: Observation) -> tuple[Memory, bool]:
        """Return the new memory, and whether to train and upload now."""
        ...


def check_policy(policy: Policy, name: str = "policy", expected: str = DECIDES) -> None:
    """Raise `ValueError` if this is not a policy."""
    check_method(name, policy, "decide", 2, expected)


def decide_upload(policy: Policy, memory: Memory, observation: Observation) -> tuple[Memory, bool]:
    """Return what a policy decides; raise `ValueError` if it returns anything but (memory, bool).

    >>> decide_upload(Always(), (), Observation(60, lambda: 0.1))
    ((), True)
    """
    answer, name = policy.decide(memory, observation), type(policy).__name__
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise ValueError(f"{name}.decide returned {answer!r}; expected (memory, bool)")
    memory, upload = answer
    if not isinstance(memory, tuple) or not all(isinstance(part, int | float) for part in memory):
        raise ValueError(f"{name}.decide returned the memory {memory!r}; expected a tuple of numbers")
    if not isinstance(upload, bool | np.bool_):
        raise ValueError(f"{name}.decide returned {upload!r} as its decision; expected True (upload) or False")
    return memory, bool(upload)


@dataclass(frozen=True)
class Always:
    """Upload at every turn, as in the paper's experiments."""

    def decide(self, memory: Memory, observation: Observation) -> tuple[Memory, bool]:
        """Return True."""
        return memory, True


@dataclass(frozen=True)
class EverySamples:
    """Upload once at least `count` samples have arrived since the last upload.

    >>> policy = EverySamples(100)
    >>> memory, first = policy.decide((), Observation(60, lambda: 0.1))
    >>> policy.decide(memory, Observation(60, lambda: 0.1))
    ((0.0,), True)
    """

    count: int = 1000

    def __post_init__(self) -> None:
        if isinstance(self.count, float) and self.count % 1 == 0:  # 1e3
            object.__setattr__(self, "count", int(self.count))
        check_number("count", self.count, 1, whole=True)

    def decide(self, memory: Memory, observation: Observation) -> tuple[Memory, bool]:
        """Count the samples since the last upload."""
        seen = (memory[0] if memory else 0.0) + observation.samples
        return ((0.0,), True) if seen >= self.count else ((seen,), False)


@dataclass(frozen=True)
class Sometimes:
    """Upload with a fixed probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        check_number("probability", self.probability, 0, 1)

    def decide(self, memory: Memory, observation: Observation) -> tuple[Memory, bool]:
        """Compare the observation's random number with the probability."""
        return memory, observation.chance < self.probability


@dataclass(frozen=True)
class Rise:
    """The time since the loss rose above its level. `take` says at which turns to upload, while it stays there.

    The first `patience` uploads come at once. While uploads do not help, pauses of 2, 4, 8, ... turns follow. After
    `turns` turns the rise is over: the loss is the new level.
    """

    age: float = 0.0  # turns since the rise; 0: there is none
    failed: float = 0.0  # uploads in a row that have not helped
    pause: float = 0.0  # turns to wait
    highest: float = 0.0  # the loss at the last uploads

    def take(self, loss: float, level: float, patience: int, turns: int) -> tuple["Rise", bool]:
        """Return the rise above a level after another turn, and whether to upload; it is over if its age is 0."""
        if self.age >= turns:
            return Rise(), False
        if not self.age or loss > self.highest + (self.highest - level) / 2:  # it has risen again
            return Rise(age=1.0, pause=0.0 if patience > 1 else 2.0, highest=loss), True
        if self.pause:
            return replace(self, age=self.age + 1, pause=self.pause - 1), False
        if loss < self.highest - (self.highest - level) / 4:  # the last upload has helped
            return Rise(self.age + 1, highest=loss), True
        failed = self.failed + 1
        pause = 2.0 ** (failed + 2 - patience) if failed + 2 > patience else 0.0
        return Rise(self.age + 1, failed, pause, max(loss, self.highest)), True

    @property
    def memory(self) -> Memory:
        """As numbers."""
        return self.age, self.failed, self.pause, self.highest


def above(level: float, factor: float) -> float:
    """Return `factor` times a loss; for a negative one, as much above or below it.

    >>> above(2.0, 1.5), above(-2.0, 1.5)
    (3.0, -1.0)
    """
    return level + (factor - 1) * abs(level)


@dataclass(frozen=True)
class LossRises:
    """Upload when the loss on fresh data exceeds its level by a factor.

    The level is the mean of the last `window` losses, or of the last `remember` ones if that is lower; so it notices a
    slow rise, too. High losses do not change it. While the loss stays high, it uploads again: `patience` times at once,
    then after pauses of 2, 4, 8, ... turns. After `remember` turns the high loss is the new level.

    >>> policy, memory = LossRises(factor=1.5), ()
    >>> for loss in (1.0, 1.0, 1.1, 2.0):
    ...     memory, upload = policy.decide(memory, Observation(50, lambda: loss))
    ...     print(upload, end=" ")
    False False False True
    """

    factor: float = 1.2
    window: int = 5
    patience: int = 2
    remember: int = 50

    def __post_init__(self) -> None:
        check_number("factor", self.factor, 0)
        check_number("window", self.window, 1, whole=True)
        check_number("patience", self.patience, 1, whole=True)
        check_number("remember", self.remember, 1, whole=True)

    def decide(self, memory: Memory, observation: Observation) -> tuple[Memory, bool]:
        """Compare with the level before the rise."""
        rise, usual, loss = Rise(*memory[:4]), memory[4:], observation.loss
        level = min(fmean(usual), fmean(usual[-self.window :])) if usual else loss
        if usual and loss > above(level, self.factor):
            rise, upload = rise.take(loss, level, self.patience, self.remember)
            return (*rise.memory, *(usual if rise.age else (loss,))), upload
        return (*Rise().memory, *(*usual, loss)[-self.remember :]), False


@dataclass(frozen=True)
class PageHinkley:
    """Upload when a Page-Hinkley test detects that the loss on fresh data has risen (Page, 1954).

    It sums the differences between losses and their running mean, less a tolerance, and detects drift when the sum is
    `threshold` above its minimum. With each upload the mean goes half the way to the loss, so a loss that stays high is
    not forgotten at once.
    """

    threshold: float = 1.0
    tolerance: float = 0.05

    def __post_init__(self) -> None:
        check_number("threshold", self.threshold, 0)
        check_number("tolerance", self.tolerance, 0, finite=True)

    def decide(self, memory: Memory, observation: Observation) -> tuple[Memory, bool]:
        """Update mean and sum; begin a new sum after an upload."""
        count, mean, total, lowest = memory or (0.0, 0.0, 0.0, 0.0)
        loss = observation.loss
        count += 1
        mean += (loss - mean) / count
        total += loss - mean - self.tolerance
        lowest = min(lowest, total)
        if total - lowest > self.threshold:
            return (min(count, 10.0), (mean + loss) / 2, 0.0, 0.0), True
        return (count, mean, total, lowest), False


@dataclass(frozen=True)
class MixtureMoves:
    """Upload when the client's own mixture has moved since its last upload: this share of its data changed clusters.

    The router tells it from inputs alone. Without a router it never uploads: combine it with another policy.

    >>> MixtureMoves(0.2).decide((), Observation(60, lambda: 0.1, mixture=(0.5, 0.5), mixture_moved=0.3))
    ((), True)
    """

    threshold: float = 0.2

    def __post_init__(self) -> None:
        check_number("threshold", self.threshold, 0, 1)

    def decide(self, memory: Memory, observation: Observation) -> tuple[Memory, bool]:
        """Compare with the threshold."""
        return memory, observation.mixture_moved > self.threshold


@dataclass(frozen=True)
class EverySeconds:
    """Upload when this many seconds have passed since the last upload or the first observation.

    >>> policy = EverySeconds(3600)
    >>> memory, first = policy.decide((), Observation(10, lambda: 0.1, time=1000))
    >>> policy.decide(memory, Observation(10, lambda: 0.1, time=5000))
    ((5000,), True)
    """

    seconds: float = 86400.0

    def __post_init__(self) -> None:
        check_number("seconds", self.seconds, 0)

    def decide(self, memory: Memory, observation: Observation) -> tuple[Memory, bool]:
        """Compare with the time of the last upload; start again if the clock was set back."""
        last = min(memory[0], observation.time) if memory else observation.time
        return ((observation.time,), True) if memory and observation.time - last >= self.seconds else ((last,), False)


@dataclass(frozen=True)
class Daily:
    """Upload at the first observation after a time of day, at most once a day.

    >>> policy = Daily("03:30", zone="Europe/Berlin")
    >>> memory, first = policy.decide((), Observation(10, lambda: 0.1, time=1767225600))   # 1 January 2026, 1:00
    >>> policy.decide(memory, Observation(10, lambda: 0.1, time=1767225600 + 3 * 3600))[1]   # 4:00
    True
    """

    at: str = "03:00"
    zone: str | None = None  # a name such as Europe/Berlin; None or empty: the device's time zone

    def __post_init__(self) -> None:
        try:
            TimeOfDay.fromisoformat(self.at)
        except (TypeError, ValueError):
            raise ValueError(f"at is {self.at!r}; expected a time of day such as '03:30'") from None
        try:
            self._zone()
        except (TypeError, ValueError, KeyError, OSError):
            remedy = "" if available_timezones() else "; this machine has no time zone data: pip install tzdata"
            raise ValueError(
                f"zone is {self.zone!r}; expected None or a name such as 'Europe/Berlin'{remedy}"
            ) from None

    def decide(self, memory: Memory, observation: Observation) -> tuple[Memory, bool]:
        """Upload if the time of day has passed since the last upload or the first observation."""
        last = min(memory[0], observation.time) if memory else observation.time
        return ((observation.time,), True) if last < self._latest(observation.time) else ((last,), False)

    def _latest(self, now: float) -> float:
        """Return the last moment at which it was that time of day."""
        here = datetime.fromtimestamp(now, self._zone())
        moment = datetime.combine(here.date(), TimeOfDay.fromisoformat(self.at), here.tzinfo)
        return (moment if moment <= here else moment - timedelta(days=1)).timestamp()

    def _zone(self) -> ZoneInfo | None:
        return None if self.zone in (None, "") else ZoneInfo(self.zone)


@dataclass(frozen=True)
class Unless:
    """Another policy with a veto, such as "on battery". A vetoed upload happens at the first turn without veto.

    >>> battery = [True, False]
    >>> policy = Unless(EverySamples(50), lambda: battery.pop(0))
    >>> memory, vetoed = policy.decide((), Observation(60, lambda: 0.1))
    >>> vetoed, policy.decide(memory, Observation(10, lambda: 0.1))[1]
    (False, True)
    """

    policy: Policy
    veto: Callable[[], bool] = field(repr=False)  # called only when an upload is due

    def __post_init__(self) -> None:
        check_policy(self.policy)
        if not callable(self.veto):
            raise ValueError(f"veto is {self.veto!r}; expected a function that returns True to postpone an upload")

    def decide(self, memory: Memory, observation: Observation) -> tuple[Memory, bool]:
        """Let the other policy decide; remember a decision to upload until it is not vetoed."""
        due, inner = bool(memory and memory[0]), memory[1:]
        if not due:  # the other policy waits for the upload it decided on
            inner, due = decide_upload(self.policy, inner, observation)
        upload = due and not self.veto()
        return (float(due and not upload), *inner), upload


@dataclass(frozen=True)
class AtFirst:
    """Upload at the first observation, then follow another policy. A newcomer's model is the average of all clusters.

    >>> policy = AtFirst(EverySamples(100))
    >>> memory, first = policy.decide((), Observation(60, lambda: 0.1))
    >>> first, policy.decide(memory, Observation(60, lambda: 0.1))
    (True, ((1.0, 60.0), False))
    """

    policy: Policy

    def __post_init__(self) -> None:
        check_policy(self.policy)

    def decide(self, memory: Memory, observation: Observation) -> tuple[Memory, bool]:
        """Return True once, then let the other policy decide."""
        if not memory:
            return (1.0,), True
        inner, upload = decide_upload(self.policy, memory[1:], observation)
        return (1.0, *inner), upload


@dataclass(frozen=True)
class Either:
    """Upload when one of two policies says so. Each has a memory of its own.

    >>> policy = Either(EverySamples(100), MixtureMoves())
    >>> memory, first = policy.decide((), Observation(60, lambda: 0.1))
    >>> policy.decide(memory, Observation(60, lambda: 0.1))
    ((1.0, 0.0), True)
    """

    first: Policy
    second: Policy

    def __post_init__(self) -> None:
        check_policy(self.first, "first")
        check_policy(self.second, "second")

    def decide(self, memory: Memory, observation: Observation) -> tuple[Memory, bool]:
        """Let both decide; each sees every observation."""
        split = 1 + int(memory[0]) if memory else 0
        mine, yes = decide_upload(self.first, memory[1:split], observation)
        yours, also = decide_upload(self.second, memory[split:], observation)
        return (float(len(mine)), *mine, *yours), yes or also


@dataclass(frozen=True)
class DriftDetected:
    """Upload when a drift detector of the package `river` detects that the loss on fresh data has risen.

    `detector` is a name in `river.drift` (ADWIN, KSWIN, PageHinkley) and `settings` are its arguments. It gets one loss
    at each observation. If the loss has fallen, the detector is reset without an upload.

    A detector forgets what it has seen once it detects drift. So the policy remembers the level before the drift: while
    the loss stays above the middle between that level and the loss at the drift, it uploads again, as `LossRises` does.
    After that the detector starts anew.

    The memory is the last `window` losses since the detector was reset. After a restart, a new detector is fed with
    them. It is equal to the old one unless older losses were dropped. KSWIN needs a seed for that.
    """

    detector: str = "ADWIN"
    settings: Mapping[str, Any] = field(default_factory=dict)
    window: int = 1000
    patience: int = 2
    remember: int = 50

    def __post_init__(self) -> None:
        check_number("window", self.window, 1, whole=True)
        check_number("patience", self.patience, 1, whole=True)
        check_number("remember", self.remember, 1, whole=True)
        if self.detector not in DETECTORS:  # importing river is slow, so known names wait for the first turn
            _river_detector(self.detector)

    def decide(self, memory: Memory, observation: Observation) -> tuple[Memory, bool]:
        """Feed the loss to the detector; after a rise, compare the loss with the level before."""
        rise, (level, high), losses, loss = Rise(*memory[:4]), memory[4:6] or (0.0, 0.0), memory[6:], observation.loss
        if rise.age:
            rise, upload = rise.take(loss, level, self.patience, self.remember) if loss > high else (Rise(), False)
            return ((*rise.memory, level, high) if rise.age else ()), upload
        detector = self._fed(losses)
        detector.update(loss)
        if detector.drift_detected:
            level = median(losses) if losses else loss  # a few of them are from after the rise
            rise, upload = Rise().take(loss, level, self.patience, self.remember) if loss > level else (rise, False)
            return ((*rise.memory, level, (level + loss) / 2) if upload else ()), upload
        losses = (*losses, loss)[-self.window :]
        _FED[self._key(losses)] = detector
        if len(_FED) > MOST_FED:
            _FED.pop(next(iter(_FED)))
        return (*Rise().memory, 0.0, 0.0, *losses), False

    def _fed(self, losses: Memory) -> Any:
        """Return a detector that has seen these losses: a cached one, or a new one fed with them."""
        detector = _FED.pop(self._key(losses), None)
        if detector is None:
            detector = _river_detector(self.detector)(**self.settings)
            for loss in losses:
                detector.update(loss)
        return detector

    def _key(self, losses: Memory) -> tuple[str, Memory]:
        return repr(self), losses


DETECTORS = ("ADWIN", "KSWIN", "PageHinkley")
# Detectors by the losses they have seen. Only a cache: feeding a new one can take milliseconds for each loss.
_FED: dict[tuple[str, Memory], Any] = {}
MOST_FED = 256


def _river_detector(name: str) -> Any:
    try:
        from river import drift
    except ModuleNotFoundError:
        raise ModuleNotFoundError("drift detectors need the package river: pip install 'cdfl[client]'") from None
    if not isinstance(getattr(drift, str(name), None), type):
        raise ValueError(f"river.drift has no detector {name!r}; try {', '.join(DETECTORS)}")
    return getattr(drift, name)


ALWAYS = Always()
POLICIES: dict[str, Policy] = {
    "always": ALWAYS,
    "every-samples": EverySamples(),
    "sometimes": Sometimes(),
    "loss-rises": LossRises(),
    "mixture-moves": MixtureMoves(),
    "follow": Either(LossRises(), MixtureMoves()),
    "page-hinkley": PageHinkley(),
    "adwin": DriftDetected("ADWIN", {"clock": 1}),
    "kswin": DriftDetected("KSWIN", {"seed": 0}),
}


def find_policy(name: str) -> Policy:
    """Return a policy by its name."""
    if name not in POLICIES:
        there = f"there are {', '.join(POLICIES)}{did_you_mean(name, POLICIES)}"
        raise ValueError(f"there is no policy {name!r}; {there}")
    return POLICIES[name]
