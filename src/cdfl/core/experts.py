"""Cluster models as experts: which mixture do inputs come from, and what do the experts together predict?

Not in the paper, which answers with one model, the average of the clusters. An average loses most of what single
clusters know; experts that are weighted for each input do not.

Evidence about a client's samples is a table of log-likelihoods (N, K): log p(sample | cluster), up to a constant for
each sample. The router gives one from the inputs (`Router.log_likelihoods`), the experts' losses give one from the
targets (`-scale * losses`), and tables add up.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Merges the outputs of K experts (K, N, ...) with weights (N, K) into outputs (N, ...).
Combine = Callable[[Tensor, Tensor], Tensor]

# Below this `Router.information`, clients also use their targets: the losses of the experts on some samples.
SURE = 0.6
LABELLED = 256  # on so many; more would cost more than a twentieth of a training
ITERATIONS = 40  # of EM; a router that is sure needs no more
PRIOR = 2.0  # the prior counts like so many samples


def mixture_of(
    evidence: Tensor,
    prior: Tensor | None = None,
    strength: float = 1.0,
    counts: Tensor | None = None,
    iterations: int = 100,
) -> Tensor:
    """Return the mixture (K,) under which the evidence (N, K) is likeliest.

    Expectation maximisation over the mixture (Saerens et al. 2002) with a Dirichlet prior: as if `strength` more
    samples had been seen whose clusters are spread as `prior` says (None: equally). So no samples give the prior, and
    evidence that is the same for all clusters gives it, too.

    Many clients at once: evidence (B, N, K), priors (B, K), and the `counts` (B,) of rows that are samples; the rows
    after them do not count. No branch depends on the value of a tensor.

    >>> one, other = torch.tensor([[0.0, -20.0]]), torch.tensor([[-20.0, 0.0]])
    >>> mixture_of(torch.cat([one, one, one, other]), strength=0.0)
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    evidence = evidence.double()
    num_samples, num_clusters = evidence.shape[-2:]
    uniform = evidence.new_full((*evidence.shape[:-2], num_clusters), 1 / num_clusters)
    prior = uniform if prior is None else prior.to(uniform).expand_as(uniform)
    if num_samples == 0:
        return prior.clone()
    # log-likelihoods relative to the sample's best cluster; none below e^-60, so that no share reaches exactly 0
    likelihoods = (evidence - evidence.amax(dim=-1, keepdim=True)).clamp_min(-60.0).exp()
    total = torch.full_like(uniform[..., :1], float(num_samples))
    absent: Tensor | None = None
    if counts is not None:
        is_sample = torch.arange(num_samples, device=evidence.device) < counts[..., None]
        likelihoods, absent = likelihoods * is_sample[..., None], 1.0 - is_sample.to(uniform)
        total = counts[..., None].to(uniform)
    of_clusters, seen_before, total = likelihoods.mT, strength * prior, (total + strength).clamp_min(1e-12)
    mixture = 0.99 * prior + 0.01 * uniform  # a cluster with a share of 0 could never get another one
    for _ in range(iterations):
        of_samples = (likelihoods @ mixture[..., None]).squeeze(-1)  # (..., N) p(sample) under this mixture
        if absent is not None:
            of_samples += absent  # no division by 0
        # E: p(cluster | sample) = mixture * likelihood / p(sample). M: the mean over samples.
        belongs = mixture * (of_clusters @ of_samples.reciprocal_()[..., None]).squeeze(-1)
        mixture = (belongs + seen_before) / total
        mixture = mixture / mixture.sum(dim=-1, keepdim=True)
    return mixture


