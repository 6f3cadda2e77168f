"""The guard: a defence that judges what a step does.

An upload v was trained from u, the model that its client was sent. Clusters move along v - u or towards v.

*Bound.* The change v - u is shortened to `LONGEST` times the usual norm. The shortened norm counts for what is usual:
otherwise a few absurd changes would make all others look like none.

*Try.* Two steps and their opposites are tried on the proxy sets of the clusters that move, weighted by the rates: the
whole change on u, that is v and 2u - v; and the step beta_0 (v - u) on the average of these clusters. The effect of a
step is half of the loss after it minus the loss after its opposite. The first one shows best whether a client has
trained at all. The second one shows what is good for u, but not for the clusters: copies of clusters, or other labels.
Statistics take no part: the opposite of a variance may be negative.
The opposites are needed because late in training honest steps raise the loss, too: they are long. Their opposites raise
it more.

*Blame.* The harm of a step is (effect - usual effect) / usual size of an effect, within bounds: a step does harm if it
does much less good than those of others. A client has two blames, the running means of the harm of either step, from 0.
The larger one counts, that for clusters less `SLACK`.

*Shrink.* One effect says little about a client: by chance, honest steps go the wrong way and harmful ones the right
way. So a step shrinks with the blame of its client, from the whole step up to a blame of `TOLERATED` to nothing at
`REFUSED`. Only then is the upload rejected.

*Level.* No cluster may rise above its recent level by more than `RISE` times the usual change of its loss. A step that
would do so is halved for that cluster, then not taken.

*Share.* A client that uploads more than `SHARE` times as often as others is rejected until they catch up; one upload in
`ANYWAY` seconds is always allowed, since the others may be away. An upload of which a part f is taken counts as 1 / f
uploads, at most `SHARE`: it makes those of others as stale as a whole one. If clients with fewer than `KNOWN` accepted
uploads send more than `NEW_SHARE` of all uploads, their blame is at least the harm of the upload: otherwise an attacker
could use a new name for every upload.

*Idle.* An upload that hardly changes anything is rejected. It would only increase the staleness of others, and lower
the usual norm.

"Usual" is the median over clients, of the last accepted upload of each. New clients are left out once `ENOUGH` others
are known. A rejected upload changes nothing but its client's blame. The numbers below were chosen on seeds 10 to 14 and
30 to 34 of `benchmarks/poison.py` and on the small federation of `tests/core/adversary.py`.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from cdfl.core.defence import NO_DEFENCE, Defence, Limited, bounded
from cdfl.core.estimate import reevaluated
from cdfl.core.settings import RateSettings, Settings
from cdfl.core.state import ACCEPTED, ClientMemory, Evaluate, ServerState, Upload, Verdict
from cdfl.core.update import take_step

WINDOW = 100  # clients that are remembered: those that uploaded last
ENOUGH = 5  # clients before anything is usual
LONGEST = 1.5  # times the usual norm
IDLE = 0.05  # times the usual norm: a shorter change is none
FORGIVING = 0.8  # share of its blame that a client keeps at its next upload
LEAST_HARM, MOST_HARM = -2.0, 2.3  # bounds of the harm of one upload; the first one alone is no reason to refuse it
TOLERATED, REFUSED = 0.45, 1.25  # up to this blame a client takes its whole step; from that one on, none
SLACK = 0.2  # the effects on clusters differ more between honest clients
FADING = 4  # power of the share of the step between the two
FALL, CLIMB = 0.1, 0.01  # how fast a cluster's level follows its loss down and up
RISE = 10.0  # times the usual change of a cluster's loss in a step
FIRST_RISE = 0.1  # times the loss, before a change is usual
SHARE, BURST = 3.0, 10.0  # uploads of one client: times those of others, and how many at once
KNOWN = 3  # accepted uploads after which a client is no newcomer
NEW_SHARE, NEW_BURST = 0.2, 50.0  # uploads of all newcomers together: of all uploads, and how many at once
TRIAL_SAMPLES = 100  # of each proxy set: enough to try steps on; with 32, chance hides who does harm
ACTIVE = 24 * 3600.0  # seconds after its last upload that a client counts as one of those that share
ANYWAY = 600.0  # seconds in which every client may upload once, although the others do not

UNMOVED = "the upload moved no cluster, and you keep the model that you were sent"
OFTEN = (
    "you upload more often than others (one that makes models worse counts as several); wait for them or ten minutes"
)
NO_CHANGE = "it hardly differs from the model that you were sent; train longer, or upload when your data have changed"
MANY_NEW = "many uploads of new clients have come, and this one makes models worse; upload again later"
HARM = (
    "your uploads make models worse, compared with those of others; check data and labels, train with a smaller "
    "learning_rate, or add less noise for privacy; better uploads count again"
)
LIFTS = "it would make every cluster that it moves worse than it has been lately"


class _Client(NamedTuple):
    """What is remembered of a client: `ClientMemory.defence`."""

    uploads: float = 0.0  # accepted ones
    epoch: float = 0.0  # of the last accepted one; names its row in the server's memory
    time: float = 0.0  # of that one
    credit: float = BURST  # uploads that it may make at once
    sent_blame: float = 0.0  # for what its steps do to the models that it was sent
    moved_blame: float = 0.0  # for what they do to the clusters that they move

    @property
    def is_new(self) -> bool:
        return self.uploads < KNOWN

    @property
    def blame(self) -> float:
        """The larger one."""
        return max(self.sent_blame, self.moved_blame - SLACK)

    def blamed(self, harms: "_Effects") -> "_Client":
        """Move the running means of harm."""
        kept = min(FORGIVING, (self.uploads + 1) / (self.uploads + 2))
        return self._replace(
            sent_blame=kept * self.sent_blame + (1 - kept) * harms.sent,
            moved_blame=kept * self.moved_blame + (1 - kept) * harms.moved,
        )


class _Effects(NamedTuple):
    """What a step does to losses, or the harm of that."""

    sent: float  # to the losses of the model that the client was sent
    moved: float  # to those of the clusters that move


class _Row(NamedTuple):
    """The last accepted upload of a client. The changes of the K cluster losses follow; -1 if not moved."""

    epoch: float
    time: float
    is_known: float  # 1 if the client is no newcomer
    sent: float  # its effects
    moved: float
    norm: float  # of the change of the parameters, after it was shortened
    statistics: float  # of the change of the statistics


COLUMNS = {name: place for place, name in enumerate(_Row._fields)}
WIDTH = len(COLUMNS)


@dataclass(frozen=True, eq=False)
class _Memory:
    """What the server remembers, packed into one tensor: a row about newcomers and levels, then the clients' rows."""

    new_credit: float  # uploads that newcomers may make at once
    new_epoch: float  # when that was counted
    levels: Tensor  # (K,) of the clusters; empty before the first upload
    rows: Tensor  # (n, WIDTH + K)

    @classmethod
    def of(cls, memory: Tensor) -> "_Memory":
        if memory.numel() == 0:
            return cls(NEW_BURST, 0.0, memory, memory.reshape(0, WIDTH))
        first = memory[0]
        return cls(float(first[0]), float(first[1]), first[WIDTH:], memory[1:])

    def packed(self) -> Tensor:
        first = [self.new_credit, self.new_epoch, *[0.0] * (WIDTH - 2), *self.levels.tolist()]
        return torch.cat([torch.tensor([first], dtype=torch.float64), self.rows])

    @cached_property
    def has_known(self) -> bool:
        """Whether enough clients are known that new ones do not say what is usual."""
        return int((self.rows[:, COLUMNS["is_known"]] > 0).sum()) >= ENOUGH

    @cached_property
    def usual(self) -> Tensor:
        """The rows that say what is usual."""
        return self.rows[self.rows[:, COLUMNS["is_known"]] > 0] if self.has_known else self.rows

    def has_many_new(self, epoch: float) -> bool:
        """Whether new clients have more than their share of all uploads."""
        return self.has_known and self.new_credit + NEW_SHARE * (epoch - self.new_epoch) < 1

    def column(self, name: str) -> Tensor:
        """A column of `usual`."""
        return self.usual[:, COLUMNS[name]]

    def harms_of(self, effects: _Effects) -> _Effects:
        """How far effects are above the usual ones, in units of usual effects, within bounds.

        0 if nothing is usual yet.
        """
        harms = []
        for name, effect in effects._asdict().items():
            usual = self.column(name)
            size = _median(usual.abs()) if len(usual) >= ENOUGH else 0.0
            times = (effect - _median(usual)) / size if size else 0.0
            harms.append(min(MOST_HARM, max(LEAST_HARM, times)))
        return _Effects(*harms)


