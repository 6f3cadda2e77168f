"""Tables: one row a sample, clusters by a column or by a function."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cdfl.argument_checks import did_you_mean
from cdfl.data.clusters import Cluster, Load
from cdfl.data.errors import DataError
from cdfl.data.user_data import halved
from cdfl.json_values import jsonable

Columns = dict[str, np.ndarray]  # name -> values (N,)
MOST_WORDS = 20  # a column of words with more different ones is no category
MOST_CLUSTERS = 50
FEW_WORDS = 0.1  # a column of numbers with a smaller share of words has mistakes
OTHER_SEPARATORS = (";", "\t", "|")
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")  # how .csv files say that a number is missing


@dataclass(frozen=True, eq=False)
class Table:
    """A recipe for clusters: rows of a table with the same value in column `by`, or of the function `by`.

    Args:
        source: A DataFrame, a dict of columns, the path of a .csv file, or the name of a dataset.
        target: The column to predict.
        by: A column whose values are the clusters, or a function of the columns that gives each row's cluster.
        features: The columns to predict from. Default: all others.
        scale: Subtract the mean of numbers and divide by their deviation. Applies to predicted numbers, too.
        classes: Whether targets are classes. Default: words are, and whole numbers if there are at most 50 of them.

    """

    source: Any
    target: str
    by: str | Callable[[Columns], Any]
    features: str | Sequence[str] | None = None
    scale: bool = True
    classes: bool | None = None

    def __post_init__(self) -> None:
        if self.features is None:
            return
        named = (self.features,) if isinstance(self.features, str) else tuple(self.features)
        if not named:
            raise DataError("features is empty; name the columns to predict from, or omit it for all others")
        if self.target in named:
            raise DataError(f"features has the target {self.target!r}, which clients do not know; omit it there")
        object.__setattr__(self, "features", named)

    @property
    def num_clusters(self) -> int:
        """The number of different values of `by`; reads the table unless it is in memory."""
        return len(np.unique(self._kinds(self._columns(_load_here))))

    def build(self, load: Load) -> list[Cluster]:
        """Read the table and divide its rows."""
        columns = self._columns(load)
        kinds = self._kinds(columns)
        names = self.features or [name for name in columns if name not in (self.target, self.by)]
        for name in (*names, self.target):
            _check_column(columns, name)
        inputs = np.concatenate([self._feature(name, columns[name]) for name in names], axis=1)
        targets, classes, note = self._targets(columns[self.target])
        clusters = []
        for kind in np.unique(kinds):
            rows = np.flatnonzero(kinds == kind)
            chosen = torch.from_numpy(inputs[rows]), targets[torch.from_numpy(rows)]
            own = halved(f"{self._by_name}={kind}" if self._by_name else str(kind), *chosen, classes, notes=note)
            clusters.append(Cluster(own.name, own))
        return clusters

    def to_jsonable(self) -> dict[str, Any]:
        """Return what a run's config stores of it."""
        source = self.source if isinstance(self.source, str | Path) else _digest(self._columns(_load_here))
        chosen = {"target": self.target, "by": jsonable(self.by), "features": self.features and list(self.features)}
        return {"kind": "Table", "source": str(source), **chosen, "scale": self.scale, "classes": self.classes}

    @property
    def _by_name(self) -> str:
        return self.by if isinstance(self.by, str) else ""

    def _columns(self, load: Load) -> Columns:
        given = load(str(self.source)) if isinstance(self.source, str | Path) else self.source
        columns = columns_of(given)
        for name in (self.target, *(self.features or ()), *([self.by] if isinstance(self.by, str) else [])):
            if name not in columns:
                raise _no_column(name, columns)
        return columns

    def _kinds(self, columns: Columns) -> np.ndarray:
        rows = len(columns[self.target])
        if isinstance(self.by, str):
            _check_column(columns, self.by)
            kinds = columns[self.by]
        else:
            kinds = self._called(columns)
            if kinds.shape != (rows,):
                raise DataError(
                    f"`by` gave values of shape {list(kinds.shape)} for {rows} rows; expected the cluster of each row"
                )
            gone = np.flatnonzero(_missing(kinds))
            if len(gone):
                raise DataError(
                    f"`by` gives no cluster for row {gone[0]}, counted from 0, as for {len(gone)} of {rows} rows; "
                    "expected one for each"
                )
        different = len(np.unique(kinds))
        if different > MOST_CLUSTERS:
            what = f"column {self.by!r} has" if isinstance(self.by, str) else "`by` gives"
            raise DataError(
                f"{what} {different} different values; expected at most {MOST_CLUSTERS} clusters: use a function, such "
                "as by=lambda table: table['age'] > 50"
            )
        return kinds

    def _called(self, columns: Columns) -> np.ndarray:
        """Return what the function `by` makes of the columns."""
        by: Any = self.by
        try:
            return np.asarray(by(_Columns(columns)))
        except DataError:
            raise
        except Exception as error:
            raise DataError(
                f"`by` failed with {type(error).__name__}: {error}; expected a function of the columns, which are "
                "arrays by name, such as by=lambda table: table['age'] > 50"
            ) from error

    def _feature(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return a feature as float32 (N, width): numbers as one column, words as one for each word."""
        if values.dtype.kind in "biuf":
            return (_scaled(values) if self.scale else values.astype(np.float64)).astype(np.float32)[:, None]
        words = np.unique(values)
        if len(words) > MOST_WORDS:
            raise DataError(
                f"column {name!r} has {len(words)} different words, such as {str(words[0])!r}; expected numbers, or at "
                f"most {MOST_WORDS} words: leave it out with features=[...]"
            )
        found: np.ndarray = (values[:, None] == words[None]).astype(np.float32)
        return found

    def _targets(self, values: np.ndarray) -> tuple[Tensor, int | None, tuple[str, ...]]:
        """Return the targets, the number of classes if they are classes, and what to note about them."""
        if self._are_classes(values):
            classes, numbered = np.unique(values, return_inverse=True)
            return torch.from_numpy(numbered.astype(np.int64)), len(classes), ()
        numbers = values.astype(np.float64)
        note = f"{self.target} is in deviations of {numbers.std():.4g} from its mean {numbers.mean():.4g}"
        found = _scaled(numbers) if self.scale else numbers
        return torch.from_numpy(found.astype(np.float32))[:, None], None, (note,) if self.scale else ()

    def _are_classes(self, values: np.ndarray) -> bool:
        if values.dtype.kind not in "iuf":
            return True
        if self.classes is not None:
            return self.classes
        return bool(np.array_equal(values, np.rint(values))) and len(np.unique(values)) <= MOST_CLUSTERS


@dataclass(frozen=True)
class Quantiles:
    """Divide rows into `count` clusters of about equal size by the values of a column; for `Table(by=...)`.

    >>> Quantiles("age", 2)({"age": np.array([30, 60, 50, 20])}).tolist()
    ['age 1/2', 'age 2/2', 'age 2/2', 'age 1/2']
    """

    column: str
    count: int

    def __call__(self, columns: Columns) -> np.ndarray:
        """Return the cluster of each row."""
        if self.column not in columns:
            raise _no_column(self.column, columns)
        values = columns[self.column]
        bars = np.quantile(values, np.arange(1, self.count) / self.count)
        parts = np.searchsorted(bars, values, side="right")
        return np.array([f"{self.column} {part + 1}/{self.count}" for part in parts])


class _Columns(dict[str, np.ndarray]):
    """The columns that a user's function gets: a name that is not there is an error with a hint."""

    def __missing__(self, name: str) -> np.ndarray:
        raise _no_column(name, self)


def _no_column(name: str, columns: Columns) -> DataError:
    there = f"there are {', '.join(columns)}{did_you_mean(name, columns)}"
    return DataError(f"the table has no column {name!r}; {there}")


def columns_of(table: Any) -> Columns:
    """Return the columns of a DataFrame or of a mapping, each as an array of numbers or of words."""
    if hasattr(table, "to_dict") and hasattr(table, "columns"):  # pandas, polars
        table = {str(name): table[name] for name in table.columns}
    if not isinstance(table, Mapping):
        raise DataError(
            f"a table is of type {type(table).__name__}; expected a DataFrame, a dict of columns, or the path of a .csv"
        )
    if not table:
        raise DataError("the table has no columns")
    columns = {str(name): _column(str(name), values) for name, values in table.items()}
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise DataError(f"the columns of the table have different lengths: {sorted(lengths)}; expected one")
    return columns


def read_csv(path: Path) -> Columns:
    """Read a .csv file whose first line names the columns. A column of numbers becomes numbers, others words."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not a text file in UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if len(rows) < 2:
        raise DataError(f"{path} has {len(rows)} lines; expected one with the names of the columns, and the rows")
    header, *body = rows
    header = [name.strip() for name in header]
    other = next((mark for mark in OTHER_SEPARATORS if len(header) == 1 and mark in header[0]), None)
    if other is not None:
        raise DataError(
            f"{path} separates its columns by {other!r}; expected commas: save it so, or read it with "
            f"pandas.read_csv(..., sep={other!r}) and give the DataFrame"
        )
    if twice := [name for name in header if header.count(name) > 1]:
        raise DataError(f"{path} has {header.count(twice[0])} columns named {twice[0]!r}; give each a name of its own")
    body = [row for row in body if row]
    for number, row in enumerate(body, start=2):
        if len(row) != len(header):
            raise DataError(f"{path}, line {number}: {len(row)} values for {len(header)} columns; expected as many")
    return {name: _parsed(path, name, [row[place].strip() for row in body]) for place, name in enumerate(header)}


def _parsed(path: Path, name: str, words: Sequence[str]) -> np.ndarray:
    numbers = np.array([_number(word) for word in words])
    others = [place for place, word in enumerate(words) if np.isnan(numbers[place]) and word.lower() not in MISSING]
    if others:
        if len(others) < FEW_WORDS * len(words):  # probably a mistake; as words, each number would be a column
            word, line = words[others[0]], others[0] + 2
            raise DataError(
                f"{path}, line {line}: {word!r} is no number, but {len(words) - len(others)} of {len(words)} values in "
                f"column {name!r} are; correct it, or leave it empty if it is missing"
            )
        return np.array(words)
    whole = np.isfinite(numbers).all() and np.array_equal(numbers, np.rint(numbers))
    return numbers.astype(np.int64) if whole else numbers


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return np.nan


def _column(name: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"column {name!r} has shape {list(array.shape)}; expected one value a row")
    if array.dtype.kind in "biufUS":
        return array
    empty = np.array([value is None or value != value for value in array.tolist()])
    if array.dtype.kind == "O" and all(isinstance(value, int | float) for value in array[~empty].tolist()):
        return np.array([np.nan if gone else float(value) for value, gone in zip(array, empty, strict=True)])
    return np.array(["" if gone else str(value) for value, gone in zip(array.tolist(), empty, strict=True)])


def _check_column(columns: Columns, name: str) -> None:
    """Raise DataError for a column with missing values."""
    values = columns[name]
    gone = np.flatnonzero(_missing(values))
    if len(gone):
        raise DataError(
            f"column {name!r}, row {gone[0]}, counted from 0: the value is missing, as in {len(gone)} of "
            f"{len(values)} rows; drop these rows, or fill the values"
        )


def _missing(values: np.ndarray) -> np.ndarray:
    """Return which values are missing, (N,)."""
    if values.dtype.kind in "US":
        return np.asarray(values == "")
    return ~np.isfinite(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)


def _scaled(values: np.ndarray) -> np.ndarray:
    numbers = values.astype(np.float64)
    scaled: np.ndarray = (numbers - numbers.mean()) / (numbers.std() or 1.0)
    return scaled


def _load_here(source: str) -> Any:
    from cdfl.data.sources import load_source

    return load_source(source)


def _digest(columns: Columns) -> str:
    import hashlib

    found = hashlib.sha256()
    for name, values in columns.items():
        found.update(name.encode() + values.tobytes())
    return f"{len(next(iter(columns.values())))} rows, sha256 {found.hexdigest()[:16]}"
