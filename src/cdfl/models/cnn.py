"""The paper's CNN, and a small one for 8x8 images."""

from torch import nn


def cnn(input_shape: tuple[int, int, int], num_classes: int) -> nn.Sequential:
    """Make the paper's CNN: two 5x5 convolutions of 32 and 64 channels, 2x2 pooling, 512 hidden units."""
    channels, height, width = input_shape
    if min(height, width) < 16:
        raise ValueError(f"cnn needs images of at least 16x16, got {height}x{width}; use small-cnn")
    pooled = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * pooled[0] * pooled[1], 512),
        nn.ReLU(),
        nn.Linear(512, num_classes),
    )


def small_cnn(input_shape: tuple[int, int, int], num_classes: int) -> nn.Sequential:
    """Make a network for 8x8 images: two padded 3x3 convolutions (16, 32 channels), pooling, one linear layer."""
    channels, height, width = input_shape
    if min(height, width) < 4:
        raise ValueError(f"small-cnn needs images of at least 4x4, got {height}x{width}")
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), num_classes),
    )
