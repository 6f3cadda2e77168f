"""FedBuff with its one model in int8: a model as large as all experts together, at the bytes of the experts."""

from typing import ClassVar

from cdfl import algorithms
from cdfl.algorithms import Algorithm, FedBuff, register


class FedBuffInt8(FedBuff):
    """Replies carry the one model as CDFL's carry experts: matrices in int8, the rest in float32."""

    name: ClassVar[str] = "fedbuff-int8"
    models_down = "experts"


def algorithm_class(name: str) -> type[Algorithm]:
    """Return the class of an algorithm, and register it if only the study has it."""
    return register(FedBuffInt8) if name == FedBuffInt8.name else algorithms.ALGORITHMS[name]
