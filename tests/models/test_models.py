import pytest
import torch

from cdfl.models import MODELS, build


@pytest.mark.parametrize(
    ("name", "shape", "num_classes", "parameters"),
    [
        # 25*1*32+32 + 25*32*64+64 + 64*4*4*512+512 + 512*10+10, the count that the findings and the paper's CNN share
        ("cnn", (1, 28, 28), 10, 582_026),
        # 25*3*32+32 + 25*32*64+64 + 64*5*5*512+512 + 512*10+10
        ("cnn", (3, 32, 32), 10, 878_538),
        # 9*3*64+2*64; 4*(9*64*64+2*64); stages of 128, 256, 512 with 1x1 shortcuts; 512*100+100
        ("resnet18", (3, 32, 32), 100, 11_220_132),
        ("resnet18", (3, 84, 84), 100, 11_220_132),
        # 9*1*16+16 + 9*16*32+32 + 32*2*2*10+10
        ("small-cnn", (1, 8, 8), 10, 6_090),
    ],
)
def test_parameter_count_and_output_shape(name, shape, num_classes, parameters):
    model = build(name, shape, num_classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert model(torch.zeros(2, *shape)).shape == (2, num_classes)


def test_resnet_counts_by_hand():
    """The stages once more, from the layer sizes."""
    stages, before = 0, 64
    for width in (64, 128, 256, 512):
        convolutions = 9 * before * width + 3 * 9 * width * width
        shortcut = before * width + 2 * width if before != width else 0
        stages, before = stages + convolutions + 4 * 2 * width + shortcut, width
    assert 9 * 3 * 64 + 2 * 64 + stages + 512 * 100 + 100 == 11_220_132


@pytest.mark.parametrize("name", MODELS)
def test_torchs_generator_decides_the_weights(name):
    models = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        models.append(torch.cat([p.detach().flatten() for p in build(name, (1, 28, 28), 10).parameters()]))
    assert torch.equal(models[0], models[1])
    assert not torch.equal(models[0], models[2])


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="there is no model 'vgg'; there are cnn, gru, mlp, resnet18, small-cnn"):
        build("vgg", (1, 28, 28), 10)
    with pytest.raises(ValueError, match="cnn needs images of at least 16x16, got 8x8; use small-cnn"):
        build("cnn", (1, 8, 8), 10)
    with pytest.raises(ValueError, match="small-cnn needs images of at least 4x4, got 3x3"):
        build("small-cnn", (1, 3, 3), 10)
