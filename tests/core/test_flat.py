import pytest
import torch
from torch import nn

from cdfl.core import Layout, flatten, load

from .toy import bits


class Odd(nn.Module):
    """A scalar parameter, a frozen one, two names for one tensor, and every kind of buffer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.frozen = nn.Parameter(torch.tensor([3.0, 4.0]), requires_grad=False)
        self.first = nn.Linear(2, 1, bias=False)
        self.second = nn.Linear(2, 1, bias=False)
        self.first.weight = self.second.weight = nn.Parameter(torch.tensor([[5.0, 6.0]]))
        self.register_buffer("running", torch.tensor([7.0]))
        self.register_buffer("counter", torch.tensor(8))
        self.register_buffer("mask", torch.tensor([True]))
        self.register_buffer("scratch", torch.tensor([9.0]), persistent=False)


def test_a_vector_holds_parameters_and_then_saved_float_buffers():
    model = Odd()
    layout = Layout.of(model)
    assert flatten(model).tolist() == [2, 3, 4, 5, 6, 7]  # the tied weight once; no counter, mask or scratch
    assert (layout.num_parameters, layout.size) == (5, 6)
    assert layout.names == ("scale", "frozen", "first.weight", "running")


def test_load_writes_the_entries_that_flatten_reads():
    model = Odd()
    load(model, torch.tensor([12.0, 13, 14, 15, 16, 17]))
    assert flatten(model).tolist() == [12, 13, 14, 15, 16, 17]
    assert model.second.weight.tolist() == [[15, 16]]
    assert model.first.weight is model.second.weight
    assert (model.counter.item(), model.mask.item(), model.scratch.item()) == (8, True, 9)
    assert model.scale.requires_grad
    assert not model.frozen.requires_grad


def test_running_statistics_are_in_the_vector_and_the_batch_counter_is_not():
    model = nn.BatchNorm1d(1)
    model.num_batches_tracked.fill_(5)
    assert flatten(model).tolist() == [1, 0, 0, 1]  # weight, bias, running_mean, running_var
    assert Layout.of(model).num_parameters == 2
    load(model, torch.tensor([2.0, 3, 4, 5]))
    assert (model.weight.item(), model.bias.item()) == (2, 3)
    assert (model.running_mean.item(), model.running_var.item()) == (4, 5)
    assert model.num_batches_tracked.item() == 5


def test_flatten_copies():
    model = nn.Linear(2, 1)
    vector = flatten(model)
    before = bits(flatten(model))
    vector.zero_()
    assert bits(flatten(model)) == before
    assert not vector.requires_grad


def test_load_then_flatten_keeps_every_bit():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3))
    vector = torch.randn(Layout.of(model).size, generator=torch.Generator().manual_seed(0))
    vector[0] = -0.0
    load(model, vector)
    assert bits(flatten(model)) == bits(vector)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_views_are_windows_into_one_vector_or_a_stack(lead):
    layout = Layout.of(Odd())
    stack = torch.arange(layout.size * max(1, torch.Size(lead).numel())).float().view(*lead, layout.size)
    views = layout.views(stack)
    assert {name: tuple(view.shape) for name, view in views.items()} == {
        "scale": (*lead,),
        "frozen": (*lead, 2),
        "first.weight": (*lead, 1, 2),
        "running": (*lead, 1),
    }
    assert torch.equal(views["first.weight"].flatten(-2), stack[..., 3:5])
    views["scale"].fill_(-1)
    assert bool((stack[..., 0] == -1).all())


def test_a_vector_of_another_model_is_refused():
    for wrong in (torch.zeros(4), torch.zeros(2, 4), torch.tensor(0.0)):
        with pytest.raises(ValueError, match=r"has shape .*; expected 3 entries .* another model") as caught:
            load(nn.Linear(2, 1), wrong)
        assert str(tuple(wrong.shape)) in str(caught.value)


def test_a_model_that_cannot_be_mixed_is_refused():
    with pytest.raises(ValueError, match="ReLU has no parameters"):
        Layout.of(nn.ReLU())
    whole = nn.Linear(1, 1)
    whole.bias = nn.Parameter(torch.tensor([1]), requires_grad=False)
    with pytest.raises(ValueError, match=r"parameter bias is torch.int64; only real floating-point"):
        Layout.of(whole)
