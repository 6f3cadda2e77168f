"""CDFL and its rivals behind one interface."""

from typing import TypeVar

from cdfl.algorithms.base import Algorithm, Assignment, ClientView, MixtureFromClient, reads_reply_only, reads_state
from cdfl.algorithms.cdfl import CDFL
from cdfl.algorithms.conformance import A_NAME, check_algorithm, is_name
from cdfl.algorithms.fedasync import FedAsync
from cdfl.algorithms.fedbuff import FedBuff
from cdfl.algorithms.fedem import FedEM
from cdfl.algorithms.fedsoft import FedSoft
from cdfl.algorithms.ifca import IFCA
from cdfl.algorithms.local import Frozen, Local, LocalKeep
from cdfl.algorithms.oracle import Oracle
from cdfl.argument_checks import did_you_mean
from cdfl.core import Settings

ALGORITHMS: dict[str, type[Algorithm]] = {
    kind.name: kind for kind in (CDFL, FedSoft, FedEM, IFCA, FedAsync, FedBuff, Local, LocalKeep, Frozen, Oracle)
}
_LIBRARY = dict(ALGORITHMS)
_A = TypeVar("_A", bound=Algorithm)
METHODS = ("network", "initial", "join", "assign", "server_update", "cluster_models")
ATTRIBUTES = ("uses_proxy", "estimates", "models_down")  # a class that derives from `Algorithm` has defaults
EXPECTED = f"expected a name, or a class with {', '.join(METHODS + ATTRIBUTES)} (see cdfl.algorithms.Algorithm)"


def register(kind: type[_A]) -> type[_A]:
    """Make an algorithm class available by its name, also on the command line; can be used as a decorator.

    A class that is registered under the same name again replaces the old one.
    """
    if not isinstance(kind, type):
        own = type(kind).__name__
        if isinstance(kind, Algorithm):
            raise ValueError(f"algorithm is a {own} object; pass the class {own}")
        raise ValueError(f"algorithm is {kind!r}; {EXPECTED}")
    abstract = getattr(kind, "__abstractmethods__", ())
    missing = [method for method in METHODS if method in abstract or not callable(getattr(kind, method, None))]
    missing += [attribute for attribute in ATTRIBUTES if not hasattr(kind, attribute)]
    if missing:
        raise ValueError(f"{kind.__name__} has no {', '.join(missing)}; {EXPECTED}")
    if kind in _LIBRARY.values():
        return kind
    name = getattr(kind, "name", None)
    if not is_name(name) or name in _LIBRARY:
        expected = f"another one than {', '.join(_LIBRARY)}" if is_name(name) else A_NAME
        own = kind.__name__.lower()
        raise ValueError(f"{kind.__name__} has the name {name!r}; expected {expected}, e.g. name = {own!r}")
    ALGORITHMS[kind.name] = kind
    return kind


def make_algorithm(algorithm: str | type[Algorithm], settings: Settings) -> Algorithm:
    """Make an algorithm from its name, or from a class, which is then also registered.

    >>> make_algorithm("fedavg", Settings())
    Traceback (most recent call last):
    ValueError: there is no algorithm 'fedavg'; there are cdfl, fedsoft, fedem, ifca, ...
    """
    if not isinstance(algorithm, str):
        return register(algorithm)(settings)
    if algorithm not in ALGORITHMS:
        raise ValueError(
            f"there is no algorithm {algorithm!r}; there are {', '.join(ALGORITHMS)}; a problem's .py file can "
            f"add one with cdfl.algorithms.register{did_you_mean(algorithm, ALGORITHMS)}"
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
    "FedEM",
    "FedSoft",
    "Frozen",
    "Local",
    "LocalKeep",
    "MixtureFromClient",
    "Oracle",
    "check_algorithm",
    "make_algorithm",
    "reads_reply_only",
    "reads_state",
    "register",
]