@dataclass(frozen=True)
class Guard:
    """The defence that the module describes. `trial` evaluates tried steps; it may use parts of the proxy sets."""

    base_rate: float
    trial: Evaluate | None = None
    needs_base: ClassVar[bool] = True
    counts_deprecated: ClassVar[bool] = False

    def admit(self, state: ServerState, upload: Upload, client: ClientMemory) -> tuple[Upload, Verdict]:
        """Refuse a client that uploads more than its share; bound the change."""
        known, memory = _Client(*client.defence), _Memory.of(state.defence_memory)
        if _credit(state.epoch + 1, upload.time, known, memory) < 1:
            return upload, Verdict(False, client=client.defence, reason=f"{OFTEN}; {UNMOVED}")
        return _bounded(state, upload, memory), ACCEPTED

    def limit(
        self,
        state: ServerState,
        upload: Upload,
        rates: Tensor,
        client: ClientMemory,
        settings: RateSettings,
        evaluate: Evaluate,
    ) -> Limited:
        """Try the step; refuse it, or allow as much of it as the levels of the clusters do."""
        epoch, known, memory = state.epoch + 1, _Client(*client.defence), _Memory.of(state.defence_memory)
        if _is_idle(_norms(upload, state.num_parameters)[0], memory):
            return _refused(state, rates, Verdict(False, (), client.defence, f"{NO_CHANGE}; {UNMOVED}"))
        state = reevaluated(state, evaluate)
        effects = self._effects(state, upload, rates, evaluate)
        is_bounded = all(effect < math.inf for effect in effects)  # NaN is not
        harms = memory.harms_of(effects) if is_bounded else _Effects(MOST_HARM, MOST_HARM)
        harm, known = max(harms.sent, harms.moved - SLACK), known.blamed(harms)
        is_one_of_many = known.is_new and memory.has_many_new(epoch)
        factor = _factor(max(known.blame, harm) if is_one_of_many else known.blame) if is_bounded else 0.0
        if factor == 0:
            reason = MANY_NEW if is_one_of_many else HARM
            return _refused(state, rates, Verdict(False, (harm,), known, f"{reason}; {UNMOVED}"))
        allowed, losses, changes = _within_levels(state, upload, factor * rates, memory, settings, evaluate)
        if rates.any() and not allowed.any():
            return _refused(state, rates, Verdict(False, (harm,), known, f"{LIFTS}; {UNMOVED}", upload.bounds))
        norms = _norms(upload, state.num_parameters)
        row = _Row(
            epoch, upload.time, float(known.uploads + 1 >= KNOWN), _finite(effects.sent), _finite(effects.moved), *norms
        )
        seen = (known.epoch, *row, *changes.tolist(), *losses.tolist())
        credit = max(0.0, _credit(epoch, upload.time, known, memory) - min(SHARE, 1 / factor))
        after = known._replace(uploads=known.uploads + 1, epoch=float(epoch), time=upload.time, credit=credit)
        return Limited(allowed, losses, Verdict(True, seen, after, bounds=upload.bounds))

    def remember(self, memory: Tensor, verdict: Verdict) -> Tensor:
        """Replace the client's row; move the levels of the clusters towards their losses."""
        numbers = torch.tensor(verdict.seen, dtype=torch.float64)
        replaces, row = float(numbers[0]), _Row(*numbers[1 : 1 + WIDTH].tolist())
        changes, losses = numbers[1 + WIDTH :].reshape(2, -1)
        before = _Memory.of(memory)
        if len(before.levels) == 0:
            before = replace(before, levels=losses, rows=before.rows.new_empty(0, WIDTH + len(losses)))
        gaps = losses - before.levels
        levels = before.levels + torch.where(changes < 0, 0.0, torch.where(gaps < 0, FALL, CLIMB)) * gaps
        credit = min(NEW_BURST, before.new_credit + NEW_SHARE * (row.epoch - before.new_epoch)) - (not row.is_known)
        rows = before.rows[before.rows[:, 0] != replaces]
        if row.is_known or not before.has_known:  # otherwise new names would displace known ones
            rows = torch.cat([rows, torch.cat([numbers[1 : 1 + WIDTH], changes])[None]])[-WINDOW:]
        return _Memory(max(0.0, credit), row.epoch, levels, rows).packed()

    def _effects(self, state: ServerState, upload: Upload, rates: Tensor, evaluate: Evaluate) -> _Effects:
        assert upload.base_model is not None  # noqa: S101  `needs_base`
        moved = rates.nonzero().flatten()
        if len(moved) == 0:
            return _Effects(0.0, 0.0)
        shares, models = rates[moved] / rates.sum(), state.cluster_models
        average = shares.to(models) @ models[moved.to(models.device)]
        step = self.base_rate * (upload.local_model.to(models) - upload.base_model.to(models))
        step[_count(state) :] = 0
        on_base = tried_on_base(upload, _count(state)).to(models)
        tried = torch.cat([on_base, torch.stack([average + step, average - step])])  # (4, P)
        losses = (self.trial or evaluate)(tried.repeat_interleave(len(moved), dim=0), moved.repeat(4)).double().cpu()
        trained, opposite, after, opposite_after = (losses.reshape(4, len(moved)) @ shares.cpu()).tolist()
        return _Effects((trained - opposite) / 2, (after - opposite_after) / 2)  # NaN if a loss is


