"""Client-Driven Federated Learning: models that follow their users' changing data without collecting it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdfl.sim import Run, run

__all__ = ["Run", "run"]


def __getattr__(name: str) -> Any:
    """Import the simulator when it is first asked for: a client device does without it."""
    if name in __all__:
        import cdfl.sim

        return getattr(cdfl.sim, name)
    raise AttributeError(f"module 'cdfl' has no attribute {name!r}")
