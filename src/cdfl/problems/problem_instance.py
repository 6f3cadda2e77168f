"""An instance of a problem: a seed has divided its data and made its network, so it can be trained and evaluated."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cdfl.core import Layout, Loss, ProxySets, ServerState, Settings, initial_state, pretrain
from cdfl.core.batches import described
from cdfl.core.experts import loss_scale
from cdfl.core.flat import flatten
from cdfl.core.proxy_sets import outputs as outputs_of
from cdfl.core.router import Router, TrainRouters, train_one_by_one, train_router
from cdfl.core.sample_losses import each_loss
from cdfl.core.separation import Separation, separation
from cdfl.data import Federation, Samples
from cdfl.data.dataset import HALVES
from cdfl.data.randomness import generator
from cdfl.metrics import Metric
from cdfl.models import MakeModel, build
from cdfl.models.routers import build_router, router_spec
from cdfl.problems.problem import Problem
from cdfl.user_code import report_errors

Progress = Callable[[str], Any]
Trained = Callable[[int, int], Any]
Outputs = Callable[[Tensor, Tensor], Sequence[Tensor]]  # models (K, P) and inputs -> the outputs of each
ONE_NUMBER = "one number, a tensor of shape []"
BROADCAST = "Using a target size"  # the beginning of torch's warning


class ProblemInstance:
    """A problem with its data, network and settings, as the server sees it. The federation's seed makes all choices."""

    def __init__(
        self,
        problem: Problem,
        federation: Federation,
        settings: Settings | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.problem = problem
        self.federation = federation
        self.settings = (settings or problem.all_settings).for_clusters(federation.num_clusters)
        self.device = federation.device
        self.dtype = dtype
        self.seed = federation.seed
        self.loss: Loss = problem.loss
        self.metrics: tuple[Metric, ...] = tuple(problem.metrics)  # type: ignore[arg-type]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.torch_seed("weights"))
            self.model = make_network(problem, federation.input_shape, federation.num_outputs)
        self.model.to(self.device, dtype)
        self.layout = Layout.of(self.model)
        self.proxy_sets = self.sets("proxy")

    @classmethod
    def of(
        cls, problem: Problem, *, seed: int = 0, data_dir: Path | str | None = None, device: str | torch.device = "cpu"
    ) -> Self:
        """Read a problem's data for a server, which may take all of them."""
        return cls(problem, problem.federation(seed, data_dir, clients=False).to(device))

    @property
    def num_clusters(self) -> int:
        """K."""
        return self.federation.num_clusters

    @property
    def place(self) -> str:
        """The file that the problem is from."""
        return self.problem.place

    def with_settings(self, **changes: Any) -> Self:
        """Return the instance with some settings changed."""
        other = copy.copy(self)
        other.settings = self.settings.replace(**changes).for_clusters(self.num_clusters)
        return other

    def sets(self, split: str) -> list[tuple[Tensor, Tensor]]:
        """Return the samples of one split of every cluster, for the network."""
        return [self.inputs(self.federation.all_samples(split, k)) for k in range(self.num_clusters)]

    def inputs(self, samples: Samples) -> tuple[Tensor, Tensor]:
        """Return inputs for the network (n, ...), and targets (n, ...)."""
        return self.federation.ready(samples, self.dtype)

    def outputs(self, vector: Tensor, inputs: Tensor) -> Tensor:
        """Return the outputs of a model (P,) in evaluation mode."""
        found: Tensor = outputs_of(self.model, self.layout, vector, inputs)
        return found

    def evaluator(self, most: int | None = None) -> ProxySets:
        """Return the proxy sets, or their first samples, with a network of their own, for one thread."""
        sets = [(inputs[:most], targets[:most]) for inputs, targets in self.proxy_sets]
        return ProxySets(self.model, self.loss, sets)

    def pretrain(
        self, progress: Progress = lambda message: None, trained: Trained = lambda done, total: None
    ) -> Tensor:
        """Return the cluster models (K, P) at epoch 0; `progress` and `trained` are those of `cdfl.core.pretrain`."""

        def begin(message: str) -> None:  # like a client, each training starts from the same random state (dropout)
            torch.manual_seed(self.pretraining_noise_seed)
            progress(message)

        with torch.random.fork_rng(devices=self.gpus):
            sets, shuffle = self.sets("pretraining"), self.pretraining_shuffle()
            return pretrain(self.model, sets, self.loss, self.settings, shuffle, begin, trained)

    def initial_state(
        self, progress: Progress = lambda message: None, trained: Trained = lambda done, total: None
    ) -> ServerState:
        """Return the state at epoch 0: pre-trained clusters with a shared start.

        It stays on the CPU, whatever device trains and evaluates, so that a replay gets the same bits.
        """
        with report_errors(self.place, "pre-training", "samples that `model` and `loss` can be trained with"):
            clusters = self.pretrain(progress, trained)
        return initial_state(clusters.cpu(), self.evaluator(), self.layout.num_parameters)

    def router_inputs(self) -> list[Tensor]:
        """Return the samples that a router is trained on: all that the server has of each cluster, without targets."""
        both = zip(self.sets("pretraining"), self.proxy_sets, strict=True)
        return [torch.cat([inputs for inputs, _ in own]) for own in both]

    @cached_property
    def router_spec(self) -> dict[str, Any] | None:
        """The description of the default router, from which a client makes its own; None if the problem has one."""
        if self.problem.router is not None:
            return None
        examples = torch.cat([inputs for inputs, _ in self.proxy_sets])  # of all clusters: tokens differ
        return router_spec(examples, self.num_clusters, self.layout.num_parameters)

    def router_module(self) -> nn.Module:
        """Make the router's network, with new random weights unless the problem brings some."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.torch_seed("router"))
            made = client_router(self.problem) if self.router_spec is None else build_router(self.router_spec)
        return made.to(self.device, self.dtype)

    def train_router(self, module: nn.Module, train: TrainRouters = train_one_by_one) -> Router:
        """Train a router on the server's samples."""
        shuffle = torch.Generator().manual_seed(self.torch_seed("router samples"))
        with (
            report_errors(self.place, "training the router", "inputs that it maps to one number for each cluster"),
            torch.random.fork_rng(devices=self.gpus),
        ):
            torch.manual_seed(self.torch_seed("router noise"))
            return train_router(module, self.router_inputs(), shuffle, train=train)

    def loss_scale(self, models: Tensor) -> float:
        """Return the factor that makes losses of the cluster models (K, P) evidence of a sample's cluster."""
        losses = [self.losses_of_each(models, *own).cpu() for own in self.proxy_sets]  # K of (n, K)
        clusters = torch.arange(len(losses)).repeat_interleave(torch.tensor([len(own) for own in losses]))
        return loss_scale(torch.cat(losses), clusters)

    def losses_of_each(self, models: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every model (K, P) on every one of some inputs, (n, K)."""
        return torch.stack([each_loss(self.loss, self.outputs(vector, inputs), targets) for vector in models], dim=1)

    def separation(self, models: Tensor, outputs: Outputs | None = None) -> Separation:
        """Compare the cluster models (K, P) on all proxy sets. `outputs` evaluates several models at once."""
        evaluate = outputs or (lambda models, inputs: [self.outputs(model, inputs) for model in models])
        return separation(
            [
                torch.stack([each_loss(self.loss, guesses, targets) for guesses in evaluate(models, inputs)])
                for inputs, targets in self.proxy_sets
            ]
        )

    def warnings(self, found: Separation) -> list[str]:
        """Return a sentence for clusters that cannot be told apart or are far harder."""
        relative = self.settings.estimate.measures == "relative"
        return found.sentences(self.federation.names, relative=relative)

    @property
    def pretraining_noise_seed(self) -> int:
        """The seed of the random numbers of each pre-training."""
        return self.torch_seed("pretraining noise")

    def pretraining_shuffle(self) -> torch.Generator:
        """Return the generator of the batches of the pre-training."""
        return torch.Generator().manual_seed(self.torch_seed("pretraining"))

    @property
    def gpus(self) -> list[torch.device]:
        """The GPUs whose random state a training uses."""
        return [self.device] if self.device.type == "cuda" else []

    def torch_seed(self, purpose: str, *key: int) -> int:
        """Return the seed of one decision."""
        return int(generator(self.seed, purpose, *key).integers(2**63))

    # -- mistakes

    def check(self, most: int | None = None) -> None:
        """Try model, loss and metrics on the proxy set of every cluster, or on `most` samples of each.

        So mistakes show before anything is trained.
        """
        model, vector = copy.deepcopy(self.model), flatten(self.model)
        for name, (inputs, targets) in zip(self.federation.names, self.proxy_sets, strict=True):
            inputs, targets, of = inputs[:most], targets[:most], f"on cluster {name!r}"
            with report_errors(self.place, f"`model(inputs)` {of} with {described(inputs)}", "outputs for `loss`"):
                guesses = outputs_of(model, self.layout, vector, inputs)
            self._check_classes(name, guesses)
            given = f"{of} with {described(guesses)} and {described(targets)}"
            self._check_loss(f"`loss(outputs, targets)` {given}", guesses, targets)
            for metric in self.metrics:
                self._check_metric(metric, given, guesses, targets)

    def _check_classes(self, name: str, guesses: Any) -> None:
        """Refuse targets beyond the outputs of the network, which would end in an index error much later."""
        classes = self.federation.num_classes
        if not _takes_classes(self.loss) or not isinstance(guesses, Tensor) or guesses.ndim < 2 or classes is None:
            return
        outputs = guesses.shape[1]
        if classes > outputs:
            halves = [(own, own.dataset.half(half)[1]) for own in self.federation.clusters for half in HALVES]
            beyond = [(own.name, int(targets.max())) for own, targets in halves if int(targets.max()) >= outputs]
            raise self.problem.mistake(
                f"the targets have {classes} classes, 0..{classes - 1}, but the outputs of `model` on cluster {name!r} "
                f"have shape {list(guesses.shape)}: {outputs} classes; expected at least {classes} outputs, or targets "
                f"below {outputs}: cluster {beyond[0][0]!r} has {beyond[0][1]}"
            )

    def _check_loss(self, given: str, guesses: Any, targets: Tensor) -> None:
        if _takes_classes(self.loss) and targets.is_floating_point() and not _are_shares(targets):
            raise self.problem.mistake(
                f"{given}: cross_entropy, the default, takes classes; expected another loss for numbers, such as "
                "loss=torch.nn.functional.mse_loss"
            )
        with report_errors(self.place, given, ONE_NUMBER), torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("error", message=BROADCAST)
            try:
                loss = self.loss(guesses, targets)
            except UserWarning:
                words = f"{given} would compare every output with every target; expected one shape"
                raise self.problem.mistake(f"{words}: {_one_shape(guesses, targets)}") from None
        if not isinstance(loss, Tensor) or loss.shape != ():
            raise self.problem.mistake(f"{given} is {described(loss)}; expected {ONE_NUMBER}")
        if not loss.isfinite():
            raise self.problem.mistake(
                f"{given} is {loss.item()}; expected a finite number: check the weights of `model` for NaN and "
                "infinity, and `loss` for a logarithm of 0 or a division by 0"
            )

    def _check_metric(self, metric: Metric, given: str, guesses: Any, targets: Tensor) -> None:
        place = f"the metric {metric.name} {given}"
        with report_errors(self.place, place, "one number"), torch.no_grad():
            score = metric(guesses, targets)
        if score.shape != () or not score.isfinite():
            came = described(score) if score.shape else str(score.item())
            raise self.problem.mistake(f"{place} is {came}; expected one finite number")


def _takes_classes(loss: Loss) -> bool:
    return loss is cross_entropy or isinstance(loss, nn.CrossEntropyLoss)


def _one_shape(guesses: Tensor, targets: Tensor) -> str:
    """Say how outputs and targets can get one shape."""
    if not targets.is_floating_point() and guesses.ndim == targets.ndim + 1:
        return "targets are classes, which cross_entropy, the default, takes; to predict numbers, give them as floats"
    return f"let the model return outputs.squeeze(1), or give targets {list(guesses.shape)}"


def _are_shares(targets: Tensor) -> bool:
    """Return whether targets are the probabilities of two or more classes, which cross_entropy takes, too."""
    if targets.ndim < 2 or targets.shape[1] < 2:
        return False
    sums = targets.sum(dim=1)
    return bool((targets >= 0).all()) and bool(torch.allclose(sums, torch.ones_like(sums), atol=1e-3))


def make_network(problem: Problem, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """Make the network of a problem; torch's global generator decides the weights of a new one."""
    model = problem.model
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if isinstance(model, str):
        return build(model, input_shape, num_outputs)
    make: Any = model
    takes_shape = _takes(make, 2)
    words = "`model(input_shape, num_outputs)`" if takes_shape else "`model()`"
    with report_errors(problem.place, words, "a torch.nn.Module"):
        network = make(input_shape, num_outputs) if takes_shape else make()
    if not isinstance(network, nn.Module):
        raise problem.mistake(f"{words} is {described(network)}; expected a torch.nn.Module")
    if next(network.parameters(), None) is None:
        raise problem.mistake(f"{words} has no parameters; expected a model that can be trained")
    return network


def client_router(problem: Problem) -> nn.Module:
    """Make the router of a problem that brings one."""
    router: Any = problem.router
    if isinstance(router, nn.Module):
        return copy.deepcopy(router)
    with report_errors(problem.place, "`router()`", "a torch.nn.Module"):
        made = router()
    if not isinstance(made, nn.Module):
        raise problem.mistake(f"`router()` is {described(made)}; expected a torch.nn.Module")
    return made


def client_network(problem: Problem) -> nn.Module:
    """Make the network for a client, without reading data if the model does not depend on their shape."""
    if isinstance(problem.model, nn.Module) or (not isinstance(problem.model, str) and not _takes(problem.model, 2)):
        return make_network(problem, (), 0)
    federation = problem.federation()
    return make_network(problem, federation.input_shape, federation.num_outputs)


def _takes(function: MakeModel | Callable[[], nn.Module], count: int) -> bool:
    """Return whether a function can be called with this many arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True
