"""Change images: rotate, brighten, blur, resize, and scale pixels for a network."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from cdfl.data.errors import DataError

CHUNK = 4096  # this many images are transformed at a time, to bound the memory of their float32 copies


def to_input(inputs: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Prepare stored inputs for the network: scale uint8 pixels to [-1, 1], convert floating-point numbers to `dtype`.

    Tokens (int64) stay as they are. Every source of images is scaled in the same way. Clients would have to share the
    mean and deviation of their data to normalise by them, and normalising each domain by its own mean would hide the
    shift between domains.

    >>> to_input(torch.tensor([0, 51, 255], dtype=torch.uint8))
    tensor([-1.0000, -0.6000,  1.0000])
    >>> to_input(torch.tensor([3, 17]))
    tensor([ 3, 17])
    """
    if inputs.dtype == torch.uint8:
        return inputs.to(dtype) / 127.5 - 1
    return inputs.to(dtype) if inputs.is_floating_point() else inputs


def quarter_turns(images: Tensor, turns: int) -> Tensor:
    """Rotate `(N, C, H, W)` images counter-clockwise by `turns` right angles; every pixel keeps its value."""
    return images if turns % 4 == 0 else torch.rot90(images, turns % 4, (-2, -1))


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Rotate uint8 `(N, C, H, H)` images counter-clockwise: right angles exactly, others bilinear with black corners.

    Rotate on the CPU: then all devices see the same bytes.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    >>> rotate(image, 90).tolist()
    [[[[2, 4], [1, 3]]]]
    >>> torch.equal(rotate(image, 360), image)
    True
    """
    turns, rest = divmod(degrees, 90)
    if rest:
        images = _in_chunks(images, lambda pixels: _bilinear(pixels, rest))
    return quarter_turns(images, int(turns))


def shift(images: Tensor, description: str) -> Tensor:
    """Apply "none", "brightness FACTOR" or "blur SIGMA" (in pixels) to uint8 images `(N, C, H, W)`.

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
    """Fit uint8 images to `(C, H, W)`: resize bilinearly, repeat grey into colours, average colours to grey.

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


def _bilinear(pixels: Tensor, degrees: float) -> Tensor:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # Maps a position in the result to a position in the source; y points down.
    theta = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]]).expand(len(pixels), 2, 3)
    grid = F.affine_grid(theta, list(pixels.shape), align_corners=False)
    return F.grid_sample(pixels, grid, "bilinear", "zeros", align_corners=False)


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
