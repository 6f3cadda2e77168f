import pytest
import torch
from torch import nn

from cdfl.core import Layout, flatten
from cdfl.core.quantization import dequantize, quantize, quantized_sizes, rounded
from cdfl.models import build


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", ["small-cnn", "resnet18"])
def test_quantized_models_are_those_models_nearly(name):
    torch.manual_seed(0)
    networks = [build(name, (3, 16, 16), 10) for _ in range(2)]
    layout = Layout.of(networks[0])
    models = torch.stack([flatten(network) for network in networks])
    found = dequantize(quantize(models, layout), layout)
    for (tensor, exact), is_matrix in zip(
        zip(layout.views(found).values(), layout.views(models).values(), strict=True),
        [len(shape) > 1 for shape in layout.shapes],
        strict=True,
    ):
        if is_matrix:  # half a level of the row's largest entry
            largest = exact.flatten(2).abs().amax(dim=2)
            assert bool(((tensor - exact).flatten(2).abs() <= largest[..., None] / 254 * 1.001).all())
        else:
            assert torch.equal(tensor, exact)


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_rounding_is_quantizing_and_back(dtype):
    network = build("resnet18", (3, 16, 16), 10)
    layout = Layout.of(network)
    models = torch.randn(3, layout.size, generator=seeded())
    before = models.clone()
    assert torch.equal(rounded(models, layout, dtype), dequantize(quantize(models, layout, dtype), layout, dtype))
    assert torch.equal(models, before)


def test_quantizing_twice_changes_nothing_more():
    network = build("small-cnn", (1, 8, 8), 10)
    layout, models = Layout.of(network), flatten(network)[None]
    once = rounded(models, layout)
    assert torch.allclose(rounded(once, layout), once, rtol=1e-6, atol=0)


def test_four_quantized_models_are_about_as_many_bytes_as_one():
    network = build("cnn", (1, 28, 28), 10)
    quantized = quantize(flatten(network).repeat(4, 1), Layout.of(network))
    num_bytes = sum(part.numel() * part.element_size() for part in quantized)
    assert num_bytes < 1.02 * 4 * Layout.of(network).size


def test_float16_and_float32_experts():
    network = build("small-cnn", (1, 8, 8), 10)
    layout, models = Layout.of(network), flatten(network).repeat(2, 1) * 3
    assert rounded(models, layout, "float32") is models
    assert torch.allclose(rounded(models, layout, "float16"), models, rtol=1e-3, atol=1e-4)
    huge = torch.full((1, layout.size), 1e6)
    assert bool(rounded(huge, layout, "float16").isfinite().all())


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
def test_the_sizes_of_quantized_models_are_known(dtype):
    layout = Layout.of(build("resnet18", (3, 16, 16), 10))
    quantized = quantize(torch.randn(2, layout.size, generator=seeded()), layout, dtype)
    assert tuple(part.shape[1] for part in quantized) == quantized_sizes(layout, dtype)


def test_zeros_and_models_without_matrices_are_quantized_too():
    layout = Layout.of(nn.Linear(3, 2))
    assert torch.equal(rounded(torch.zeros(2, 8), layout), torch.zeros(2, 8))
    layout = Layout.of(nn.LayerNorm(4))
    models = torch.randn(2, 8, generator=seeded())
    assert torch.equal(rounded(models, layout), models)
