"""Client-Driven Federated Learning: models that follow their users' changing data without collecting it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdfl import scenarios
    from cdfl.api import Comparison, Run, Server, compare, load, run, serve
    from cdfl.client import AsyncClient, Client
    from cdfl.core import Settings
    from cdfl.data import Sizes, Table, Texts, Windows
    from cdfl.metrics import Metric
    from cdfl.on_ray import RayEngine
    from cdfl.problems import Problem
    from cdfl.scenarios import Scenario

    __version__: str

_MODULES = {  # imported on first use: a client device has no simulator, and torch takes seconds
    "cdfl.api": ("Comparison", "Run", "Server", "compare", "load", "run", "serve"),
    "cdfl.client": ("AsyncClient", "Client"),
    "cdfl.core": ("Settings",),
    "cdfl.data": ("Sizes", "Table", "Texts", "Windows"),
    "cdfl.metrics": ("Metric",),
    "cdfl.problems": ("Problem",),
    "cdfl.scenarios": ("Scenario",),
    "cdfl.on_ray": ("RayEngine",),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}
__all__ = [
    "AsyncClient",
    "Client",
    "Comparison",
    "Metric",
    "Problem",
    "RayEngine",
    "Run",
    "Scenario",
    "Server",
    "Settings",
    "Sizes",
    "Table",
    "Texts",
    "Windows",
    "__version__",
    "compare",
    "load",
    "run",
    "scenarios",
    "serve",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("cdfl")
    elif name in _PLACES:
        from importlib import import_module

        value = getattr(import_module(_PLACES[name]), name)
    elif name == "scenarios":
        from importlib import import_module

        value = import_module("cdfl.scenarios")
    else:
        from cdfl.argument_checks import did_you_mean

        raise AttributeError(f"module 'cdfl' has no attribute {name!r}{did_you_mean(name, __all__)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
