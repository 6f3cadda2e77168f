"""Rotations of square images, counter-clockwise."""

import torch
from torch import Tensor


def quarter_turns(images: Tensor, turns: int) -> Tensor:
    """Turn `(N, C, H, W)` images by `turns` right angles, exactly: every pixel keeps its value."""
    return images if turns % 4 == 0 else torch.rot90(images, turns % 4, (-2, -1))
