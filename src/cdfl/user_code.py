"""Load Python files that users write; report their errors in one line."""

import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

PACKAGES = {"sklearn": "scikit-learn", "PIL": "pillow", "cv2": "opencv-python", "yaml": "pyyaml"}  # named otherwise
OURS = Path(__file__).parent
DATA = (".csv", ".tsv", ".parquet", ".json", ".jsonl", ".txt", ".npz", ".npy", ".xlsx")  # no modules
READABLE = "a Python file that runs without an error"
LONGEST = 300  # characters of an error message that are repeated
FILE = "<run_path>"  # module name of a loaded file; part of stored run settings, so it must not change
_BEFORE: dict[str, frozenset[str]] = {}  # folder put on sys.path here -> modules loaded before that


class SetupError(ValueError):
    """A user's file cannot be used; the message says what to change."""


def load_python(place: str, remedy: str) -> ModuleType:
    """Run a file, or import a module by its dotted name. Either may import modules from its own folder.

    `remedy` completes the error message if it does not exist.
    """
    path = Path(place)
    is_file = path.suffix == ".py" or path.is_file()
    if path.suffix and path.suffix != ".py" and (is_file or path.suffix in DATA):
        raise SetupError(f"{place} is no Python file; load your data in one, for example with cdfl.Table or cdfl.Texts")
    if is_file and not path.is_file():
        raise SetupError(f"there is no file {place}; {remedy}")
    _put_first(str(path.absolute().parent if is_file else Path.cwd()))
    with report_errors(place, "reading it", READABLE):
        module = _run(path) if is_file else _import(place)
    if module is None:
        raise SetupError(f"there is no file or module {place}; {remedy}")
    return module


def _put_first(folder: str) -> None:
    """Put a folder first on `sys.path`, as Python does for a script; it stays there for later imports.

    Modules that earlier files imported from their folders are unloaded: this folder may have modules of the same names.
    """
    loaded = sys.modules.copy()  # another thread may import
    older = frozenset.intersection(*_BEFORE.values()) if _BEFORE else frozenset()
    newer = {name: module for name, module in loaded.items() if name.partition(".")[0] not in older}
    for earlier, before in _BEFORE.items():
        for name, module in newer.items():
            if name.partition(".")[0] not in before and _lies_in(earlier, name, module):
                sys.modules.pop(name, None)
    importlib.invalidate_caches()
    if folder in sys.path:
        sys.path.remove(folder)
    else:
        _BEFORE.setdefault(folder, frozenset(sys.modules.copy()))
    sys.path.insert(0, folder)


def _lies_in(folder: str, name: str, module: ModuleType) -> bool:
    """Return whether a module was imported from this folder, not from an environment below it."""
    spec = getattr(module, "__spec__", None)
    path = str(Path(folder, *name.split(".")))
    return spec is not None and (spec.origin == f"{path}.py" or path in (spec.submodule_search_locations or ()))


def own_modules() -> list[ModuleType]:
    """Return the modules that came from a user's files and their folders."""
    loaded = sys.modules.copy()
    own = {name for folder in _BEFORE for name, module in loaded.items() if _lies_in(folder, name, module)}
    return [loaded[name] for name in sorted(own | {FILE} & loaded.keys())]


def _import(name: str) -> ModuleType | None:
    """Import a module by name; return None if there is none, or only a folder."""
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
    """Run a file as a module, without cached bytecode: that could be stale if the file changed within a second."""
    module = ModuleType(FILE)
    module.__file__ = str(path.absolute())
    sys.modules[FILE] = module  # its classes need their module
    exec(compile(path.read_bytes(), str(path), "exec"), vars(module))  # noqa: S102  the user's own
    return module


@contextmanager
def report_errors(place: str, doing: str, expected: str) -> Iterator[None]:
    """Turn any error of the user's code into a one-line `SetupError` that names the file and line.

    `doing` says what was tried, `expected` what it should have given. If cdfl itself misses a package,
    `ModuleNotFoundError` passes through: that is no error in the file.
    """
    try:
        yield
    except SetupError as error:
        found = _where(place, error)
        if ", line " not in found or str(error).startswith(found.partition(",")[0]):
            raise
        raise SetupError(f"{found}: {error}") from error
    except SyntaxError as error:
        where = f"{_shown(Path(error.filename))}, line {error.lineno}" if error.filename else place
        raise SetupError(f"{where}: invalid Python: {error.msg}") from error
    except Exception as error:
        if isinstance(error, ModuleNotFoundError):
            if is_missed_by_cdfl(error):
                raise
            if error.name is not None:
                name = error.name.partition(".")[0]
                package = f"pip install {PACKAGES[name]}" if name in PACKAGES else "install it"
                remedy = f"{package}, or put {name}.py beside the file"
                raise SetupError(f"{_where(place, error)}: there is no module {error.name}; {remedy}") from error
        said = str(error).strip().partition("\n")[0][:LONGEST]
        if isinstance(error, ValueError) and said and _is_raised_by_cdfl(error):  # it says what to do
            raise SetupError(f"{_where(place, error)}: {said}") from error
        words = f"{type(error).__name__}: {said}" if said else type(error).__name__
        raise SetupError(f"{_where(place, error)}: {doing} failed with {words}; expected {expected}") from error


def is_missed_by_cdfl(error: ModuleNotFoundError) -> bool:
    """Return whether cdfl's code imported the missing module, rather than a user's."""
    importers = [step.filename for step in traceback.extract_tb(error.__traceback__) if step.filename[0] != "<"]
    return Path(importers[-1]).is_relative_to(OURS)


def _is_raised_by_cdfl(error: Exception) -> bool:
    steps = traceback.extract_tb(error.__traceback__)
    return Path(steps[-1].filename).is_relative_to(OURS) and len(steps) > 1


def _where(place: str, error: Exception) -> str:
    """Return the last line of the error's traceback that is in the file or in its folder."""
    folder = Path(place).absolute().parent if place else Path.cwd()
    steps = traceback.extract_tb(error.__traceback__)
    own = [step for step in steps if _is_own(step.filename, folder)]
    return f"{_shown(Path(own[-1].filename))}, line {own[-1].lineno}" if own else place or "the problem"


def _is_own(file: str, folder: Path) -> bool:
    path = Path(file).absolute()
    is_library = "site-packages" in path.parts or path.is_relative_to(OURS)
    return not file.startswith("<") and path.is_relative_to(folder) and not is_library


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
