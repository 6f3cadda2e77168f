"""Mistakes in a Python file that somebody else wrote, in one line: where, what came, what was expected."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OURS = Path(__file__).parents[1]
READABLE = "a Python file that runs without an error"
LONGEST = 300  # characters of another library's words


class SetupError(ValueError):
    """A set-up that cannot be served; the message says what to change."""


@contextmanager
def mistakes_in(place: str, doing: str, expected: str) -> Iterator[None]:
    """Make whatever goes wrong while the code of a set-up is at work a `SetupError`.

    `doing` says what was tried, `expected` what should have come of it. Packages that are
    missing are told apart: they are no mistake in the file.
    """
    try:
        yield
    except (SetupError, ModuleNotFoundError):
        raise
    except SyntaxError as error:
        where = f"{_shown(Path(error.filename))}, line {error.lineno}" if error.filename else place
        raise SetupError(f"{where}: no valid Python: {error.msg}") from error
    except Exception as error:
        said = str(error).strip().partition("\n")[0][:LONGEST]
        words = f"{type(error).__name__}: {said}" if said else type(error).__name__
        raise SetupError(f"{_where(place, error)}: {doing} failed with {words}; expected {expected}") from error


def _where(place: str, error: Exception) -> str:
    """The line of the set-up, or of a file beside it, that the error came through last."""
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
