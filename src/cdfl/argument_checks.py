"""Check values that users pass; errors name the value and what was expected."""

import inspect
import math
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any


def check_method(option: str, given: Any, method: str, parameters: int, expected: str) -> None:
    """Raise `ValueError` unless an object has this method with this many parameters; also for a class."""
    if isinstance(given, type):
        raise ValueError(f"{option} is the class {given.__name__}; expected {expected}: {given.__name__}(...)")
    function = getattr(given, method, None)
    if not callable(function):
        raise ValueError(f"{option} is {given!r}; expected {expected}")
    try:
        inspect.signature(function).bind(*range(parameters))
    except TypeError:
        found = f"{type(given).__name__}.{method}{inspect.signature(function)}"
        raise ValueError(f"{option} has {found}; expected {expected}") from None


def check_number(
    name: str, value: Any, low: float, high: float = math.inf, *, whole: bool = False, finite: bool = False
) -> None:
    """Raise `ValueError` unless a value is a number from `low` to `high`.

    >>> check_number("seed", 1.5, 0, whole=True)
    Traceback (most recent call last):
    ValueError: seed is 1.5; expected a whole number, 0 or more
    """
    is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or (finite and value == math.inf):
        kind = "a whole number" if whole else "a finite number" if finite else "a number"
        bounds = f", {low} or more" if high == math.inf else f" from {low} to {high}"
        raise ValueError(f"{name} is {value!r}; expected {kind}{bounds}")


# What others call our settings and options, and the symbols of the paper.
OTHER_NAMES = {
    "lr": "learning_rate",
    "gamma": "learning_rate",
    "rho": "proximal_strength",
    "mu": "proximal_strength",
    "beta": "base_rate",
    "epochs": "local_epochs",
    "bs": "batch_size",
    "rounds": "num_uploads",
    "clock": "time_model",
}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known name that is most like this one; nothing if none is.

    >>> did_you_mean("fedsofd", ["cdfl", "fedsoft"]), did_you_mean("sgd", ["cdfl", "fedsoft"])
    ('; did you mean fedsoft?', '')
    >>> did_you_mean("lr", ["learning_rate", "momentum"])
    '; did you mean learning_rate?'
    """
    known = list(known)
    close = [OTHER_NAMES[name]] if OTHER_NAMES.get(name) in known else get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
