"""The router: from which cluster does an input come? Not in the paper.

The server trains it on samples it already has, with the number of their cluster as the label. It goes to clients, who
need no labels to use it: its answers about their inputs are evidence of their mixture (`cdfl.core.experts`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian
from torch.nn import functional as F

from cdfl.core.batches import batch_plan
from cdfl.core.client import client_update
from cdfl.core.flat import Layout, flatten
from cdfl.core.proxy_sets import outputs
from cdfl.core.settings import TrainingSettings
from cdfl.core.strange_inputs import Known, describe

PARTS = 4  # the samples are split into so many parts; a router is tested on a part that it was not trained on
MANY = 4000  # samples: with more of them, the router need not be trained on the part that it is tested on
SAMPLES_SEEN = 480_000  # in a training, unless that are fewer than 20 or more than 60 passes
NEWTON_STEPS, FLAT = 100, 1e-9  # most steps of a calibration; the gradient at which it ends


class View(NamedTuple):
    """What a router sees in N inputs."""

    evidence: Tensor  # (N, K) log p(input | cluster), up to a constant for each input; float64, calibrated
    is_strange: Tensor  # (N,) True for inputs that fit no cluster


@dataclass(frozen=True, eq=False, repr=False)
class Router:
    """A trained router, and what it can tell. Every number is about samples that it was not trained on."""

    model: Tensor  # (P,) the weights of a module that maps inputs to K numbers
    temperature: float  # the calibrated answers are numbers / temperature + bias
    bias: Tensor  # (K,) float64, mean 0
    confusion: Tensor  # (K, K) float64: row j is the mean probability of each cluster for samples of cluster j
    accuracy: float  # share of samples whose likeliest cluster is the right one; clusters count alike
    known_inputs: Known | None  # describes the samples' inputs; None if they are not real numbers (tokens)
    known_features: Known  # describes what the module computes from them

    def __repr__(self) -> str:
        return f"Router({self.num_clusters} clusters, right in {self.accuracy:.1%} of samples)"

    @property
    def num_clusters(self) -> int:
        """K."""
        return len(self.bias)

    @property
    def information(self) -> float:
        """How much it can tell: 0 if its answer does not depend on the input's cluster, 1 if it is always right.

        This is the mutual information of a sample's cluster and the router's answer, as a share of log K.
        """
        if self.num_clusters == 1:
            return 0.0
        marginal = self.confusion.mean(dim=0)
        gain = torch.special.xlogy(self.confusion, self.confusion / marginal.clamp_min(1e-300)).sum(dim=1).mean()
        return float(gain / torch.log(torch.tensor(self.num_clusters, dtype=torch.float64)))

    def evidence(self, module: nn.Module, inputs: Any) -> Tensor:
        """Return log p(input | cluster), up to a constant for each input (N, K); `module` gives its architecture."""
        return self._calibrated(outputs(module, Layout.of(module), self.model.to(_device(module)), inputs))

    def look_at(self, module: nn.Module, inputs: Any) -> View:
        """Return what it sees in some inputs: the evidence, and which of them are strange."""
        features, answers = _features(module, self.model.to(_device(module)), inputs)
        evidence = self._calibrated(answers)
        is_strange = self.known_features.is_strange(features)
        if self.known_inputs is not None:
            is_strange |= self.known_inputs.is_strange(inputs)
        return View(evidence, is_strange)

    def _calibrated(self, answers: Tensor) -> Tensor:
        return F.log_softmax(answers.double() / self.temperature + self.bias.to(answers.device), dim=-1)


# (module, samples (N, ...), clusters (N,), plans (steps, batch) of positions in them, settings) -> weights (P,) of each
TrainRouters = Callable[[nn.Module, Tensor, Tensor, Sequence[Tensor], TrainingSettings], Sequence[Tensor]]


def train_one_by_one(
    module: nn.Module,
    samples: Tensor,
    clusters: Tensor,
    plans: Sequence[Tensor],
    settings: TrainingSettings,
    trained: Callable[[int, int], Any] = lambda done, total: None,
) -> list[Tensor]:
    """Train a router for each plan, from the weights of `module`; `trained` is told the batches so far and in all."""
    targets = clusters.to(samples.device)
    done, total = 0, sum(map(len, plans))

    def batches(plan: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        nonlocal done
        for batch in plan.to(samples.device):
            yield samples[batch], targets[batch]
            done += 1
            trained(done, total)

    return [client_update(module, flatten(module), batches(plan), F.cross_entropy, settings) for plan in plans]


def train_router(
    module: nn.Module,
    inputs: Sequence[Tensor],
    generator: torch.Generator,
    settings: TrainingSettings | None = None,
    train: TrainRouters = train_one_by_one,
) -> Router:
    """Train `module`, which maps inputs to K numbers, on the inputs of K clusters for `settings.local_epochs` passes.

    The samples are split into parts. A router that is trained without a part is tested on it, and calibrated by the
    test. If samples are few, each part is tested by a router of its own, and the tests calibrate one that is trained on
    all samples. Clusters count alike, however many samples they have.
    """
    _check(module, inputs)
    samples, clusters = torch.cat(list(inputs)), _numbers(inputs)
    settings = replace(settings or router_training(len(samples)), proximal_strength=0.0)
    parts = torch.cat([_spread(len(each), generator) for each in inputs])  # (N,) the part of each sample
    has_few = len(samples) <= MANY
    tested = [parts == part for part in range(PARTS if has_few else 1)]  # each (N,)
    trained = [~is_out for is_out in tested] + ([torch.ones_like(tested[0])] if has_few else [])
    plans = [_balanced_plan(clusters, is_in, settings, generator) for is_in in trained]
    models = train(module, samples, clusters, plans, settings)
    layout = Layout.of(module)
    answers = [
        outputs(module, layout, model, samples[is_out.to(samples.device)]).double().cpu()
        for model, is_out in zip(models, tested, strict=False)
    ]
    truth = torch.cat([clusters[is_out] for is_out in tested])
    known_inputs = describe(samples, clusters, generator) if samples.is_floating_point() else None
    known_features = describe(_features(module, models[-1], samples)[0], clusters, generator)
    return _calibrated(models[-1], torch.cat(answers), truth, known_inputs, known_features)


def router_training(num_samples: int) -> TrainingSettings:
    """Return how a router is trained on so many samples unless told otherwise."""
    passes = round(max(20, min(60, SAMPLES_SEEN / num_samples)))
    return TrainingSettings(learning_rate=4e-3, weight_decay=1e-3, batch_size=128, local_epochs=passes)


def calibrate(answers: Tensor, clusters: Tensor) -> tuple[float, Tensor]:
    """Return the temperature and the bias (K,) that make these answers (N, K) likeliest; clusters count alike.

    This is bias-corrected temperature scaling (Alexandari et al. 2020). A small penalty keeps both finite where a
    router makes no mistake.
    """
    num_clusters = answers.shape[1]
    answers, weight = answers.double(), _weights(clusters, num_clusters)

    def objective(at: Tensor) -> Tensor:
        loss = F.cross_entropy(answers * at[0].exp() + at[1:], clusters, weight=weight)
        return loss + at.square().sum() / len(clusters)

    found = _minimum(objective, torch.zeros(1 + num_clusters, dtype=torch.float64))
    bias = found[1:]
    return float((-found[0]).exp()), bias - bias.mean()


def _minimum(objective: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Return where a smooth function of a few numbers is lowest, by Newton's method with a line search.

    `torch.optim.LBFGS` finds the same, but takes seconds to import torch's compiler.
    """
    at = start
    for _ in range(NEWTON_STEPS):
        at.requires_grad_()
        value = objective(at)
        [gradient] = torch.autograd.grad(value, at)
        at = at.detach()
        if gradient.norm() < FLAT:
            break
        curvatures, directions = torch.linalg.eigh(hessian(objective, at))
        step = directions @ (
            (directions.T @ gradient) / curvatures.abs().clamp_min(FLAT)
        )  # downhill, even where the curve is concave
        size = 1.0
        while size > FLAT and objective(at - size * step) > value - 1e-4 * size * (gradient @ step):
            size /= 2
        at = at - size * step
    return at.detach()