def tried_on_base(upload: Upload, num_parameters: int) -> Tensor:
    """Return the upload v, and its opposite 2u - v with the statistics of v (2, P)."""
    assert upload.base_model is not None  # noqa: S101  `needs_base`
    opposite, base_model = upload.local_model.clone(), upload.base_model.to(upload.local_model)[:num_parameters]
    opposite[:num_parameters] = base_model - (upload.local_model[:num_parameters] - base_model)
    return torch.stack([upload.local_model, opposite])


def defence_of(settings: Settings, trial: Evaluate | None = None) -> Defence:
    """Return the defence that the settings name."""
    return Guard(settings.rates.base_rate, trial) if settings.guard else NO_DEFENCE


def is_healthy(state: ServerState, best: ServerState, usual: ServerState) -> bool:
    """Return whether no cluster is above the level that it had, within what the guard allows.

    `best` is the state with the lowest losses. `usual` says how much losses change; the first state of a server does
    not know that, and is often the best.
    """
    limits = torch.maximum(best.cluster_losses, _limits(best.cluster_losses, _Memory.of(usual.defence_memory)))
    return bool((state.cluster_losses <= limits).all())


# -- share


def _credit(epoch: int, time: float, known: _Client, memory: _Memory) -> float:
    """Return how many uploads a client may make now. Each upload of any client earns it `SHARE` times its share.

    New clients share, too: when the first clients are known, most others are still new. Where many clients are away,
    those that remain earn less than they use, so time earns them something, too.
    """
    num_active = int((memory.rows[:, COLUMNS["time"]] > time - ACTIVE).sum())
    earned = SHARE * (epoch - known.epoch) / max(1, num_active) + max(0.0, time - known.time) / ANYWAY
    return min(BURST, known.credit + earned)


