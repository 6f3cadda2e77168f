"""The router of a run: what it tells about clients' data, and what experts behind it would predict."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from cdfl.algorithms import Algorithm
from cdfl.core import TrainingSettings, experts
from cdfl.core.experts import expert_weights, likeliest, mixture_of
from cdfl.core.flat import Layout, flatten
from cdfl.core.router import Router, train_one_by_one
from cdfl.data import Draw, Samples
from cdfl.sim.client_stack import Stack
from cdfl.sim.engine import Training, fetch_all
from cdfl.sim.engine_choice import vmap_trains
from cdfl.sim.flops import count_flops
from cdfl.sim.scenario_instance import ScenarioInstance, TurnData

CHUNK = 8192  # inputs that the router sees at once


@dataclass(frozen=True, eq=False)
class TurnEvidence:
    """What the router tells about the data of one turn."""

    train: Tensor  # (n, K) evidence of the samples that a client trains on
    test: Tensor  # (n, K) of those that it is scored on
    mixture: Tensor  # (K,) float64 on the CPU, from the training inputs alone
    strange: float  # share of the training inputs that fit no cluster


class Routing:
    """The router of an instance. Its answers depend on data alone, so runs of one seed share them."""

    def __init__(self, instance: ScenarioInstance) -> None:
        self.instance = instance
        self.module: nn.Module = instance.router_module()
        self.router: Router = instance.train_router(self.module, train_together)
        self.flops = count_flops(self.module, instance.examples[0]).forward
        self.num_bytes = 4 * Layout.of(self.module).size
        self._known: WeakKeyDictionary[TurnData, TurnEvidence] = WeakKeyDictionary()

    @property
    def is_sure(self) -> bool:
        """Whether the router tells clusters apart well enough to need no targets."""
        return self.router.information >= experts.SURE

    @cached_property
    def loss_scale(self) -> float:
        """The factor that makes the experts' losses evidence, from the pre-trained clusters and the proxy sets."""
        if self.instance.start is None:
            raise RuntimeError("the clusters are not pre-trained")
        return self.instance.loss_scale(self.instance.start)

    def of(self, turns: Sequence[TurnData]) -> list[TurnEvidence]:
        """Return what the router tells about some turns; those that are new are computed together."""
        new = [turn for turn in dict.fromkeys(turns) if turn not in self._known]
        self._known.update(zip(new, self._compute([turn.draw for turn in new]), strict=True))
        return [self._known[turn] for turn in turns]

    def own_mixture(self, evidence: TurnEvidence, prior: Tensor, losses: Callable[[Tensor], Tensor]) -> Tensor:
        """Return a client's estimate of its mixture (K,): `core.experts.own_mixture`."""
        if self.is_sure:
            return evidence.mixture
        return experts.own_mixture(evidence.train, prior, self.router.information, self.loss_scale, losses)

    def _compute(self, draws: Sequence[Draw]) -> list[TurnEvidence]:
        if not draws:
            return []
        federation, dtype = self.instance.federation, self.instance.dtype
        train = [inputs for inputs, _ in fetch_all([(federation, draw.train) for draw in draws], dtype)]
        test = [inputs for inputs, _ in fetch_all([(federation, draw.test) for draw in draws], dtype)]
        sizes = [len(inputs) for inputs in train]
        seen = [self.router.look_at(self.module, some) for some in _in_chunks(torch.cat(train))]
        found = torch.cat([view.evidence for view in seen])[: sum(sizes)]
        is_strange = torch.cat([view.is_strange for view in seen])[: sum(sizes)].cpu()
        evidence = list(found.split(sizes))
        counts = torch.tensor(sizes, device=found.device)
        padded = pad_sequence(evidence, batch_first=True)
        mixtures = mixture_of(padded, strength=experts.PRIOR, counts=counts, iterations=experts.ITERATIONS).cpu()
        strange = [float(own.double().mean()) for own in is_strange.split(sizes)]
        tested = torch.cat([self.router.evidence(self.module, some) for some in _in_chunks(torch.cat(test))])
        tests = [len(inputs) for inputs in test]
        return [
            TurnEvidence(*each)
            for each in zip(evidence, tested[: sum(tests)].split(tests), mixtures, strange, strict=True)
        ]


def _in_chunks(inputs: Tensor) -> Iterator[Tensor]:
    """Yield inputs (n, ...) in a few sizes; on a GPU the last chunk repeats its first input up to a power of two.

    A library of convolutions plans its work for every new size, which takes longer than the work.
    """
    for chunk in inputs.split(CHUNK):
        missing = (1 << (len(chunk) - 1).bit_length()) - len(chunk) if inputs.is_cuda else 0
        yield torch.cat([chunk, chunk[:1].expand(missing, *chunk.shape[1:])]) if missing else chunk


class _RouterData:
    """The samples of a router, as a stack fetches those of clients."""

    def __init__(self, samples: Tensor, clusters: Tensor) -> None:
        self.samples, self.clusters = samples, clusters.to(samples.device)
        self.input_shape, self.target_shape = tuple(samples.shape[1:]), ()

    def ready(self, wanted: Samples, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return samples and the numbers of their clusters."""
        places = torch.from_numpy(wanted.index).to(self.samples.device)
        return self.samples[places], self.clusters[places]

    def dtypes(self, dtype: torch.dtype) -> tuple[torch.dtype, torch.dtype]:
        """Return the types of both."""
        return self.samples.dtype, torch.int64


def train_together(
    module: nn.Module, samples: Tensor, clusters: Tensor, plans: Sequence[Tensor], settings: TrainingSettings
) -> list[Tensor]:
    """Train routers in a stack, on a GPU by CUDA graphs; up to rounding, as `train_one_by_one` does."""
    data: Any = _RouterData(samples, clusters)
    everything = Samples("router", clusters.numpy(), np.arange(len(clusters)))
    trainings = [Training(data, everything, flatten(module), plan, 0) for plan in plans]
    if not vmap_trains(module, cross_entropy, samples[:2], clusters[:2].to(samples.device)):
        return train_one_by_one(module, samples, clusters, plans, settings)
    images, dtype = samples.ndim == 4, flatten(module).dtype
    if samples.device.type == "cuda":
        from cdfl.sim.cuda_client_stack import GraphStack

        stack: Stack = GraphStack(module, cross_entropy, settings, dtype, images=images)
    else:
        stack = Stack(module, cross_entropy, settings, dtype, images=images)
    return list(stack.train(trainings))


def has_router(algorithm: Algorithm, state: Any) -> bool:
    """Return whether a run has a router: if replies are experts, and there are several cluster models to weight."""
    return algorithm.settings.replies.reply == "experts" and len(algorithm.cluster_models(state)) > 1


def served(
    combine: Callable[[Tensor, Tensor], Tensor],
    outputs: Sequence[Tensor],
    evidence: Sequence[Tensor],
    mixtures: Sequence[Tensor],
    *,
    one_expert: bool = False,
) -> list[Tensor]:
    """Return what B clients predict with K experts each: `outputs` holds B * K tensors (n, ...), K for each client."""
    sizes = [len(own) for own in evidence]
    num_experts = len(outputs) // len(sizes)
    of_experts = torch.stack([torch.cat(list(outputs[k::num_experts])) for k in range(num_experts)])  # (K, N, ...)
    shares = (
        torch.stack(list(mixtures))
        .to(evidence[0])
        .repeat_interleave(torch.tensor(sizes, device=evidence[0].device), dim=0)
    )
    weights = expert_weights(torch.cat(list(evidence)), shares)
    return list(combine(of_experts, likeliest(weights) if one_expert else weights).split(sizes))
