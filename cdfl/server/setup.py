"""What a server learns, from one Python file or module: model, loss, proxy sets, and how the clusters start."""

import copy
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from cdfl.core import DEFAULT, Hyperparams, Layout, Loss, ProxySets, ServerState, initial_state, pretrain
from cdfl.core.flat import flatten

Progress = Callable[[str], Any]
NAMES = ("model", "loss", "proxy_sets", "pretraining_sets", "hyperparams")


class SetupError(ValueError):
    """A set-up that cannot be served; the message says what to change."""


@dataclass(frozen=True, eq=False)
class Setup:
    """The learning problem of a server. The number of proxy sets is the number of clusters."""

    model: nn.Module  # the architecture, and the weights pre-training begins with
    loss: Loss
    proxy_sets: Sequence[tuple[Any, Any]]  # K pairs of (inputs, targets), on which uploads and clusters are judged
    pretraining_sets: Sequence[tuple[Tensor, Tensor]] | None = None  # K pairs; None: all clusters start as `model`
    hyperparams: Hyperparams = DEFAULT

    def __post_init__(self) -> None:
        """Try everything once: what is wrong is better found before a client comes."""
        if not isinstance(self.model, nn.Module):
            raise SetupError(f"`model` is a {type(self.model).__name__}; expected a torch.nn.Module")
        if not isinstance(self.hyperparams, Hyperparams):
            raise SetupError(f"`hyperparams` is a {type(self.hyperparams).__name__}; expected cdfl.core.Hyperparams")
        if not callable(self.loss):
            raise SetupError("`loss` cannot be called; expected a function of (outputs, targets)")
        _check_pairs("proxy_sets", self.proxy_sets)
        if self.pretraining_sets is not None:
            _check_pairs("pretraining_sets", self.pretraining_sets)
            if len(self.pretraining_sets) != len(self.proxy_sets):
                raise SetupError(
                    f"there are {len(self.pretraining_sets)} pretraining_sets and {len(self.proxy_sets)} proxy_sets; "
                    "expected one of each for every cluster"
                )

    @property
    def num_clusters(self) -> int:
        """K."""
        return len(self.proxy_sets)

    @property
    def layout(self) -> Layout:
        """Of the model's vector."""
        return Layout.of(self.model)

    def to(self, device: str | torch.device) -> "Setup":
        """The same set-up with model and data on a device."""
        return replace(
            self,
            model=self.model.to(device, torch.float32),
            proxy_sets=[_moved(pair, device) for pair in self.proxy_sets],
            pretraining_sets=self.pretraining_sets and [_moved(pair, device) for pair in self.pretraining_sets],
        )

    def with_hyperparams(self, **changes: Any) -> "Setup":
        """The same set-up with some hyperparameters changed."""
        return replace(self, hyperparams=self.hyperparams.replace(**changes))

    def look(self) -> ProxySets:
        """The proxy sets, for the use of one thread."""
        return ProxySets(copy.deepcopy(self.model), self.loss, self.proxy_sets)

    def start(self, progress: Progress = lambda message: None) -> ServerState:
        """The state at epoch 0: pre-trained clusters, with a shared start."""
        if self.pretraining_sets is None:
            clusters = flatten(self.model).repeat(self.num_clusters, 1)
        else:
            shuffle = torch.Generator().manual_seed(0)
            clusters = pretrain(self.model, self.pretraining_sets, self.loss, self.hyperparams, shuffle, progress)
        return initial_state(clusters, self.look(), self.layout.num_parameters)


def load_setup(place: str) -> Setup:
    """Read a set-up from a file, or from a module by its dotted name; either may import what lies beside it."""
    path = Path(place)
    is_file = path.suffix == ".py" or path.is_file()
    beside = str(path.absolute().parent if is_file else Path.cwd())
    if beside not in sys.path:  # as for a script that Python runs; and it stays, for what is imported later
        sys.path.insert(0, beside)
    module = _module(place, path if is_file else None)
    missing = [name for name in NAMES[:3] if getattr(module, name, None) is None]
    if missing:
        raise SetupError(f"{place} does not name {', '.join(missing)}; `cdfl init` writes an example")
    values = {name: getattr(module, name) for name in NAMES if getattr(module, name, None) is not None}
    if callable(values["model"]) and not isinstance(values["model"], nn.Module):
        values["model"] = values["model"]()
    return Setup(**values)


def _module(place: str, path: Path | None) -> ModuleType:
    try:
        return importlib.import_module(place) if path is None else _file(path)
    except ModuleNotFoundError as error:
        if path is None and error.name and place.startswith(error.name):
            raise SetupError(f"there is no file or module {place}; `cdfl init` writes an example") from None
        raise ModuleNotFoundError(f"{place} imports {error.name}, which is not here; install it") from error


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise SetupError(f"there is no file {path}; `cdfl init` writes an example")
    spec = importlib.util.spec_from_file_location("cdfl_setup", path)
    if spec is None or spec.loader is None:
        raise SetupError(f"{path} cannot be read as Python; expected a file that ends with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # classes in it want to find their module
    spec.loader.exec_module(module)
    return module


def _check_pairs(name: str, sets: Any) -> None:
    try:
        pairs = [(inputs, targets) for inputs, targets in sets]
        sizes = [(len(inputs), len(targets)) for inputs, targets in pairs]
    except (TypeError, ValueError):
        raise SetupError(f"`{name}` is no list of pairs; expected (inputs, targets) for every cluster") from None
    if not pairs or any(one != other or one == 0 for one, other in sizes):
        raise SetupError(f"`{name}` has sets of {sizes} (inputs, targets); expected at least one, as many of each")


def _moved(pair: tuple[Any, Any], device: str | torch.device) -> tuple[Any, Any]:
    inputs, targets = (part.to(device) if isinstance(part, Tensor) else part for part in pair)
    return inputs, targets