# -- bound


def _bounded(state: ServerState, upload: Upload, memory: _Memory) -> Upload:
    """Shorten the change of the parameters, and that of the statistics, to `LONGEST` times the usual norm.

    Before there is a usual norm, to that of the longest cluster.
    """
    count = _count(state)
    if len(memory.usual) >= ENOUGH:
        longest = [LONGEST * _median(memory.column(name)) for name in ("norm", "statistics")]
    else:
        longest = [
            float(part.double().norm(dim=1).max()) if part.numel() else 0.0
            for part in (state.cluster_models[:, :count], state.cluster_models[:, count:])
        ]
    norms = _norms(upload, count)
    factors = [most / norm if norm > most else 1.0 for norm, most in zip(norms, longest, strict=True)]
    return bounded(upload, count, factors)


def _count(state: ServerState) -> int:
    """Return the number of parameters; statistics follow them."""
    return state.cluster_models.shape[1] if state.num_parameters is None else state.num_parameters


def _is_idle(norm: float, memory: _Memory) -> bool:
    """Return whether a change is so short that it is none."""
    return norm <= (IDLE * _median(memory.column("norm")) if len(memory.usual) >= ENOUGH else 0.0)


def _norms(upload: Upload, num_parameters: int | None) -> tuple[float, float]:
    """Return the norms of the changes of the parameters and of the statistics."""
    assert upload.base_model is not None  # noqa: S101  `needs_base`
    local_model, base_model = upload.local_model, upload.base_model.to(upload.local_model)
    count = len(local_model) if num_parameters is None else num_parameters
    return float(torch.dist(local_model[:count], base_model[:count])), float(
        torch.dist(local_model[count:], base_model[count:])
    )


