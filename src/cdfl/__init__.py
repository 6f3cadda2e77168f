"""Client-Driven Federated Learning: models that follow their users' changing data without collecting it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdfl.client import Client
    from cdfl.sim import Run, run

__all__ = ["Client", "Run", "run"]


def __getattr__(name: str) -> Any:
    """Import client or simulator when it is first asked for: a client device does without the latter."""
    if name == "Client":
        import cdfl.client

        return cdfl.client.Client
    if name in __all__:
        import cdfl.sim

        return getattr(cdfl.sim, name)
    raise AttributeError(f"module 'cdfl' has no attribute {name!r}")
