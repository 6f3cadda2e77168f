"""Proxy sets: small sets of one model are evaluated together, and the losses are those of each set alone."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cdfl.core import flatten
from cdfl.core.proxy_sets import TOGETHER, ProxySets, outputs


class Counting(nn.Module):
    """A network that counts its calls; `pair` returns its outputs twice, as some models do."""

    def __init__(self, *, pair: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
        self.pair, self.calls = pair, 0

    def forward(self, inputs: Any) -> Any:
        self.calls += 1
        found = self.layers(inputs["x"] if isinstance(inputs, dict) else inputs)
        return (found, found) if self.pair else found


def sets_of(*sizes: int) -> list[tuple[Any, Tensor]]:
    return [(torch.randn(size, 3), torch.randint(4, (size,))) for size in sizes]


def models_of(network: nn.Module, count: int) -> Tensor:
    start = flatten(network)
    return torch.stack([start + 0.1 * torch.randn_like(start) for _ in range(count)])


def one_by_one(proxies: ProxySets, models: Tensor, clusters: Tensor) -> Tensor:
    """Evaluate as the module would in the plainest way."""
    return torch.stack(
        [
            proxies.loss(outputs(proxies.model, proxies.layout, model, proxies.sets[own][0]), proxies.sets[own][1])
            for model, own in zip(models, clusters.tolist(), strict=True)
        ]
    )


@pytest.mark.parametrize("sizes", [(4, 4, 4), (1, 7, 30), (TOGETHER, 2, 2)])
def test_losses_are_those_of_each_set_alone(sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    network = Counting()
    proxies, [first, second] = ProxySets(network, cross_entropy, sets_of(*sizes)), models_of(network, 2)
    models = torch.stack([first, first, first, second, first, second, second])
    clusters = torch.tensor([0, 1, 2, 1, 0, 2, 1])
    torch.testing.assert_close(proxies(models, clusters), one_by_one(proxies, models, clusters))


def test_small_sets_of_one_model_take_one_call() -> None:
    network = Counting()
    proxies = ProxySets(network, cross_entropy, sets_of(4, 5, 6))
    proxies(models_of(network, 2).repeat_interleave(3, dim=0), torch.arange(3).repeat(2))
    assert network.calls == 2


def test_large_sets_take_a_call_each() -> None:
    network = Counting()
    proxies = ProxySets(network, cross_entropy, sets_of(TOGETHER, TOGETHER))
    proxies(models_of(network, 1).repeat(2, 1), torch.arange(2))
    assert network.calls == 2


def test_inputs_that_are_no_tensors_and_outputs_that_are_no_tensor() -> None:
    torch.manual_seed(0)
    network = Counting(pair=True)

    def loss(found: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        return cross_entropy(found[0], targets)

    plain = sets_of(4, 4)
    for sets in (plain, [({"x": inputs}, targets) for inputs, targets in plain]):
        proxies = ProxySets(network, loss, sets)
        models, clusters = models_of(network, 1).repeat(2, 1), torch.arange(2)
        torch.testing.assert_close(proxies(models, clusters), one_by_one(proxies, models, clusters))
