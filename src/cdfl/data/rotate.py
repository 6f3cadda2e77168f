"""Rotations of square images, counter-clockwise."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 4096  # images turned at a time: bounds the float32 copies


def quarter_turns(images: Tensor, turns: int) -> Tensor:
    """Turn `(N, C, H, W)` images by `turns` right angles, exactly: every pixel keeps its value."""
    return images if turns % 4 == 0 else torch.rot90(images, turns % 4, (-2, -1))


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Turn uint8 `(N, C, H, H)` images; right angles exactly, others bilinear with black corners.

    Bilinear rotation is meant to be done once, on the CPU, so that all devices see the same bytes.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    >>> rotate(image, 90).tolist()
    [[[[2, 4], [1, 3]]]]
    >>> torch.equal(rotate(image, 360), image)
    True
    """
    turns, rest = divmod(degrees, 90)
    if rest:
        images = torch.cat([_bilinear(chunk, rest) for chunk in images.split(CHUNK)])
    return quarter_turns(images, int(turns))


def _bilinear(images: Tensor, degrees: float) -> Tensor:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # Maps a place in the result to the place in the source, with y pointing down.
    theta = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]]).expand(len(images), 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    turned = F.grid_sample(images.float(), grid, "bilinear", "zeros", align_corners=False)
    return turned.round_().clamp_(0, 255).to(torch.uint8)