def own_mixture(
    evidence: Tensor, prior: Tensor, information: float, scale: float, losses: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return a client's estimate of its mixture (K,), from all that it has: the router's evidence (N, K), and targets.

    `losses` returns the losses (n, K) of the experts on some of its samples, given their places (n,); `scale` makes
    them evidence (`loss_scale`). They are used only if the router's `information` is small. Then `prior`, the last
    mixture, counts as well.
    """
    if information >= SURE:
        return mixture_of(evidence, strength=PRIOR, iterations=ITERATIONS).cpu()
    count = len(evidence)
    some = torch.linspace(0, count - 1, min(count, LABELLED)).round().long()
    both = evidence.cpu().clone()
    both[some] -= scale * losses(some).double().cpu()
    return mixture_of(both, prior.cpu(), PRIOR)


def expert_weights(evidence: Tensor, mixture: Tensor) -> Tensor:
    """Return p(cluster | sample) (N, K) for a client with this mixture (K,), from evidence (N, K); rows sum to one."""
    return F.softmax(evidence.double() + mixture.double().clamp_min(1e-12).log(), dim=-1)


def likeliest(weights: Tensor) -> Tensor:
    """Return weights (N, K) that give each sample to its likeliest expert alone: a prediction then costs one model.

    >>> likeliest(torch.tensor([[0.2, 0.8], [0.6, 0.4]]))
    tensor([[0., 1.],
            [1., 0.]])
    """
    return F.one_hot(weights.argmax(dim=-1), weights.shape[-1]).to(weights)


def mix_values(outputs: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of the experts' outputs (K, N, ...): for regressions.

    >>> mix_values(torch.tensor([[[1.0]], [[3.0]]]), torch.tensor([[0.75, 0.25]]))
    tensor([[1.5000]])
    """
    return torch.einsum("kn...,nk->n...", outputs, weights.to(outputs))


def mix_logits(outputs: Tensor, weights: Tensor, dim: int = 1) -> Tensor:
    """Return log sum_k weight_k softmax(outputs_k): the weighted mean of the experts' probabilities, as logits.

    `dim` is the dimension of the classes in the outputs of one expert (N, C, ...). A loss or a metric of logits takes
    the result as it takes the outputs of one model.

    >>> both = mix_logits(torch.tensor([[[9.0, 0.0]], [[0.0, 9.0]]]), torch.tensor([[0.75, 0.25]]))
    >>> both.softmax(dim=1).round(decimals=2)
    tensor([[0.7500, 0.2500]])
    """
    dim = dim % (outputs.ndim - 1) + 1  # in the stack (K, N, C, ...)
    shape = [weights.shape[1], weights.shape[0]] + [1] * (outputs.ndim - 2)
    shares = weights.T.reshape(shape).to(outputs).clamp_min(torch.finfo(outputs.dtype).tiny).log()
    return torch.logsumexp(F.log_softmax(outputs, dim=dim) + shares, dim=0)


def mix_binary_logits(outputs: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of the experts' probabilities of yes, as logits: for one yes or no an output."""
    return torch.logit(mix_values(torch.sigmoid(outputs), weights), eps=torch.finfo(outputs.dtype).eps)


def combine_for(loss: Callable[..., Tensor]) -> Combine:
    """Return how experts that are trained with this loss are merged: by probabilities, or by values.

    >>> combine_for(F.cross_entropy).__name__, combine_for(F.mse_loss).__name__
    ('mix_logits', 'mix_values')
    """
    if loss is F.cross_entropy or isinstance(loss, nn.CrossEntropyLoss):
        return mix_logits
    if loss is F.binary_cross_entropy_with_logits or isinstance(loss, nn.BCEWithLogitsLoss):
        return mix_binary_logits
    return mix_values


def loss_scale(losses: Tensor, clusters: Tensor) -> float:
    """Return the factor that turns experts' losses (N, K) into evidence, from samples whose clusters (N,) are known.

    The evidence is `-factor * losses`. The factor makes the known clusters likeliest; it is 0 if the losses say
    nothing. A cross-entropy is a log-likelihood already: the factor is then 1 if the experts are calibrated, and less
    if they are too sure.
    """
    weight = 1 / torch.bincount(clusters, minlength=losses.shape[1]).clamp_min(1).double()
    relative = (losses - losses.mean(dim=1, keepdim=True)).double()
    size = relative.abs().mean().clamp_min(1e-30)

    def worse(factor: float) -> float:
        return float(F.cross_entropy(-factor * relative / size, clusters, weight=weight))

    low, high = 0.0, 50.0  # the objective is convex: golden-section search
    ratio = (5**0.5 - 1) / 2
    for _ in range(40):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if worse(left) <= worse(right) else (left, high)
    best = (low + high) / 2
    return best / float(size) if worse(best) < worse(0.0) else 0.0
