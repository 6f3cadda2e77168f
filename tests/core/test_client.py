from functools import partial

import pytest
import torch
from torch import nn

from cdfl.core import Optimizer, TrainingSettings, client_update, flatten, load

from .toy import Point, bits, half_square


def train(start, targets, *, model=None, loss=half_square, **changes):
    """One optimiser step for each target, from `start`; plain gradient descent by default."""
    settings = {"optimizer": "sgd", "learning_rate": 0.5, "weight_decay": 0.0, "proximal_strength": 0.0} | changes
    start = torch.tensor(start)
    model = Point(*[0.0] * len(start)) if model is None else model
    batches = [(torch.zeros(1, 1), torch.tensor([target])) for target in targets]
    return client_update(model, start, batches, loss, TrainingSettings(**settings)).tolist()


# -- worked by hand: the loss (w - 4)^2 / 2 has gradient w - 4; steps of one half


def test_gradient_descent():
    assert train([0.0], [[4.0]]) == [2]  # 0 - .5 * (0 - 4)
    assert train([0.0], [[4.0]] * 2) == [3]  # 2 - .5 * (2 - 4)
    assert train([0.0], [[4.0], [0.0]]) == [1]  # 2 - .5 * (2 - 0): batches in their order


def test_the_proximal_term_pulls_to_where_training_began():
    assert train([0.0], [[4.0]] * 2, proximal_strength=1.0) == [2]  # 2 - .5 * ((2 - 4) + 1 * (2 - 0))
    assert train([1.0], [[4.0]] * 2, proximal_strength=1.0) == [2.5]  # 1 -> 2.5 - .5 * (-1.5 + 1.5): not to zero


def test_weight_decay_pulls_to_zero():
    assert train([2.0], [[4.0]]) == [3]
    assert train([2.0], [[4.0]], weight_decay=1.0) == [2]  # 2 - .5 * ((2 - 4) + 1 * 2)


def test_momentum():
    assert train([0.0], [[4.0]] * 2, momentum=0.5) == [4]  # -4, then .5 * -4 + -2 = -4: two steps of 2


def test_adam_s_first_step_has_the_size_of_the_learning_rate():
    assert train([0.0, 0.0], [[4.0, -100.0]], optimizer="adam", learning_rate=0.1) == pytest.approx([0.1, -0.1])


def test_no_batches_change_nothing():
    assert train([3.0], []) == [3]


@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("rho", [0.0, 0.1, 2.0])
def test_training_agrees_with_gradient_descent_in_plain_python(rho, momentum, decay):
    start, rate, steps = [1.0, -2.0, 0.5], 0.1, 25
    targets = [[step % 3, 1.0, -step / 7] for step in range(steps)]
    weights, speed = list(start), [0.0] * 3
    for target in targets:
        for j in range(3):
            slope = (weights[j] - target[j]) + rho * (weights[j] - start[j]) + decay * weights[j]
            speed[j] = momentum * speed[j] + slope
        for j in range(3):
            weights[j] -= rate * speed[j]
    found = train(start, targets, learning_rate=rate, proximal_strength=rho, momentum=momentum, weight_decay=decay)
    assert found == pytest.approx(weights, rel=1e-5, abs=1e-6)


# -- any model and any loss; the arguments are not changed


def test_the_model_and_the_personal_model_are_not_changed():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).eval()
    before = {name: bits(value) for name, value in model.state_dict().items()}
    start = torch.randn(flatten(model).shape, generator=torch.Generator().manual_seed(0)).abs()
    kept = start.clone()
    x, y = torch.randn(8, 2, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 2
    trained = client_update(model, start, [(x, y)] * 3, nn.functional.cross_entropy, TrainingSettings())
    assert not torch.equal(trained, start)
    assert torch.equal(start, kept)
    assert {name: bits(value) for name, value in model.state_dict().items()} == before
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_training_begins_at_the_personal_model():
    assert train([0.0], [[4.0]], model=Point(100.0)) == [2]


def test_inputs_and_targets_may_be_of_any_type():
    """Here they are dicts; the loss is the sum of |w - 1|, whose gradient is a sign."""

    class Lookup(Point):
        def forward(self, inputs):
            return self.weights * inputs["scale"]

    def absolute(outputs, target):
        return (outputs - target["value"]).abs().sum()

    settings = TrainingSettings(optimizer="sgd", learning_rate=0.25, weight_decay=0.0, proximal_strength=0.0)
    batches = [({"scale": 2.0}, {"value": 1.0})] * 2
    found = client_update(Lookup(0.0), torch.tensor([0.0]), batches, absolute, settings)
    assert found.tolist() == [0.5]  # 0 + .25 * 2, then the gradient at |1 - 1| is 0


def test_batch_norm_statistics_are_updated_and_stay_out_of_the_proximal_term():
    """Inputs 0 and 2: mean 1, unbiased variance 2; torch keeps .9 of the old statistics and takes .1 of the new."""
    model = nn.BatchNorm1d(1)
    batch = torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0], [0.0]])
    settings = TrainingSettings(proximal_strength=1e6, learning_rate=1e-3)
    found = client_update(model, flatten(model), [batch], half_square, settings)
    assert found.shape == (4,)  # weight, bias, running_mean, running_var; no batch counter
    assert found[2:].tolist() == pytest.approx([0.1, 1.1])
    load(model, found)
    assert model.num_batches_tracked.item() == 0


