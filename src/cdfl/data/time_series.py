"""Series: predict the next values from a window of earlier ones; one cluster for each series, or set of series."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from cdfl.data.clusters import Cluster, Load
from cdfl.data.errors import DataError
from cdfl.data.user_data import halved

BLOCKS = 16  # parts of one long series that are kept whole


@dataclass(frozen=True, eq=False)
class Windows:
    """A recipe for clusters: windows of `length` steps, and the `horizon` values after each as its target.

    Args:
        series: For each cluster, by name, one long series (T,), or several (N, T); or the name of a dataset of series.
        length: Steps that are seen.
        horizon: Steps that are predicted.
        stride: Steps from one window to the next.

    Windows never cross from one of several series to another, and each series is in one set only. A single long one is
    cut into parts that are kept whole.

    """

    series: Mapping[str, Any] | str
    length: int
    horizon: int = 1
    stride: int = 1

    def __post_init__(self) -> None:
        for name in ("length", "horizon", "stride"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1 step")

    @property
    def source(self) -> str:
        """The name of the dataset, if it is one."""
        return self.series if isinstance(self.series, str) else ""

    @cached_property
    def num_clusters(self) -> int:
        """One for each named series; reads the dataset if only its name is given."""
        if not isinstance(self.series, str):
            return len(_named(self.series))
        from cdfl.data.sources import load_source

        return len(_named(load_source(self.series)))

    def build(self, load: Load) -> list[Cluster]:
        """Cut the windows."""
        given = load(self.series) if isinstance(self.series, str) else self.series
        return [self._cluster(str(name), values) for name, values in _named(given).items()]

    def to_jsonable(self) -> dict[str, Any]:
        """Return what a run's config stores of it."""
        own: Any = self.series
        if not isinstance(own, str):
            own = {name: list(_numbers(str(name), values).shape) for name, values in _named(own).items()}
        return {"kind": "Windows", "series": own, "length": self.length, "horizon": self.horizon, "stride": self.stride}

    def _cluster(self, name: str, values: Any) -> Cluster:
        table = _numbers(name, values)
        if table.ndim not in (1, 2):
            raise DataError(f"series {name!r} has shape {list(table.shape)}; expected (T,), or (N, T) for several")
        bad = np.argwhere(~np.isfinite(table))
        if len(bad):
            raise DataError(
                f"series {name!r}: value {bad[0].tolist()} is {table[tuple(bad[0])]}, as are {len(bad)} of "
                f"{table.size} values; fill or drop them"
            )
        parts = list(table) if table.ndim == 2 else np.array_split(table, BLOCKS)
        whole = self.length + self.horizon
        if not table.size or min(map(len, parts)) < whole:
            steps = f"rows of {table.shape[-1]} steps" if table.ndim == 2 else f"{len(table)} steps"
            least = f"length + horizon = {whole}"
            if table.ndim == 1:
                least = f"{BLOCKS * whole}, {BLOCKS} parts of {least}"
            raise DataError(f"series {name!r} has {steps}; expected at least {least}")
        windows = [np.lib.stride_tricks.sliding_window_view(part, whole)[:: self.stride] for part in parts]
        groups = torch.arange(len(parts)).repeat_interleave(torch.tensor([len(own) for own in windows]))
        joined = torch.from_numpy(np.concatenate(windows))  # (N, length + horizon)
        inputs, targets = joined[:, : self.length].contiguous(), joined[:, self.length :].contiguous()
        return Cluster(name, halved(name, inputs, targets, groups=groups))


def _numbers(name: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values, np.float32)
    except (TypeError, ValueError):
        raise DataError(
            f"series {name!r} does not hold numbers alone, or its rows have different lengths; expected numbers "
            "(T,), or (N, T) for several"
        ) from None


def _named(given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping) or not given:
        came = "empty" if isinstance(given, Mapping) else f"of type {type(given).__name__}"
        raise DataError(f"series are {came}; expected for each cluster its series, by name")
    return given
