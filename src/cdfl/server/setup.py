"""The set-up of a server, from a Python file or module: model, loss, proxy sets, and how the clusters start."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from cdfl.core import DEFAULT, Layout, Loss, ProxySets, ServerState, Settings, initial_state, pretrain
from cdfl.core.batches import described, pair_of
from cdfl.core.flat import flatten
from cdfl.core.proxy import outputs
from cdfl.server.fingerprint import fingerprint
from cdfl.userfile import SetupError, load_python, report_errors

Progress = Callable[[str], Any]
ONE_NUMBER = "one number, a tensor of shape []"
NAMES = ("model", "loss", "proxy_sets", "pretraining_sets", "settings")


@dataclass(frozen=True, eq=False)
class Setup:
    """The learning problem of a server. The number of proxy sets is the number of clusters."""

    model: nn.Module  # the architecture, and the weights pre-training begins with
    loss: Loss
    proxy_sets: Sequence[tuple[Any, Any]]  # K pairs of (inputs, targets), on which uploads and clusters are evaluated
    pretraining_sets: Sequence[tuple[Tensor, Tensor]] | None = None  # K pairs; None to start all clusters as `model`
    settings: Settings = DEFAULT
    place: str = "the set-up"  # the file it is from

    def __post_init__(self) -> None:
        """Refuse values of a wrong type or size; `try_out` finds the rest."""
        if not isinstance(self.model, nn.Module):
            raise self._mistake(f"`model` is {described(self.model)}; expected a torch.nn.Module")
        if next(self.model.parameters(), None) is None:
            raise self._mistake("`model` has no parameters; expected a model that can be trained")
        if not isinstance(self.settings, Settings):
            raise self._mistake(f"`settings` is {described(self.settings)}; expected cdfl.core.Settings")
        if not callable(self.loss):
            raise self._mistake(f"`loss` is {described(self.loss)}; expected a function of (outputs, targets)")
        self._check_pairs("proxy_sets", self.proxy_sets)
        if self.pretraining_sets is not None:
            self._check_pairs("pretraining_sets", self.pretraining_sets)
            if len(self.pretraining_sets) != len(self.proxy_sets):
                raise self._mistake(
                    f"there are {len(self.pretraining_sets)} pretraining_sets and {len(self.proxy_sets)} proxy_sets; "
                    "expected one of each for every cluster"
                )

    @property
    def num_clusters(self) -> int:
        """K."""
        return len(self.proxy_sets)

    @property
    def layout(self) -> Layout:
        """Return the layout of the model's vector."""
        return Layout.of(self.model)

    def to(self, device: str | torch.device) -> "Setup":
        """Return the set-up with model and data on a device."""
        return replace(
            self,
            model=self.model.to(device, torch.float32),
            proxy_sets=[_moved(pair, device) for pair in self.proxy_sets],
            pretraining_sets=self.pretraining_sets and [_moved(pair, device) for pair in self.pretraining_sets],
        )

    def with_settings(self, **changes: Any) -> "Setup":
        """Return the set-up with some settings changed."""
        return replace(self, settings=self.settings.replace(**changes))

    def evaluator(self, most: int | None = None) -> ProxySets:
        """Return the proxy sets, or their first samples, for one thread."""
        sets = (
            self.proxy_sets
            if most is None
            else [(inputs[:most], targets[:most]) for inputs, targets in self.proxy_sets]
        )
        return ProxySets(copy.deepcopy(self.model), self.loss, sets)

    def fingerprints(self) -> dict[str, str]:
        """Return a digest of what losses depend on, to notice at a restart that it has changed."""
        return {"proxy_sets": fingerprint(list(self.proxy_sets)), "loss": fingerprint(self.loss)}

    def try_out(self) -> None:
        """Evaluate the model on every proxy set, so that errors show before the first upload."""
        model, vector = copy.deepcopy(self.model), flatten(self.model)
        for number, (inputs, targets) in enumerate(self.proxy_sets):
            name = f"proxy_sets[{number}]"
            with report_errors(self.place, f"`model(inputs)` on {name} with {described(inputs)}", "outputs for `loss`"):
                guesses = outputs(model, self.layout, vector, inputs)
            given = f"`loss(outputs, targets)` on {name} with {described(guesses)} and {described(targets)}"
            with report_errors(self.place, given, ONE_NUMBER), torch.no_grad():
                loss = self.loss(guesses, targets)
            if not isinstance(loss, Tensor) or loss.shape != ():
                raise self._mistake(f"{given} is {described(loss)}; expected {ONE_NUMBER}")
            if not loss.isfinite():
                raise self._mistake(
                    f"{given} is {loss.item()}; expected a finite number: check inputs, targets and the weights of "
                    "`model` for NaN and infinity, and `loss` for a logarithm of 0 or a division by 0"
                )

    def start(
        self,
        progress: Progress = lambda message: None,
        trained: Callable[[int, int], Any] = lambda done, total: None,
    ) -> ServerState:
        """Return the state at epoch 0: pre-trained clusters with a shared start.

        It stays on the CPU, whatever device trains and evaluates, so that a replay gets the same bits.
        """
        if self.pretraining_sets is None:
            clusters = flatten(self.model).repeat(self.num_clusters, 1)
        else:
            shuffle = torch.Generator().manual_seed(0)
            with report_errors(self.place, "pre-training", "tensors that `model` and `loss` can be trained with"):
                clusters = pretrain(
                    self.model, self.pretraining_sets, self.loss, self.settings, shuffle, progress, trained
                )
        return initial_state(clusters.cpu(), self.evaluator(), self.layout.num_parameters)

    def _check_pairs(self, name: str, sets: Any) -> None:
        if not isinstance(sets, tuple | list):
            raise self._mistake(f"`{name}` is {described(sets)}; expected a list, (inputs, targets) for every cluster")
        sizes = [self._size(f"`{name}[{number}]`", each) for number, each in enumerate(sets)]
        if not sizes or any(one != other or one == 0 for one, other in sizes):
            raise self._mistake(
                f"`{name}` has sets of {sizes} (inputs, targets); expected at least one, with equal numbers of both"
            )

    def _size(self, name: str, each: Any) -> tuple[int, int]:
        try:
            inputs, targets = pair_of(each, name)
            return len(inputs), len(targets)
        except ValueError as error:
            raise self._mistake(str(error)) from None
        except TypeError:
            came = f"({described(inputs)}, {described(targets)})"
            raise self._mistake(f"{name} is {came}; expected two tensors, or two values with a length") from None

    def _mistake(self, words: str) -> SetupError:
        return SetupError(f"{self.place}: {words}")


def load_setup(place: str) -> Setup:
    """Load a set-up from a file, or from a module by its dotted name; either may import its neighbours."""
    module = load_python(place, "`cdfl init` writes an example")
    missing = [name for name in NAMES[:3] if getattr(module, name, None) is None]
    if missing:
        raise SetupError(f"{place} does not name {', '.join(missing)}; `cdfl init` writes an example")
    values = {name: getattr(module, name) for name in NAMES if getattr(module, name, None) is not None}
    if callable(values["model"]) and not isinstance(values["model"], nn.Module):
        with report_errors(place, "`model()`", "a torch.nn.Module"):
            values["model"] = values["model"]()
    return Setup(**values, place=place)


def _moved(pair: tuple[Any, Any], device: str | torch.device) -> tuple[Any, Any]:
    inputs, targets = (part.to(device) if isinstance(part, Tensor) else part for part in pair)
    return inputs, targets
