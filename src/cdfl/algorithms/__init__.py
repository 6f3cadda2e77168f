"""CDFL and its rivals, behind one interface."""

from typing import TypeVar

from cdfl.algorithms.base import Algorithm, Assignment, ClientView
from cdfl.algorithms.check import A_NAME, check_algorithm, is_name
from cdfl.algorithms.fedasync import FedAsync
from cdfl.algorithms.fedbuff import FedBuff
from cdfl.algorithms.fedsoft import FedSoft
from cdfl.algorithms.ifca import IFCA
from cdfl.algorithms.local import Local, LocalRestart
from cdfl.algorithms.oracle import Oracle
from cdfl.core import Settings

CDFL = Algorithm

ALGORITHMS: dict[str, type[Algorithm]] = {
    kind.name: kind for kind in (CDFL, FedSoft, FedAsync, FedBuff, IFCA, Local, LocalRestart, Oracle)
}
_LIBRARY = dict(ALGORITHMS)
_A = TypeVar("_A", bound=Algorithm)


def register(kind: type[_A]) -> type[_A]:
    """Let an algorithm of one's own be called by its name, as on the command line; also a decorator.

    Registered again under its name, as in a notebook, the new one counts.
    """
    if isinstance(kind, Algorithm):
        own = type(kind).__name__
        raise ValueError(
            f"algorithm is a {own} object; expected the class, {own}: a run makes its own with its settings"
        )
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        raise ValueError(f"algorithm is {kind!r}; expected a name, or a class derived from cdfl.algorithms.Algorithm")
    if kind in _LIBRARY.values():
        return kind
    if not is_name(kind.name) or kind.name in _LIBRARY:
        expected = f"a word of its own, not one of {', '.join(_LIBRARY)}" if is_name(kind.name) else A_NAME
        own = kind.__name__.lower()
        raise ValueError(f"{kind.__name__} has the name {kind.name!r}; expected {expected}: name = {own!r}")
    ALGORITHMS[kind.name] = kind
    return kind


def make_algorithm(algorithm: str | type[Algorithm], settings: Settings) -> Algorithm:
    """An algorithm by its name, or of a class of one's own, which is then registered.

    >>> make_algorithm("fedavg", Settings())
    Traceback (most recent call last):
    ValueError: there is no algorithm 'fedavg'; there are cdfl, fedsoft, fedasync, fedbuff, ifca, ...
    """
    if not isinstance(algorithm, str):
        return register(algorithm)(settings)
    if algorithm not in ALGORITHMS:
        raise ValueError(
            f"there is no algorithm {algorithm!r}; there are {', '.join(ALGORITHMS)}, and those of your own that a "
            "scenario's .py file registers: cdfl.algorithms.register"
        )
    return ALGORITHMS[algorithm](settings)


__all__ = [
    "ALGORITHMS",
    "CDFL",
    "IFCA",
    "Algorithm",
    "Assignment",
    "ClientView",
    "FedAsync",
    "FedBuff",
    "FedSoft",
    "Local",
    "LocalRestart",
    "Oracle",
    "check_algorithm",
    "make_algorithm",
    "register",
]
