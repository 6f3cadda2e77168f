"""Every number the algorithm can be told, with its symbol in the paper."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

Bar = float | Literal["min"]
Floor = float | Literal["mean"]
# What was done before there was a setting, where that is not its default now: for what was written down then.
BEFORE: dict[str, Any] = {"cluster_step": "towards"}


@dataclass(frozen=True)
class Settings:
    """The settings of CDFL; the defaults are the preset `default` (`cdfl.core.paper_values` says where they come from).

    >>> Settings(base_rate=0.1).base_rate
    0.1
    >>> Settings(base_rate=25)
    Traceback (most recent call last):
    ValueError: base_rate is 25; expected a number from 0 to 1 (how far a cluster may move to one upload)
    """

    # -- estimating the mixture (Algorithm 2, DistributionEstimation)
    loss_weight: float = 0.5  # c1: weight of the losses F(v; D_k)
    gap_weight: float = 0.25  # c2: weight of the loss gaps |F(w_k; D_k) - F(v; D_k)|; distances get the rest
    sharpness: tuple[float, ...] | None = None  # A: softmax factors, applied in turn; None: one that fits main_share
    main_share: float = 0.65  # of the cluster nearest in every measure, where all others are equally far
    loss_bar: Bar = "min"  # l_bar: subtracted from the losses; a number or their minimum
    gap_bar: Bar = "min"  # d1_bar
    distance_bar: Bar = "min"  # d2_bar
    measures: Literal["plain", "relative"] = "plain"  # compared as they are, or with what is usual for each cluster

    # -- how far clusters move (Algorithm 2, UpdateRatioCompute)
    base_rate: float = 0.15  # beta_0: the furthest a cluster moves to one upload
    cluster_step: Literal["towards", "along"] = "along"  # to the upload, or along the change that training made
    rate_floor: Floor = 0.05  # beta_1bar: clusters with a smaller share do not move; a number or the mean share
    staleness_slope: float = 1 / 20  # a
    staleness_grace: float = 20.0  # b
    max_staleness: int | None = None  # tau_0: an upload older than this moves nothing; None: never too old
    staleness_hinge: Literal["paper", "continuous"] = "continuous"  # 1/(a s + 1) from b on, or 1/(a (s - b) + 1)
    cluster_epochs_set: Literal["before", "after"] = "before"  # e_k <- t before or after the staleness test
    reply_clusters: Literal["all", "moved"] = "all"  # which clusters the reply mixes: all, or those at the floor

    # -- whether an upload counts at all (not in the paper: `cdfl.core.accept`)
    max_harm: float | None = None  # times the usual harm that a newcomer may do; None: every upload counts

    # -- training on the client (equation 4)
    proximal_strength: float = 0.01  # rho
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 1e-3  # gamma
    weight_decay: float = 5e-4
    momentum: float = 0.0  # of sgd
    batch_size: int = 128
    local_epochs: int = 5  # passes over the local data

    # -- pre-training on the server, before the first upload
    shared_epochs: int = 10  # passes of one shared model over all pre-training sets; 0: clusters start apart
    separate_epochs: int = 2  # passes of each cluster over its own pre-training set, after that

    def __post_init__(self) -> None:
        """Refuse what cannot mean anything."""
        if isinstance(self.sharpness, int | float):
            object.__setattr__(self, "sharpness", (float(self.sharpness),))
        elif isinstance(self.sharpness, list):
            object.__setattr__(self, "sharpness", tuple(self.sharpness))
        check = self._check
        check("loss_weight", _is_share(self.loss_weight), "a number from 0 to 1")
        check("gap_weight", _is_share(self.gap_weight), "a number from 0 to 1")
        check(
            "loss_weight + gap_weight",
            self.loss_weight + self.gap_weight <= 1 + 1e-12,
            "at most 1: the distances get the rest",
            self.loss_weight + self.gap_weight,
        )
        check(
            "sharpness", self.sharpness is None or _are_positive(self.sharpness), "one or more numbers above 0, or None"
        )
        check("main_share", _is_share(self.main_share) and self.main_share < 1, "a number from 0 to below 1")
        for name in ("loss_bar", "gap_bar", "distance_bar"):
            bar = getattr(self, name)
            check(name, bar == "min" or _is_number(bar), "a number or 'min'")
        check(
            "base_rate",
            _is_share(self.base_rate),
            "a number from 0 to 1 (how far a cluster may move to one upload)",
        )
        check(
            "rate_floor",
            self.rate_floor == "mean" or _is_share(self.rate_floor),
            "a number from 0 to 1, or 'mean'",
        )
        check(
            "max_staleness",
            _is_count(self.max_staleness, 0, optional=True),
            "a whole number of epochs, or None",
        )
        harm = self.max_harm
        check("max_harm", harm is None or (_is_number(harm) and harm > 0), "a number above 0, or None")
        for name in ("staleness_slope", "staleness_grace", "proximal_strength", "weight_decay"):
            value = getattr(self, name)
            check(name, _is_number(value) and value >= 0, "a number, 0 or more")
        rate = self.learning_rate
        check("learning_rate", _is_number(rate) and rate > 0, "a number above 0")
        check("momentum", _is_share(self.momentum) and self.momentum < 1, "a number from 0 to below 1")
        check("momentum", self.momentum == 0 or self.optimizer == "sgd", "0 unless optimizer is 'sgd'")
        check("batch_size", _is_count(self.batch_size, 1), "a whole number, 1 or more")
        check("local_epochs", _is_count(self.local_epochs, 1), "a whole number, 1 or more")
        for name in ("shared_epochs", "separate_epochs"):
            check(name, _is_count(getattr(self, name), 0), "a whole number, 0 or more")
        for field in fields(self):
            options = get_args(field.type)
            if options and all(isinstance(option, str) for option in options):
                value = getattr(self, field.name)
                check(field.name, value in options, "one of " + ", ".join(map(repr, options)))

    @property
    def training(self) -> dict[str, Any]:
        """What trainings depend on, on clients and before the first upload; the rest is the server's alone."""
        return self._part("proximal_strength", None)

    @property
    def estimation(self) -> dict[str, Any]:
        """What the estimate of a mixture depends on; whoever does not estimate does not look at it."""
        return self._part("loss_weight", "base_rate")

    def softmax_factors(self, num_clusters: int) -> tuple[float, ...]:
        """`sharpness`, or the factor at which a cluster that is nearest in everything gets `main_share`.

        Where all others are equally far, raw shares of the nearest and of another differ by 1 / (K - 1)^2, so a factor
        that suits one number of clusters is far too sharp for fewer and far too blunt for more.

        >>> [round(Settings().softmax_factors(num_clusters)[0], 1) for num_clusters in (2, 3, 4, 6)]
        [0.6, 5.2, 15.5, 55.7]
        """
        if self.sharpness is not None:
            return self.sharpness
        others = num_clusters - 1
        odds = others * self.main_share / (1 - self.main_share)  # of the nearest against one other
        return (others**2 * math.log(max(odds, 1.0)),)  # never sharper for those that are farther

    @property
    def distance_weight(self) -> float:
        """1 - c1 - c2: the weight of the distances."""
        return max(0.0, 1.0 - self.loss_weight - self.gap_weight)

    def replace(self, **changes: Any) -> "Settings":
        """The same settings with some of them changed; names that do not exist are refused.

        >>> Settings().replace(base_rate=0.1, local_epochs=2).local_epochs
        2
        """
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                raise ValueError(f"there is no setting {name!r}; there are {', '.join(known)}")
        return replace(self, **changes)

    def _part(self, first: str, end: str | None) -> dict[str, Any]:
        names = [field.name for field in fields(self)]
        last = len(names) if end is None else names.index(end)
        return {name: getattr(self, name) for name in names[names.index(first) : last]}

    def _check(self, name: str, fine: bool, expected: str, value: object = ...) -> None:
        if not fine:
            came = getattr(self, name) if value is ... else value
            raise ValueError(f"{name} is {came!r}; expected {expected}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_positive(values: object) -> bool:
    return isinstance(values, tuple) and values != () and all(_is_number(value) and value > 0 for value in values)


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_count(value: object, least: int, *, optional: bool = False) -> bool:
    if value is None:
        return optional
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
