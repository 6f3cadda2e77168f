"""Client-Driven Federated Learning: models that follow their users' changing data without collecting it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdfl.client import AsyncClient, Client
    from cdfl.core import Settings
    from cdfl.data import Sizes
    from cdfl.metrics import Metric
    from cdfl.problems import Problem
    from cdfl.scenarios import Scenario
    from cdfl.sim import Run, run

    __version__: str

_MODULES = {  # imported on first use: a client device has no simulator, and torch takes seconds
    "AsyncClient": "cdfl.client",
    "Client": "cdfl.client",
    "Metric": "cdfl.metrics",
    "Problem": "cdfl.problems",
    "Run": "cdfl.sim",
    "Scenario": "cdfl.scenarios",
    "Settings": "cdfl.core",
    "Sizes": "cdfl.data",
    "run": "cdfl.sim",
}
__all__ = [
    "AsyncClient",
    "Client",
    "Metric",
    "Problem",
    "Run",
    "Scenario",
    "Settings",
    "Sizes",
    "__version__",
    "run",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("cdfl")
    elif name in _MODULES:
        from importlib import import_module

        value = getattr(import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module 'cdfl' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
