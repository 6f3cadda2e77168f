"""The router: from which cluster does an input come? Not in the paper.

The server trains it on samples it already has, with the number of their cluster as the label. A client needs no labels
to use it: `mixture_of_inputs` reads its mixture off unlabelled inputs, `expert_weights` says how far to trust each
cluster model on each input, and `combine` merges their predictions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cdfl.core.batches import batch_plan
from cdfl.core.client import client_update
from cdfl.core.flat import Layout, flatten
from cdfl.core.proxy import outputs
from cdfl.core.settings import TrainingSettings


@dataclass(frozen=True, eq=False)
class Router:
    """A trained router, and what it can tell. Every number is about samples that it was not trained on."""

    model: Tensor  # (P,) the weights of a module that maps inputs to K numbers
    temperature: float  # the calibrated outputs are numbers / temperature + bias
    bias: Tensor  # (K,) float64, mean 0
    confusion: Tensor  # (K, K) float64: row j is the mean probability of each cluster for samples of cluster j

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

    def log_likelihoods(self, module: nn.Module, inputs: Tensor) -> Tensor:
        """Return log p(input | cluster), up to a constant for each input (N, K); float64, calibrated."""
        answers = outputs(module, Layout.of(module), self.model, inputs).double().cpu()
        return F.log_softmax(answers / self.temperature + self.bias, dim=1)


def train_router(
    module: nn.Module,
    inputs: Sequence[Tensor],
    settings: TrainingSettings,
    generator: torch.Generator,
    held_out: float = 0.25,
) -> Router:
    """Train `module`, which maps inputs to K numbers, on the inputs of K clusters for `settings.local_epochs` passes.

    A share `held_out` of each cluster's inputs is kept out of the training; the router is calibrated on it. Clusters
    count alike, however many samples they have.
    """
    _check_outputs(module, inputs)
    parts = [_split(number, each, held_out, generator) for number, each in enumerate(inputs)]
    train, clusters = _labelled([part[0] for part in parts])
    weight = 1 / torch.bincount(clusters).to(train.device, torch.float32)

    def loss(answers: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(answers, targets, weight=weight)

    plan = batch_plan(len(clusters), settings.batch_size, settings.local_epochs, generator)
    batches = ((train[batch], clusters[batch].to(train.device)) for batch in plan)
    model = client_update(module, flatten(module), batches, loss, replace(settings, proximal_strength=0.0))
    held, clusters = _labelled([part[1] for part in parts])
    answers = outputs(module, Layout.of(module), model, held).double().cpu()
    temperature, bias = calibrate(answers, clusters)
    shares = F.softmax(answers / temperature + bias, dim=1)
    confusion = torch.stack([shares[clusters == cluster].mean(dim=0) for cluster in range(len(inputs))])
    return Router(model, temperature, bias, confusion)


def calibrate(answers: Tensor, clusters: Tensor) -> tuple[float, Tensor]:
    """Return the temperature and the bias (K,) that make these answers (N, K) likeliest; clusters count alike.

    This is bias-corrected temperature scaling (Alexandari et al. 2020). A small penalty keeps both finite where a
    router makes no mistake.
    """
    num_clusters = answers.shape[1]
    weight = 1 / torch.bincount(clusters, minlength=num_clusters).clamp_min(1).double()
    log_scale = torch.zeros((), dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(num_clusters, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_scale, bias], max_iter=200, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(answers.double() * log_scale.exp() + bias, clusters, weight=weight)
        loss = loss + (log_scale**2 + bias.square().sum()) / len(clusters)
        loss.backward()
        return loss

    optimizer.step(objective)
    bias = bias.detach()
    return float((-log_scale.detach()).exp()), bias - bias.mean()


def mixture_of_inputs(
    log_likelihoods: Tensor, prior: Tensor | None = None, strength: float = 1.0, iterations: int = 200
) -> Tensor:
    """Return the mixture (K,) under which the router's answers (N, K) are likeliest.

    Expectation maximisation over the mixture (Saerens et al. 2002) with a Dirichlet prior: as if `strength` more inputs
    had been seen whose clusters are spread as `prior` says (None: equally). So no inputs at all give the prior.

    >>> one, other = torch.tensor([[0.0, -20.0]]), torch.tensor([[-20.0, 0.0]])
    >>> mixture_of_inputs(torch.cat([one, one, one, other]), strength=0.0)
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    likelihoods = log_likelihoods.double()
    num_clusters = likelihoods.shape[1]
    uniform = torch.full((num_clusters,), 1 / num_clusters, dtype=torch.float64)
    counted = strength * (uniform if prior is None else prior.double())
    mixture = uniform
    if len(likelihoods) + strength == 0:
        return uniform
    for _ in range(iterations):
        belongs = expert_weights(likelihoods, mixture)  # E: to which cluster does each input belong?
        mixture = (belongs.sum(dim=0) + counted) / (len(likelihoods) + strength)  # M: the mixture of those
    return mixture


def expert_weights(log_likelihoods: Tensor, mixture: Tensor) -> Tensor:
    """p(cluster | input) of each input (N, K) for a client with this mixture (K,); rows sum to one."""
    return F.softmax(log_likelihoods.double() + mixture.double().log(), dim=1)


def combine(predictions: Tensor, weights: Tensor, is_soft: bool = True) -> Tensor:
    """Merge the predictions of K experts (K, N, ...) with the weights (N, K) of each input.

    Soft: the weighted mean, so pass probabilities for a classification. Otherwise each input gets the prediction of
    its likeliest expert alone.
    """
    if not is_soft:
        weights = F.one_hot(weights.argmax(dim=1), weights.shape[1])
    return torch.einsum("kn...,nk->n...", predictions, weights.to(predictions))


def _check_outputs(module: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Refuse a module that does not give one number a cluster."""
    few = inputs[0][:2]
    shape = tuple(outputs(module, Layout.of(module), flatten(module), few).shape)
    if shape != (len(few), len(inputs)):
        raise ValueError(f"the router's module maps {len(few)} inputs to {shape}; expected {(len(few), len(inputs))}")


def _split(cluster: int, inputs: Tensor, held_out: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    count = round(held_out * len(inputs))
    if not 0 < count < len(inputs):
        raise ValueError(
            f"cluster {cluster} has {len(inputs)} samples for the router, of which {count} would be held out; "
            "expected at least one to train on and one to hold out: give more samples"
        )
    order = torch.randperm(len(inputs), generator=generator)
    return inputs[order[count:]], inputs[order[:count]]


def _labelled(inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """All inputs, and the number of the cluster of each."""
    return torch.cat(list(inputs)), torch.arange(len(inputs)).repeat_interleave(
        torch.tensor([len(each) for each in inputs])
    )
