"""Check values that users pass in; errors say what came and what was expected."""

import inspect
import math
from numbers import Integral, Real
from typing import Any


def check_method(option: str, given: Any, method: str, parameters: int, expected: str) -> None:
    """Refuse what has no such method, and a class where an object of it was meant."""
    if isinstance(given, type):
        raise ValueError(f"{option} is the class {given.__name__}; expected {expected}: {given.__name__}(...)")
    work = getattr(given, method, None)
    if not callable(work):
        raise ValueError(f"{option} is {given!r}; expected {expected}")
    try:
        inspect.signature(work).bind(*range(parameters))
    except TypeError:
        own = f"{type(given).__name__}.{method}{inspect.signature(work)}"
        raise ValueError(f"{option} has {own}; expected {expected}") from None


def check_number(
    name: str, value: Any, low: float, high: float = math.inf, *, whole: bool = False, finite: bool = False
) -> None:
    """Refuse what is no number from `low` to `high`.

    >>> check_number("seed", 1.5, 0, whole=True)
    Traceback (most recent call last):
    ValueError: seed is 1.5; expected a whole number, 0 or more
    """
    is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or (finite and value == math.inf):
        kind = "a whole number" if whole else "a finite number" if finite else "a number"
        bounds = f", {low} or more" if high == math.inf else f" from {low} to {high}"
        raise ValueError(f"{name} is {value!r}; expected {kind}{bounds}")
