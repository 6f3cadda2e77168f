"""FedBuff with its one model in int8: a model as large as all experts together, at the bytes of the experts."""

from typing import ClassVar

from cdfl.algorithms import FedBuff, register


class FedBuffInt8(FedBuff):
    """Replies carry the one model as CDFL's carry experts: matrices in int8, the rest in float32."""

    name: ClassVar[str] = "fedbuff-int8"
    models_down = "experts"


def known(name: str) -> str:
    """Return the name of an algorithm; register the one that only the study has."""
    if name == FedBuffInt8.name:
        register(FedBuffInt8)
    return name
