"""Read a user's problem: a `.toml` file, or a Python file or module that sets `problem`.

```toml
name = "my-digits"
model = "small-cnn"
num_clients = 10
num_uploads = 100

[clusters]
kind = "rotations"      # rotations, domains, labels or shifts
source = "digits"       # a dataset's name, or the path of an .npz file or of a folder of class folders
num_clusters = 2

[drift]
kind = "sudden"         # paper (the default), static, gradual, sudden, seasons, newcomer or dirichlet
every = 3

[sizes]
low = 20
high = 80
```
"""

import json
import tomllib
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from torch.nn import functional as F

from cdfl.data import DRIFTS, SOURCES, DataError, Domains, LabelPermutations, Rotations, Shifts, Sizes, Table, Texts
from cdfl.metrics import METRICS
from cdfl.models import MODELS
from cdfl.problems import Problem
from cdfl.scenarios.scenario import CLIENTS_EACH, UPLOADS_EACH, Scenario
from cdfl.user_code import SetupError, load_python

LOSSES: dict[str, Any] = {
    loss.__name__: loss
    for loss in (F.cross_entropy, F.binary_cross_entropy_with_logits, F.mse_loss, F.l1_loss, F.smooth_l1_loss)
}
CLUSTERS: dict[str, type] = {
    "rotations": Rotations,
    "domains": Domains,
    "labels": LabelPermutations,
    "shifts": Shifts,
    "table": Table,
    "texts": Texts,
}


def _is(kind: Any, value: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _all(kind: Any, value: Any) -> bool:
    return isinstance(value, list) and all(_is(kind, part) for part in value)


# For each type of a setting: a test of its value in a file, and a description.
KINDS: dict[Any, tuple[Callable[[Any], bool], str]] = {
    int: (partial(_is, int), "a whole number"),
    float: (partial(_is, int | float), "a number"),
    str: (partial(_is, str), "a word in quotes"),
    tuple[str, ...]: (partial(_all, str), "a list of words in quotes"),
    tuple[int, int, int] | None: (
        lambda value: _all(int, value) and len(value) == 3,
        "a list of three whole numbers: channels, height, width",
    ),
}
# The same for fields that are simpler in a file than in Python.
FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model": (partial(_is, str), f"one of {', '.join(MODELS)}, in quotes"),
    "loss": (lambda value: _is(str, value) and value in LOSSES, f"one of {', '.join(LOSSES)}, in quotes"),
    "metrics": (partial(_all, str), f"a list of {', '.join(METRICS)}, in quotes"),
    "settings": (partial(_is, dict), "a table"),
}
ANYTHING = (lambda value: True, "a value")
NOT_IN_FILES = ("policy", "stream", "place")


def read_python(place: str) -> Problem:
    """Read a problem from a Python file, or from a module by its dotted name; either may import its neighbours."""
    module = load_python(place, "`cdfl init` writes an example")
    found = getattr(module, "problem", None)
    if not isinstance(found, Problem):
        came = "does not set `problem`" if found is None else f"sets `problem` to {type(found).__name__}"
        raise SetupError(f"{place} {came}; expected problem = cdfl.Problem(...); `cdfl init` writes an example")
    return replace(found, place=place, name=Path(place).stem if found.name == Problem.name else found.name)


def read_toml(path: Path) -> Scenario:
    """Read a scenario from a TOML file."""
    if not path.is_file():
        raise DataError(f"there is no file {path}; expected a .toml file, or a .py file that sets `problem`")
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a TOML file: {error}") from error
    return _scenario(path, values)


def _scenario(path: Path, values: dict[str, Any]) -> Scenario:
    values = {"name": path.stem, "summary": f"from {path.name}", **values}
    if "clusters" not in values:
        raise DataError(
            f'{path} needs a table [clusters], e.g. kind = "rotations", source = "digits", num_clusters = 4'
        )
    values["clusters"] = _beside(path, _part(path, "clusters", CLUSTERS, values["clusters"]))
    if "drift" in values:
        values["drift"] = _part(path, "drift", DRIFTS, values["drift"])
    if "sizes" in values:
        values["sizes"] = _make(path, "[sizes]", Sizes, values["sizes"])
    clients = values.setdefault("num_clients", CLIENTS_EACH * values["clusters"].num_clusters)
    values.setdefault("num_uploads", UPLOADS_EACH * clients if isinstance(clients, int) else 1)
    made: Scenario = _make(path, "the file", Scenario, values)
    return made


def _part(path: Path, table: str, kinds: dict[str, type], values: Any) -> Any:
    if isinstance(values, str):  # a kind with default settings
        values = {"kind": values}
    kind = values.get("kind") if isinstance(values, dict) else values
    if not isinstance(kind, str) or kind not in kinds:
        raise DataError(f"{path}: [{table}] has kind {kind!r}; expected one of {', '.join(kinds)}")
    return _make(path, f"[{table}]", kinds[kind], {key: value for key, value in values.items() if key != "kind"})


def _make(path: Path, where: str, make: type, values: Any) -> Any:
    if not isinstance(values, dict):
        raise DataError(f"{path}: {where} is {values!r}; expected a table")
    known = {field.name: field for field in fields(make) if field.name not in NOT_IN_FILES}
    hints = get_type_hints(make)
    for key, value in values.items():
        if key not in known:
            raise DataError(f"{path}: {where} has {key!r}; expected only {', '.join(known)}")
        fits, expected = (FIELDS if make is Scenario else {}).get(key) or KINDS.get(hints[key], ANYTHING)
        if not fits(value):
            raise DataError(f"{path}: {where} has {key} = {_toml(value)}; expected {expected}")
    for key, field in known.items():
        if key not in values and field.default is MISSING and field.default_factory is MISSING:
            _, expected = (FIELDS if make is Scenario else {}).get(key) or KINDS.get(hints[key], ANYTHING)
            raise DataError(f"{path}: {where} has no {key}; expected {key} = ..., {expected}")
    if make is Scenario and "loss" in values:
        values = values | {"loss": LOSSES[values["loss"]]}
    try:
        return make(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: {where}: {error}") from error


def _toml(value: Any) -> str:
    """Return a value as it is written in the file."""
    return json.dumps(value, default=str)


def _beside(path: Path, clusters: Any) -> Any:
    """Make paths relative to the scenario's file."""

    def place(source: str) -> str:
        return "+".join(name if name in SOURCES else str(path.parent / name) for name in source.split("+"))

    if isinstance(clusters, Domains):
        return replace(clusters, sources=tuple(place(source) for source in clusters.sources))
    return replace(clusters, source=place(clusters.source))
