"""Changes of image quality that make a cluster: brightness and blur, and fitting images to one shape."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from cdfl.data.errors import DataError

CHUNK = 4096


def shift(images: Tensor, description: str) -> Tensor:
    """Apply "none", "brightness FACTOR" or "blur SIGMA" (pixels) to uint8 images `(N, C, H, W)`.

    >>> shift(torch.tensor([[[[10, 200]]]], dtype=torch.uint8), "brightness 1.5").tolist()
    [[[[15, 255]]]]
    """
    kind, _, amount = description.partition(" ")
    if kind == "none" and not amount:
        return images
    try:
        value = float(amount)
    except ValueError:
        value = math.nan
    if kind not in ("brightness", "blur") or not 0 < value < math.inf:
        raise DataError(
            f'there is no shift {description!r}; expected "none", "brightness FACTOR" or "blur SIGMA" '
            "with a positive number"
        )
    if kind == "brightness":
        return _in_chunks(images, lambda pixels: pixels * value)
    return _in_chunks(images, lambda pixels: _blur(pixels, value))


def reshape(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Fit uint8 images to `(C, H, W)`: bilinear resizing, grey repeated into colours, colours averaged to grey.

    >>> reshape(torch.zeros(2, 1, 28, 28, dtype=torch.uint8), (3, 32, 32)).shape
    torch.Size([2, 3, 32, 32])
    >>> reshape(torch.tensor([[[[10]], [[20]], [[60]]]], dtype=torch.uint8), (1, 1, 1)).tolist()
    [[[[30]]]]
    """
    channels, height, width = shape
    if images.shape[1] not in (1, channels) and channels != 1:
        found = images.shape[1]
        raise DataError(
            f"images of {found} channels cannot become {channels}; give the shape {found} channels, or 1 for grey"
        )
    if channels == 1 < images.shape[1]:
        images = _in_chunks(images, lambda pixels: pixels.mean(1, keepdim=True))
    if images.shape[2:] != (height, width):
        images = _in_chunks(
            images,
            lambda pixels: F.interpolate(pixels, (height, width), mode="bilinear", align_corners=False, antialias=True),
        )
    return images.expand(-1, channels, -1, -1).contiguous()


def _blur(pixels: Tensor, sigma: float) -> Tensor:
    channels, side = pixels.shape[1], min(pixels.shape[2:])
    radius = min(math.ceil(3 * sigma), side - 1)  # reflection cannot reach past the far edge
    weights = torch.exp(-(torch.arange(-radius, radius + 1) ** 2) / (2 * sigma**2))
    weights = (weights / weights.sum()).expand(channels, 1, -1)
    padded = F.pad(pixels, (radius, radius, radius, radius), mode="reflect")
    rows = F.conv2d(padded, weights[:, :, None, :], groups=channels)
    return F.conv2d(rows, weights[:, :, :, None], groups=channels)


def _in_chunks(images: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.cat([change(chunk.float()).round().clamp(0, 255).to(torch.uint8) for chunk in images.split(CHUNK)])
