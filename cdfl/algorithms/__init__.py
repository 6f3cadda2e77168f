"""CDFL and its rivals, behind one interface."""

from cdfl.algorithms.base import Algorithm, Assignment, ClientView
from cdfl.algorithms.check import check_algorithm
from cdfl.algorithms.fedasync import FedAsync
from cdfl.algorithms.fedbuff import FedBuff
from cdfl.algorithms.fedsoft import FedSoft
from cdfl.algorithms.ifca import IFCA
from cdfl.algorithms.local import Local, LocalRestart
from cdfl.algorithms.oracle import Oracle
from cdfl.core import Hyperparams

CDFL = Algorithm

ALGORITHMS: dict[str, type[Algorithm]] = {
    kind.name: kind for kind in (CDFL, FedSoft, FedAsync, FedBuff, IFCA, Local, LocalRestart, Oracle)
}


def make_algorithm(name: str, hyperparams: Hyperparams) -> Algorithm:
    """An algorithm by its name.

    >>> make_algorithm("fedavg", Hyperparams())
    Traceback (most recent call last):
    ValueError: there is no algorithm 'fedavg'; there are cdfl, fedsoft, fedasync, fedbuff, ifca, ...
    """
    if name not in ALGORITHMS:
        raise ValueError(f"there is no algorithm {name!r}; there are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name](hyperparams)


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
]
