"""Proxy sets: small sets of one model are evaluated together, and the losses are those of each set alone."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cdfl.core import flatten
from cdfl.core.proxy_sets import FEWEST, PIECE, TOGETHER, LargestOfFour, ProxySets, for_evaluation, in_pieces, outputs


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
    assert isinstance(proxies.model, Counting)
    assert proxies.model.calls == 2


def test_large_sets_take_a_call_each() -> None:
    network = Counting()
    proxies = ProxySets(network, cross_entropy, sets_of(TOGETHER // 3, TOGETHER // 3))
    proxies(models_of(network, 1).repeat(2, 1), torch.arange(2))
    assert isinstance(proxies.model, Counting)
    assert proxies.model.calls == 2


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


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 1, 7, 5), (3, 2, 2), (1, 2, 1, 4)])
def test_the_largest_of_four_is_max_pooling(shape: tuple[int, ...]) -> None:
    images = torch.randn(shape)
    images.view(-1)[0] = float("nan")
    torch.testing.assert_close(
        LargestOfFour()(images),
        nn.functional.max_pool2d(images, 2) if min(shape[-2:]) > 1 else images[..., :0, ::2],
        rtol=0,
        atol=0,
        equal_nan=True,
    )


def test_the_network_itself_keeps_its_weights() -> None:
    network = Counting()
    before = flatten(network)
    ProxySets(network, cross_entropy, sets_of(4, 4)).of_each(list(models_of(network, 2)))
    assert torch.equal(flatten(network), before)
    assert network.training


def test_relu_comes_after_pooling_with_the_same_outputs() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
    copy, images = for_evaluation(network), torch.randn(5, 1, 8, 8)
    assert [type(module) for module in copy][1:4] == [LargestOfFour, nn.ReLU, nn.ReLU]
    assert torch.equal(copy(images), network(images))
    assert list(copy.state_dict()) == list(network.state_dict())


def test_a_copy_for_evaluation_gives_the_same_outputs() -> None:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.ReLU())
    network = nn.Sequential(inner, nn.MaxPool2d(2, stride=1), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(4, 2)).eval()
    copy, images = for_evaluation(network), torch.randn(5, 1, 12, 12)
    assert torch.equal(copy(images), network(images))
    assert [type(module) for module in copy.modules()].count(LargestOfFour) == 1
    assert isinstance(inner[1], nn.MaxPool2d)  # the network itself trains on
    assert list(copy.state_dict()) == list(network.state_dict())


@pytest.mark.parametrize(("size", "pieces"), [(1024, [128, 128, 44]), (2**14, [FEWEST] * 9 + [12]), (8, [300])])
def test_many_inputs_are_evaluated_in_pieces(size: int, pieces: list[int]) -> None:
    torch.manual_seed(0)
    network, inputs, seen = nn.Linear(size, 3), torch.randn(300, size), list[int]()
    assert PIECE == 128 * 1024
    found = in_pieces(lambda piece: (seen.append(len(piece)), network(piece))[1], inputs)
    assert seen == pieces
    torch.testing.assert_close(found, network(inputs))


@pytest.mark.parametrize("outputs_of", [lambda inputs: inputs.mean(dim=0), lambda inputs: (inputs, inputs)])
def test_outputs_that_are_not_one_for_each_sample_are_computed_at_once(outputs_of) -> None:
    inputs = torch.randn(300, 1024)
    for one, other in zip(in_pieces(outputs_of, inputs), outputs_of(inputs), strict=True):
        assert torch.equal(one, other)
