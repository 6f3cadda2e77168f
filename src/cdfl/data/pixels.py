import torch
from torch import Tensor


def to_input(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Scale uint8 pixels to [-1, 1] for a network: the only place where that happens.

    The same for every source: a mean and deviation of one's own data would have to be shared between
    clients, and means of different domains would hide the very shift that clusters are about.

    >>> to_input(torch.tensor([0, 51, 255], dtype=torch.uint8))
    tensor([-1.0000, -0.6000,  1.0000])
    """
    if images.dtype != torch.uint8:
        raise TypeError(f"to_input scales uint8 pixels, got {images.dtype}; pass the images as fetched")
    return images.to(dtype) / 127.5 - 1
