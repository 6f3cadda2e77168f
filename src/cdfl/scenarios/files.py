"""Read a user's scenario: a `.toml` file, or a `.py` file that sets `scenario`.

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
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from cdfl.data import DRIFTS, SOURCES, DataError, Domains, LabelPermutations, Rotations, Shifts, Sizes
from cdfl.models import MODELS, MakeModel
from cdfl.scenarios.scenario import Scenario
from cdfl.userfile import SetupError, load_python

CLUSTERS: dict[str, type] = {
    "rotations": Rotations,
    "domains": Domains,
    "labels": LabelPermutations,
    "shifts": Shifts,
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
    str | MakeModel: (partial(_is, str), f"one of {', '.join(MODELS)}, in quotes"),
    tuple[str, ...]: (partial(_all, str), "a list of words in quotes"),
    tuple[int, int, int] | None: (
        lambda value: _all(int, value) and len(value) == 3,
        "a list of three whole numbers: channels, height, width",
    ),
    Mapping[str, object]: (partial(_is, dict), "a table"),
}
ANYTHING = (lambda value: True, "a value")


def read_scenario(path: Path) -> Scenario:
    """Read a scenario from its file."""
    if not path.is_file():
        raise DataError(f"there is no file {path}; expected a .toml file, or a .py file that sets `scenario`")
    if path.suffix == ".py":
        found = getattr(_loaded(path), "scenario", None)
        if not isinstance(found, Scenario):
            raise DataError(f"{path} must set `scenario` to a cdfl.scenarios.Scenario, got {type(found).__name__}")
        return found
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a TOML file: {error}") from error
    return _scenario(path, values)


def _loaded(path: Path) -> ModuleType:
    try:
        return load_python(str(path), "expected a .py file that sets `scenario`")
    except SetupError as error:
        raise DataError(str(error)) from error


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
    known = {field.name: field for field in fields(make)}
    hints = get_type_hints(make)
    for key, value in values.items():
        if key not in known:
            raise DataError(f"{path}: {where} has {key!r}; expected only {', '.join(known)}")
        fits, expected = KINDS.get(hints[key], ANYTHING)
        if not fits(value):
            raise DataError(f"{path}: {where} has {key} = {_toml(value)}; expected {expected}")
    for key, field in known.items():
        if key not in values and field.default is MISSING and field.default_factory is MISSING:
            _, expected = KINDS.get(hints[key], ANYTHING)
            raise DataError(f"{path}: {where} has no {key}; expected {key} = ..., {expected}")
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
        return Domains(tuple(place(source) for source in clusters.sources), clusters.shape)
    return type(clusters)(
        **{f.name: getattr(clusters, f.name) for f in fields(clusters)} | {"source": place(clusters.source)}
    )
