"""Theorem 1 in words: what follows from what was measured with several rho."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CLEARLY = 0.05  # of a gradient: less is no difference


@dataclass(frozen=True)
class Measured:
    """What `cdfl.paper.theorem.summarize` gave for one rho, mean over clusters."""

    rho: float
    stored: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.stored[name]

    def mean(self, name: str) -> float:
        """The mean of one number of clusters."""
        return float(np.mean([cluster[name] for cluster in self["clusters"]]))

    @property
    def terms(self) -> dict[str, float]:
        """The four terms of the bound."""
        clusters = [cluster["terms"] for cluster in self["clusters"]]
        return {name: float(np.mean([terms[name] for terms in clusters])) for name in clusters[0]}

    @property
    def bound(self) -> float:
        """Their sum."""
        return sum(self.terms.values())

    @property
    def excess(self) -> float:
        """How many times V_1 the bound is."""
        return self.bound / float(self["v1"])

    @property
    def curve(self) -> np.ndarray:
        """The squared gradient over the updates of a cluster."""
        curves = [cluster["curve"] for cluster in self["clusters"]]
        length = min(map(len, curves))
        mean: np.ndarray = np.mean([curve[:length] for curve in curves], axis=0)
        return mean

    @property
    def ends(self) -> tuple[float, float]:
        """The means of the first and of the last quarter of that curve."""
        curve = self.curve
        quarter = max(1, len(curve) // 4)
        return float(curve[:quarter].mean()), float(curve[-quarter:].mean())

    @property
    def falls(self) -> list[float]:
        """F_k(w_k^0) - F_k(w_k^S) of every cluster and seed."""
        return [fall for cluster in self["clusters"] for fall in cluster["falls"]]

    @property
    def fall(self) -> float:
        """Their mean."""
        return float(np.mean(self.falls))


def words(found: Sequence[Measured], epsilon: float) -> str:
    """What follows from the tables, and what is wrong with the theorem whatever they say."""
    least = min(one.excess for one in found)
    most = min(one.terms["distances"] / one.bound for one in found)
    apart = [1 - one["aligned"] for one in found]
    return f"""\
- **The bound is vacuous.** Assumption 3 grants that no squared gradient of a client is above V_1; F_k is the loss of a
  client of cluster k alone, so its gradient is below V_1 without any theorem. The bound is {least:,.0f} times V_1 or
  more, although epsilon, which the theorem wants small, is {epsilon:g} here and the bound grows as 1 / epsilon. Its
  term of squared distances between clusters is {most:.0%} of it or more; of the four, only the first falls with S_k.
- **The condition on rho is never met.** It asks for rho >= V_1 / d^2 + 1/4 + sqrt((1 + V_1) epsilon) / d at the
  distance d = ||v - u|| of every local step. At the first step d = 0, where no rho is enough. Later, with steps
  gamma <= 1 / rho, d stays below sqrt(V_1) / rho: each step shortens v - u by a part gamma rho of it and adds at most
  gamma sqrt(V_1). So V_1 / d^2 >= rho^2, and the condition would need (rho - 1/2)^2 < 0. This holds for every problem.
- **Two steps of the proof do not follow.** It replaces (||grad F_k||^2 + ||grad f_m||^2) / 2 by epsilon, which needs
  V_1 <= epsilon; and its quadratic inequality in rho has a larger root than the one that is printed.
- **What the condition is for does not hold either.** The proof needs it to keep the gradients of J_k and J_m from
  pointing apart at any step; here they do at {min(apart):.0%} to {max(apart):.0%} of the steps, depending on rho.
- **The gradient itself** {_gradient(found)}
- **F_k**, the loss of a cluster's model on all data of its cluster, {_falls(found)}
"""


def in_short(found: Sequence[Measured]) -> str:
    """How far the bound and the condition are from what happens."""
    least = min(one.excess for one in found)
    short = min(one["needed_at_largest"] / one.rho for one in found)
    rising = [f"{one.rho:g}" for one in found if one.fall < 0]
    told = f"The bound of Theorem 1 is at least {least:,.0f} times what its own Assumption 3 grants, and the rho that "
    told += (
        f"it asks for is at least {short:.1f} times the one used at every distance that occurs, for every rho tried."
    )
    return told + (f" The loss it is about rises over the run with rho {listed(rising)}." if rising else "") + "\n"


def _gradient(found: Sequence[Measured]) -> str:
    """Where it goes, and how that compares with clients that hardly move."""
    ends = {one.rho: one.ends for one in found}
    moves = listed(f"{_percent(last / first - 1)} with rho {rho:g}" for rho, (first, last) in ends.items())
    told = f"changes from the first to the last quarter of updates by {moves}."
    stiff = max(found, key=lambda one: one.rho)
    _, level = ends.pop(stiff.rho)
    if ends:
        over = {rho: last / level - 1 for rho, (_, last) in ends.items()}
        below = [f"{rho:g}" for rho, part in over.items() if part < -CLEARLY]
        told += f" Clients with rho {stiff.rho:g} never go further than {stiff['largest_distance']:.2g} from what they"
        told += f" received, and see {level:.4f} in the last quarter. Others see, compared with that, "
        told += listed(f"{_percent(part)} with rho {rho:g}" for rho, part in over.items())
        told += f"; clearly (by {CLEARLY:.0%}) less with {f'rho {listed(below)}' if below else 'none'}."
    return told


def _falls(found: Sequence[Measured]) -> str:
    """With which rho clusters end better than they began, and with which worse."""
    parts = []
    for sign, word in ((1, "falls"), (-1, "rises")):
        which = []
        for one in found:
            if sign * one.fall > 0:
                count = sum(sign * fall > 0 for fall in one.falls)
                seen = f"in {count} of {len(one.falls)} clusters and seeds"
                which.append(f"rho {one.rho:g} (by {abs(one.fall):.3f}; {seen})")
        if which:
            parts.append(f"{word} with {listed(which)}")
    told = "; it ".join(parts) + "."
    return told + (" Where it rises, clusters end worse than they began." if "rises" in told else "")


def listed(names: Iterable[str]) -> str:
    """Names as in a sentence.

    >>> listed(["0.1", "1", "10"])
    '0.1, 1 and 10'
    """
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _percent(part: float) -> str:
    return f"{round(part, 2) + 0.0:+.0%}"  # no -0%