# -- blame


def _factor(blame: float) -> float:
    """Return how much of a client's step is taken: from 1 to 0."""
    return min(1.0, max(0.0, (REFUSED - blame) / (REFUSED - TOLERATED))) ** FADING


# -- level


def _within_levels(
    state: ServerState, upload: Upload, rates: Tensor, memory: _Memory, settings: RateSettings, evaluate: Evaluate
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rates that the levels allow (K,), the losses then, and how much each changed; -1 if not moved.

    A cluster that would rise too far moves half as far, or else not at all.
    """
    before = state.cluster_losses
    limits = torch.maximum(before, _limits(before, memory))
    losses = _losses_then(state, upload, rates, settings, evaluate, rates > 0)
    is_too_high = ~(losses <= limits)  # NaN is too high
    if is_too_high.any():
        rates = torch.where(is_too_high, 0.5 * rates, rates)
        halved = _losses_then(state, upload, rates, settings, evaluate, is_too_high)
        losses = torch.where(is_too_high, halved, losses)
        rates = torch.where(losses <= limits, rates, 0.0)
        losses = torch.where(rates > 0, losses, before)
    return rates, losses, torch.where(rates > 0, (losses - before).abs(), -1.0)


def _limits(losses: Tensor, memory: _Memory) -> Tensor:
    """Return how high the loss of each cluster may be (K,)."""
    if len(memory.levels) == 0:
        return losses + FIRST_RISE * losses.abs()
    rises = [FIRST_RISE * abs(level) for level in memory.levels.tolist()]
    for cluster, changes in enumerate(memory.usual[:, WIDTH:].T):
        moved = changes[changes >= 0]
        if len(moved) >= ENOUGH:
            rises[cluster] = RISE * _median(moved)
    return memory.levels + torch.tensor(rises, dtype=torch.float64)


def _losses_then(
    state: ServerState, upload: Upload, rates: Tensor, settings: RateSettings, evaluate: Evaluate, wanted: Tensor
) -> Tensor:
    """Return the losses (K,) of the clusters after a step at these rates; as before for those that are not `wanted`."""
    places = wanted.nonzero().flatten()
    if len(places) == 0:
        return state.cluster_losses
    models = take_step(state, upload, rates, settings)[places.to(state.cluster_models.device)]
    return state.cluster_losses.index_copy(0, places, evaluate(models, places).double().cpu())


def _refused(state: ServerState, rates: Tensor, verdict: Verdict) -> Limited:
    return Limited(torch.zeros_like(rates), state.cluster_losses, verdict)


def _median(values: Tensor) -> float:
    """Return the median, the lower one of two; 0 of nothing."""
    return float(values.median()) if len(values) else 0.0


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0
