"""What users write themselves, a Python file, an object, a number, and mistakes in it: told in one line."""

import importlib
import inspect
import math
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType
from typing import Any

OURS = Path(__file__).parent
READABLE = "a Python file that runs without an error"
LONGEST = 300  # characters of another library's words
FILE = "cdfl_own"  # the name of a file as a module: wherever it lies, settings in it are called the same


class SetupError(ValueError):
    """A file of a user's own that cannot be used; the message says what to change."""


def load_python(place: str, remedy: str) -> ModuleType:
    """Run a file, or import a module by its dotted name; either may import what lies beside it.

    `remedy` is for those who name one that is not there.
    """
    path = Path(place)
    is_file = path.suffix == ".py" or path.is_file()
    if is_file and not path.is_file():
        raise SetupError(f"there is no file {place}; {remedy}")
    beside = str(path.absolute().parent if is_file else Path.cwd())
    if beside not in sys.path:  # as for a script that Python runs; and it stays, for what is imported later
        sys.path.insert(0, beside)
    with mistakes_in(place, "reading it", READABLE):
        if is_file:
            return _run(path)
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{place}.".startswith(f"{error.name}."):
                raise
            raise SetupError(f"there is no file or module {place}; {remedy}") from None


def _run(path: Path) -> ModuleType:
    """As an import does it, but for bytecode: that of a file changed within a second would be taken for today's."""
    module = ModuleType(FILE)
    module.__file__ = str(path)
    sys.modules[FILE] = module  # classes in it want to find their module
    exec(compile(path.read_bytes(), str(path), "exec"), vars(module))  # noqa: S102  the user's own
    return module


@contextmanager
def mistakes_in(place: str, doing: str, expected: str) -> Iterator[None]:
    """Make whatever goes wrong while the code of a file is at work a `SetupError`.

    `doing` says what was tried, `expected` what should have come of it. Packages that cdfl itself
    misses are told apart: they are no mistake in the file.
    """
    try:
        yield
    except SetupError:
        raise
    except ModuleNotFoundError as error:
        if is_missed_by_us(error):
            raise
        remedy = f"install it, or put {str(error.name).partition('.')[0]}.py beside the file"
        raise SetupError(f"{_where(place, error)}: there is no module {error.name}; {remedy}") from error
    except SyntaxError as error:
        where = f"{_shown(Path(error.filename))}, line {error.lineno}" if error.filename else place
        raise SetupError(f"{where}: no valid Python: {error.msg}") from error
    except Exception as error:
        said = str(error).strip().partition("\n")[0][:LONGEST]
        words = f"{type(error).__name__}: {said}" if said else type(error).__name__
        raise SetupError(f"{_where(place, error)}: {doing} failed with {words}; expected {expected}") from error


def is_missed_by_us(error: ModuleNotFoundError) -> bool:
    """Is it our code that asked for the module, rather than a user's?"""
    asking = [step.filename for step in traceback.extract_tb(error.__traceback__) if step.filename[0] != "<"]
    return Path(asking[-1]).is_relative_to(OURS)


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


def check_number(name: str, value: Any, low: float, high: float = math.inf, *, whole: bool = False) -> None:
    """Refuse what is no finite number from `low` to `high`.

    >>> check_number("seed", 1.5, 0, whole=True)
    Traceback (most recent call last):
    ValueError: seed is 1.5; expected a whole number, 0 or more
    """
    is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or math.isinf(value):
        kind = "a whole number" if whole else "a number"
        bounds = f", {low} or more" if high == math.inf else f" from {low} to {high}"
        raise ValueError(f"{name} is {value!r}; expected {kind}{bounds}")


def _where(place: str, error: Exception) -> str:
    """The line of the file, or of one beside it, that the error came through last."""
    folder = Path(place).absolute().parent
    steps = traceback.extract_tb(error.__traceback__)
    own = [step for step in steps if _is_own(step.filename, folder)]
    return f"{_shown(Path(own[-1].filename))}, line {own[-1].lineno}" if own else place


def _is_own(file: str, folder: Path) -> bool:
    path = Path(file).absolute()
    is_library = "site-packages" in path.parts or path.is_relative_to(OURS)
    return not file.startswith("<") and path.is_relative_to(folder) and not is_library


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
