"""Load Python files that users write; report their errors in one line."""

import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

OURS = Path(__file__).parent
READABLE = "a Python file that runs without an error"
LONGEST = 300  # characters of another library's words
FILE = "<run_path>"  # a file's name as a module, as runpy has it: it stands in the settings of every run there is
_BEFORE: dict[str, frozenset[str]] = {}  # folders put on sys.path here, and the modules there were before


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
    _look_first_in(str(path.absolute().parent if is_file else Path.cwd()))
    with mistakes_in(place, "reading it", READABLE):
        module = _run(path) if is_file else _import(place)
    if module is None:
        raise SetupError(f"there is no file or module {place}; {remedy}")
    return module


def _look_first_in(folder: str) -> None:
    """As for a script that Python runs; the folder stays, for what is imported later.

    What files before this one imported from beside them is forgotten: this one may have neighbours of the same names.
    """
    for earlier, before in _BEFORE.items():
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] not in before and _lies_in(earlier, name, module):
                del sys.modules[name]
    importlib.invalidate_caches()
    if folder in sys.path:
        sys.path.remove(folder)
    else:
        _BEFORE.setdefault(folder, frozenset(sys.modules))
    sys.path.insert(0, folder)


def _lies_in(folder: str, name: str, module: ModuleType) -> bool:
    """Was it found through that folder? Libraries of an environment below it were not."""
    spec = getattr(module, "__spec__", None)
    path = str(Path(folder, *name.split(".")))
    return spec is not None and (spec.origin == f"{path}.py" or path in (spec.submodule_search_locations or ()))


def _import(name: str) -> ModuleType | None:
    """A module by its name; None where there is none, or only a folder."""
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None
    return module if getattr(module, "__file__", None) else None


def _run(path: Path) -> ModuleType:
    """As an import does it, but for bytecode: that of a file changed within a second would be taken for today's."""
    module = ModuleType(FILE)
    module.__file__ = str(path.absolute())
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
    except SyntaxError as error:
        where = f"{_shown(Path(error.filename))}, line {error.lineno}" if error.filename else place
        raise SetupError(f"{where}: no valid Python: {error.msg}") from error
    except Exception as error:
        if isinstance(error, ModuleNotFoundError):
            if is_missed_by_us(error):
                raise
            if error.name is not None:
                remedy = f"install it, or put {error.name.partition('.')[0]}.py beside the file"
                raise SetupError(f"{_where(place, error)}: there is no module {error.name}; {remedy}") from error
        said = str(error).strip().partition("\n")[0][:LONGEST]
        words = f"{type(error).__name__}: {said}" if said else type(error).__name__
        raise SetupError(f"{_where(place, error)}: {doing} failed with {words}; expected {expected}") from error


def is_missed_by_us(error: ModuleNotFoundError) -> bool:
    """Is it our code that asked for the module, rather than a user's?"""
    asking = [step.filename for step in traceback.extract_tb(error.__traceback__) if step.filename[0] != "<"]
    return Path(asking[-1]).is_relative_to(OURS)


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
