"""Differential privacy of uploads: clip the change of the model and add Gaussian noise.

An observer of the uploads, such as the server, can hardly tell which data a client trained on.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cdfl.argument_checks import check_number


@dataclass(frozen=True)
class Privacy:
    """The Gaussian mechanism on (local model - received model).

    >>> round(Privacy(clip=1.0, noise=8.0).epsilon(delta=1e-5), 2)
    0.93
    """

    clip: float  # the largest change (L2 norm) of the received model
    noise: float  # standard deviation of the noise on each parameter, as a multiple of `clip`

    def __post_init__(self) -> None:
        for name in ("clip", "noise"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value!r}; expected a number above 0")

    def apply(
        self, local_model: Tensor, personal_model: Tensor, num_parameters: int, rng: np.random.Generator | None = None
    ) -> Tensor:
        """Return the model to upload (P,).

        Buffers (batch-norm statistics) come after the parameters and are sent back as received: they reveal data too,
        and noise could make a variance negative. Without `rng`, the noise is seeded by the system. A retry must send
        the same bytes again; new noise would spend more privacy.
        """
        rng = np.random.default_rng() if rng is None else rng
        private = personal_model.detach().to("cpu", torch.float64).clone()
        change = local_model.detach().to("cpu", torch.float64)[:num_parameters] - private[:num_parameters]
        change *= min(1.0, self.clip / max(float(change.norm()), 1e-300))
        change += torch.from_numpy(rng.normal(0.0, self.noise * self.clip, num_parameters))
        private[:num_parameters] += change
        return private.float()

    def epsilon(self, delta: float, uploads: int = 1) -> float:
        """Return the smallest epsilon for which these uploads together are (epsilon, delta)-differentially private.

        Any two datasets of this client are neighbours: two clipped changes are at most 2 `clip` apart. The value is
        exact for the Gaussian mechanism (Balle and Wang, 2018) and under adaptive composition: n releases equal one
        with 1/sqrt(n) of the noise (Dong, Roth and Su, 2022).
        """
        if not 0 < delta < 1:
            raise ValueError(f"delta is {delta!r}; expected a number between 0 and 1, far below 1")
        check_number("uploads", uploads, 0, whole=True)
        if uploads == 0:
            return 0.0
        shift = 2.0 * math.sqrt(uploads) / self.noise  # sensitivity / standard deviation
        if _delta(0.0, shift) <= delta:
            return 0.0
        low, high = 0.0, 1.0
        while _delta(high, shift) > delta:
            low, high = high, 2 * high
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if _delta(middle, shift) > delta else (low, middle)
        return high


def _delta(epsilon: float, shift: float) -> float:
    """Return the smallest delta for epsilon if the means are `shift` deviations apart (Balle and Wang, equation 6)."""
    ends = torch.tensor([shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift], dtype=torch.float64)
    first, second = torch.special.log_ndtr(ends).tolist()
    return math.exp(first) - math.exp(min(0.0, epsilon + second))
