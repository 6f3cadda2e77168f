"""The paper's ResNet-18."""

import torch.nn.functional as F
from torch import Tensor, nn


def resnet18(input_shape: tuple[int, int, int], num_classes: int) -> nn.Sequential:
    """Make the paper's ResNet-18: a 3x3 stem without pooling, four stages of two blocks, average pooling."""
    stem = (
        nn.Conv2d(input_shape[0], 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
    )
    widths = (64, 128, 256, 512)
    stages = [
        nn.Sequential(Block(before, width, 1 if width == 64 else 2), Block(width, width, 1))
        for before, width in zip((64, *widths), widths, strict=False)
    ]
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, num_classes))


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut (the paper's BasicBlock)."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or before != width:
            self.shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, inputs: Tensor) -> Tensor:
        """Add the shortcut, then ReLU."""
        return F.relu(self.body(inputs) + self.shortcut(inputs))
