"""Recurrent and attending networks: torch's own as the twin, alone and in stacks."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from cdfl.models import build
from cdfl.models.recurrent import GRU, plain_recurrence
from cdfl.models.text import TransformerText


@pytest.fixture
def twins():
    torch.manual_seed(0)
    ours, theirs = GRU(3, 5).double(), nn.GRU(3, 5, batch_first=True).double()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def test_the_gru_and_its_gradients_are_torchs(twins):
    ours, theirs = twins
    inputs = [torch.randn(4, 7, 3, dtype=torch.float64).requires_grad_()]
    inputs.append(inputs[0].detach().clone().requires_grad_())
    states = ours(inputs[0]), theirs(inputs[1])[0]
    weights = torch.randn(4, 7, 5, dtype=torch.float64)
    for own in states:
        (own * weights).sum().backward()
    assert (states[0] - states[1]).abs().max() < 1e-14
    assert (inputs[0].grad - inputs[1].grad).abs().max() < 1e-13
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (one.grad - other.grad).abs().max() < 1e-12, name


def test_without_gradients_the_operations_are_plain_and_the_states_the_same(twins):
    ours, _ = twins
    inputs = torch.randn(2, 6, 3, dtype=torch.float64)
    with torch.no_grad():
        assert (ours(inputs) - ours.train()(inputs)).abs().max() == 0
        plain = ours(inputs)
    assert (plain - ours(inputs)).abs().max() < 1e-15


def test_gradients_by_finite_differences():
    sums, weight, bias = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 3, 6), (6, 2), (6,))
    )
    from cdfl.models.recurrent import Recurrence

    assert torch.autograd.gradcheck(lambda *given: Recurrence.apply(*given)[0], (sums, weight, bias))
    assert torch.autograd.gradcheck(plain_recurrence, (sums, weight, bias))


@pytest.mark.parametrize("name", ["gru", "transformer"])
def test_a_stack_has_the_gradients_of_each_client(name):
    torch.manual_seed(0)
    models = [build(name, (9,), 11).double() for _ in range(3)]
    inputs, targets = torch.randint(0, 11, (3, 4, 9)), torch.randint(0, 11, (3, 4, 9))
    stacked = {
        key: torch.stack([dict(model.named_parameters())[key].detach() for model in models]).requires_grad_()
        for key, _ in models[0].named_parameters()
    }
    outputs = vmap(lambda weights, own: functional_call(models[0], weights, (own,)))(stacked, inputs)
    found = torch.autograd.grad(vmap(cross_entropy)(outputs, targets).sum(), list(stacked.values()))
    for row, model in enumerate(models):
        cross_entropy(model(inputs[row]), targets[row]).backward()
        for gradient, parameter in zip(found, model.parameters(), strict=True):
            assert (gradient[row] - parameter.grad).abs().max() < 1e-12


@pytest.mark.parametrize("name", ["gru", "transformer"])
def test_no_place_sees_later_ones(name):
    torch.manual_seed(0)
    model = build(name, (9,), 11).eval()
    tokens = torch.randint(0, 11, (2, 9))
    other = tokens.clone()
    other[:, 6:] = (other[:, 6:] + 1) % 11
    scores, changed = model(tokens), model(other)
    assert scores.shape == (2, 11, 9)
    assert torch.equal(scores[:, :, :6], changed[:, :, :6])
    assert not torch.equal(scores[:, :, 6:], changed[:, :, 6:])


def test_attention_by_torch():
    torch.manual_seed(0)
    block = TransformerText(11, 9).blocks[0]
    inputs = torch.randn(2, 9, 32)
    queries, keys, values = block.attend(inputs).view(2, 9, 3, 4, 8).permute(2, 0, 3, 1, 4)
    expected = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    expected = block.join(expected.transpose(1, 2).flatten(2))
    assert (block._attention(inputs) - expected).abs().max() < 1e-5


def test_a_table_network_takes_any_shape():
    assert build("mlp", (3, 2), 4)(torch.zeros(5, 3, 2)).shape == (5, 4)