def test_frozen_parameters_stay_in_the_vector_and_do_not_change():
    model = nn.Linear(1, 1)
    model.bias.requires_grad_(False)
    batch = torch.ones(1, 1), torch.tensor([[4.0]])
    settings = TrainingSettings(optimizer="sgd", learning_rate=0.5, weight_decay=0.1, proximal_strength=0.0)
    found = client_update(model, torch.tensor([0.0, 2.0]), [batch], half_square, settings)
    assert found.tolist() == [1, 2]  # 0 - .5 * (0 + 2 - 4); weight decay does not change the bias, either


def test_tied_parameters_stay_tied():
    """w * (w * 1): the gradient of (w^2)^2 / 2 at w = 1 is 2 w^3 = 2. Untied, each would have a gradient of 1."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
            self.second.weight = self.first.weight

        def forward(self, inputs):
            return self.second(self.first(torch.ones_like(inputs)))

    assert train([1.0], [[0.0]], model=Twice()) == [0]  # 1 - .5 * 2


class Sometimes(nn.Module):
    """Uses its second point only if the inputs are ones."""

    def __init__(self):
        super().__init__()
        self.always, self.sometimes = Point(0.0), Point(0.0)

    def forward(self, inputs):
        return self.always(inputs) + (self.sometimes(inputs) if bool(inputs.all()) else 0)


def test_a_parameter_that_the_loss_does_not_reach_still_gets_the_proximal_term_and_decay():
    assert train([0.0, 7.0], [[4.0]], model=Sometimes(), proximal_strength=1.0) == [2, 7]
    assert train([0.0, 7.0], [[4.0]], model=Sometimes(), weight_decay=0.5) == [2, 5.25]  # 7 - .5 * .5 * 7
    used, unused = (torch.ones(1, 1), torch.tensor([[4.0]])), (torch.zeros(1, 1), torch.tensor([[2.0]]))
    settings = TrainingSettings(optimizer="sgd", learning_rate=0.5, weight_decay=0.0, proximal_strength=1.0)
    found = client_update(Sometimes(), torch.zeros(2), [used, unused], half_square, settings)
    assert found.tolist() == [1, 1]  # both to 2; then 2 - .5 * (2 - 2 + 2) and, unused, 2 - .5 * 2


def test_a_personal_model_of_another_architecture_is_refused():
    with pytest.raises(ValueError, match=r"shape \(2,\); expected 1 entries"):
        train([0.0, 0.0], [[4.0]], model=Point(0.0))


@pytest.mark.parametrize(
    ("named", "theirs"),
    [
        ({"weight_decay": 0.005}, partial(torch.optim.Adam, lr=0.01, weight_decay=0.005)),
        ({"optimizer": "sgd", "momentum": 0.9}, partial(torch.optim.SGD, lr=0.01, weight_decay=5e-4, momentum=0.9)),
        ({"optimizer": "sgd", "weight_decay": 0.0}, partial(torch.optim.SGD, lr=0.01)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_optimiser_is_that_of_torch_bit_for_bit(named, theirs, dtype):
    torch.manual_seed(0)
    one, other = ([nn.Parameter(torch.linspace(-1, 1, count, dtype=dtype)) for count in (5, 3)] for _ in range(2))
    ours = Optimizer(one, TrainingSettings(learning_rate=0.01, **{"weight_decay": 5e-4} | named))
    theirs = theirs(other, fused=True)
    for _ in range(7):
        ours.forget_gradients()
        assert all(parameter.grad is None for parameter in one)
        for mine, yours in zip(one, other, strict=True):
            mine.grad = torch.randn_like(mine)
            yours.grad = mine.grad.clone()
        ours.step()
        theirs.step()
        assert all(torch.equal(mine, yours) for mine, yours in zip(one, other, strict=True))
    assert not torch.equal(one[0], torch.linspace(-1, 1, 5, dtype=dtype))