def _calibrated(
    model: Tensor, answers: Tensor, clusters: Tensor, known_inputs: Known | None, known_features: Known
) -> Router:
    """Return the router, calibrated on answers (N, K) of tests."""
    num_clusters = answers.shape[1]
    temperature, bias = calibrate(answers, clusters)
    shares = F.softmax(answers / temperature + bias, dim=1)
    is_right = (shares.argmax(dim=1) == clusters).double()
    each = [clusters == cluster for cluster in range(num_clusters)]
    return Router(
        model,
        temperature,
        bias,
        confusion=torch.stack([shares[own].mean(dim=0) for own in each]),
        accuracy=float(torch.stack([is_right[own].mean() for own in each]).mean()),
        known_inputs=known_inputs,
        known_features=known_features,
    )


def _balanced_plan(clusters: Tensor, is_in: Tensor, settings: TrainingSettings, generator: torch.Generator) -> Tensor:
    """Return the samples of each batch (steps, batch): those that are in, as many of each cluster."""
    own = [(is_in & (clusters == cluster)).nonzero().flatten() for cluster in range(int(clusters.max()) + 1)]
    most = max(map(len, own))
    # A smaller cluster repeats its samples.
    places = torch.cat([each.repeat(-(-most // len(each)))[:most] for each in own])
    return places[batch_plan(len(places), settings.batch_size, settings.local_epochs, generator)]


@torch.no_grad()
def _features(module: nn.Module, model: Tensor, inputs: Any) -> tuple[Tensor, Tensor]:
    """Return the inputs of the module's last linear layer (N, ...), or its answers if it has none, and its answers."""
    seen: list[Tensor] = []
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    hook = linear[-1].register_forward_pre_hook(lambda _, given: seen.append(given[0])) if linear else None
    try:
        answers: Tensor = outputs(module, Layout.of(module), model, inputs)
    finally:
        if hook is not None:
            hook.remove()
    return (seen[-1] if seen else answers), answers


def _check(module: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Refuse a module that does not give one number a cluster, and clusters with too few samples."""
    few = inputs[0][:2]
    shape = tuple(outputs(module, Layout.of(module), flatten(module), few).shape)
    if shape != (len(few), len(inputs)):
        raise ValueError(f"the router's module maps {len(few)} inputs to {shape}; expected {(len(few), len(inputs))}")
    for cluster, each in enumerate(inputs):
        if len(each) < PARTS:
            raise ValueError(
                f"cluster {cluster} has {len(each)} samples for the router; expected {PARTS} or more: give more samples"
            )


def _numbers(inputs: Sequence[Tensor]) -> Tensor:
    """Return the number of the cluster of each sample (N,)."""
    return torch.arange(len(inputs)).repeat_interleave(torch.tensor([len(each) for each in inputs]))


def _spread(count: int, generator: torch.Generator) -> Tensor:
    """Return a random part for each of some samples (count,); the parts are as large as each other."""
    return (torch.arange(count) % PARTS)[torch.randperm(count, generator=generator)]


def _weights(clusters: Tensor, num_clusters: int) -> Tensor:
    """Return the weight of a sample of each cluster (K,): clusters then count alike."""
    return 1 / torch.bincount(clusters, minlength=num_clusters).clamp_min(1).double()


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device
