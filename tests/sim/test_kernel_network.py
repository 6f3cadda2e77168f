"""Chains of layers, forward and backward by hand, against autograd through `vmap`."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cdfl.algorithms.fedem import MixtureNetwork
from cdfl.core import Layout, flatten
from cdfl.sim.kernels.block_sizes import INTERPRETED
from cdfl.sim.stacked_network import StackedNetwork

DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
# Triton's interpreter ticks arrays of one number into numbers, which NumPy is about to forbid.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),  # NumPy on NaN
]


def convolutional(channels=1):
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10),
    )  # fmt: skip


def perceptron():
    return nn.Sequential(nn.Flatten(), nn.Linear(225, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 10))


def regression():
    return nn.Sequential(nn.Flatten(), nn.Linear(225, 10))


def mixture():
    network = MixtureNetwork(convolutional(), 3)
    network.log_mixture.copy_(torch.tensor([0.6, 0.3, 0.1]).log())
    return network


NETWORKS = pytest.mark.parametrize("make", [convolutional, perceptron, regression, mixture])


def instance(make, dtype, height=3, channels=1):
    """A network, models around it as rows of a wider tensor, images channels last, targets."""
    torch.manual_seed(0)
    network = make().to(DEVICE, dtype)
    layout = Layout.of(network)
    start = flatten(network)
    models = torch.zeros(height, layout.size + 6, dtype=dtype, device=DEVICE)[:, : layout.size]
    models.copy_(start + torch.randn(models.shape).to(models) / 10)
    images = torch.randn(height, 5, 15, 15, channels).to(models).permute(0, 1, 4, 2, 3)
    return network, layout, models, images, torch.randint(10, (height, 5)).to(DEVICE)


def both(network, layout, precision="float32"):
    """The network through autograd, and as a kernels."""
    plain, kernels = (StackedNetwork(network, layout, cross_entropy, precision) for _ in range(2))
    plain.kernel_network, kernels.force_kernels = None, True
    return plain, kernels


def flat(gradients):
    return torch.cat([gradient for _, gradient in gradients], dim=1)


def error(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


@NETWORKS
def test_a_chain_has_the_outputs_and_gradients_of_autograd(make):
    network, layout, models, images, targets = instance(make, torch.float64)
    plain, kernels = both(network, layout)
    assert error(kernels.predict(models, images), plain.predict(models, images)) < 1e-14
    shared = images[:1].contiguous().expand(images.shape)  # NCHW, and the same for all
    assert error(kernels.predict(models, shared), plain.predict(models, shared)) < 1e-14
    expected = flat(plain.gradients(models, images, targets))
    assert error(flat(kernels.gradients(models, images, targets)), expected) < 1e-13


@NETWORKS
@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-5), ("tf32", 1e-2), ("bfloat16", 5e-2)])
def test_its_precision_is_what_was_asked_for(make, precision, bound):
    if INTERPRETED and precision != "float32":
        pytest.skip("Triton's interpreter multiplies bfloat16 numbers as if they were integers")
    bound *= 4 if make is mixture else 1  # rounded logits also decide which component made a sample
    network, layout, models, images, targets = instance(make, torch.float32)
    _, kernels = both(network, layout, precision)
    exact, _ = both(network.double(), layout)
    found = flat(kernels.gradients(models, images, targets))
    expected = flat(exact.gradients(models.double(), images.double(), targets))
    assert found.dtype == torch.float32
    assert error(found.double(), expected) < bound
    if precision == "bfloat16":
        assert error(found.double(), expected) > 1e-4  # or it was not asked
    said = kernels.predict(models, images)
    assert said.dtype == torch.float32
    assert error(said.double(), exact.predict(models.double(), images.double())) < bound


def test_a_row_that_diverges_leaves_the_others_alone():
    network, layout, models, images, targets = instance(convolutional, torch.float32)
    _, kernels = both(network, layout)
    expected = flat(kernels.gradients(models, images, targets))
    models[1] *= float("nan")
    found = flat(kernels.gradients(models, images, targets))
    assert torch.equal(found[[0, 2]], expected[[0, 2]])
    assert found[1].isnan().any()
    active = torch.tensor([True, False, True], device=DEVICE)
    assert kernels.predict(models, images, active)[[0, 2]].isfinite().all()


def test_frozen_layers_are_left_out():
    network, layout, models, images, targets = instance(convolutional, torch.float64)
    network[3].weight.requires_grad_(False)
    plain, kernels = both(network, layout)
    for (mine, own), (theirs, expected) in zip(
        kernels.gradients(models, images, targets), plain.gradients(models, images, targets), strict=True
    ):
        assert mine == theirs
        assert error(own, expected) < 1e-13
    assert len(kernels.pieces) == 2


def test_images_may_have_more_channels_than_the_network():
    network, layout, models, images, targets = instance(lambda: convolutional(3), torch.float64, channels=3)
    plain, kernels = both(network, layout)
    filled = torch.zeros(3, 5, 15, 15, 4, dtype=torch.float64, device=DEVICE)
    filled[..., :3] = images.permute(0, 1, 3, 4, 2)
    expected = flat(plain.gradients(models, images, targets))
    assert kernels.kernel_network.channels(3) == 4
    assert error(flat(kernels.gradients(models, filled.permute(0, 1, 4, 2, 3), targets)), expected) < 1e-13


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 2)],
        [nn.Conv2d(1, 4, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 2)],
        [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(4, 2)],
        [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(4, 2)],
        [nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)],
        [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Linear(4, 2)],
        [nn.Flatten(), nn.Linear(4, 4), nn.Linear(4, 2)],
        [nn.Flatten(), nn.Linear(4, 2), nn.ReLU()],
        [nn.Flatten(2), nn.Linear(4, 2)],
        [nn.Flatten()],
        [nn.Linear(4, 2)],
    ],
)
def test_what_is_no_chain_is_left_to_vmap(layers):
    network = nn.Sequential(*layers, nn.Linear(2, 2, bias=False)) if len(layers) == 1 else nn.Sequential(*layers)
    assert StackedNetwork(network, Layout.of(network), cross_entropy, "tf32").kernel_network is None


def test_another_loss_is_left_to_autograd():
    network = regression()
    stacked = StackedNetwork(network, Layout.of(network), nn.functional.multi_margin_loss, "tf32")
    assert stacked.kernel_network is None
