"""Networks for the router: small ones that tell clusters apart, for pictures, text and tables."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

WIDTHS = (16, 32, 64)  # channels of the first convolution of a router for pictures
SMALLEST = 16  # pixels a side; smaller pictures are told apart pixel by pixel, which is better there and faster
HIDDEN = 64  # hidden units of a router for numbers
BUCKETS = 4096  # pairs of tokens are counted in so many places
FEATURES = 32  # numbers that a router for tokens computes from its counts


def router_spec(inputs: Tensor, num_clusters: int, num_parameters: int) -> dict[str, Any]:
    """Describe a router for inputs like these (N, ...) and for experts with so many parameters, for `build_router`.

    Pictures (N, C, H, W) get convolutions, with at most a twentieth of an expert's parameters unless the smallest has
    more; tokens (N, T), whole numbers, are counted; other numbers, and tiny pictures, go through one hidden layer.

    >>> spec = router_spec(torch.zeros(2, 1, 28, 28), num_clusters=4, num_parameters=582_026)
    >>> spec
    {'kind': 'pictures', 'shape': [1, 28, 28], 'num_clusters': 4, 'width': 32}
    >>> build_router(spec)(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 4])
    """
    shape = list(inputs.shape[1:])
    if not inputs.is_floating_point():
        return {"kind": "tokens", "num_tokens": int(inputs.max()) + 1, "num_clusters": num_clusters}
    if len(shape) == 3 and min(shape[1:]) >= SMALLEST:
        specs = [{"kind": "pictures", "shape": shape, "num_clusters": num_clusters, "width": width} for width in WIDTHS]
        fitting = [spec for spec in specs if _size(build_router(spec)) <= num_parameters / 20]
        return fitting[-1] if fitting else specs[0]
    return {"kind": "numbers", "size": max(1, inputs[0].numel()), "num_clusters": num_clusters}


def build_router(spec: Mapping[str, Any]) -> nn.Module:
    """Make the router that `router_spec` describes; raise ValueError for another description."""
    try:
        if spec["kind"] == "pictures":
            return _for_pictures(tuple(spec["shape"]), spec["num_clusters"], spec["width"])
        if spec["kind"] == "tokens":
            return PairCounts(spec["num_tokens"], spec["num_clusters"])
        if spec["kind"] == "numbers":
            return _for_numbers(spec["size"], spec["num_clusters"])
    except (KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"the router {dict(spec)} cannot be made: {error}") from error
    raise ValueError(f"there is no router of kind {spec['kind']!r}; there are pictures, tokens and numbers")


class PairCounts(nn.Module):
    """Counts single tokens and pairs of neighbours in a text (N, T), and tells clusters apart by the counts."""

    def __init__(self, num_tokens: int, num_clusters: int) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.singles = nn.EmbeddingBag(num_tokens, FEATURES, mode="mean")
        self.pairs = nn.EmbeddingBag(BUCKETS, FEATURES, mode="mean")
        self.answers = nn.Linear(FEATURES, num_clusters)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return one number a cluster (N, K). A token that the server has never seen counts as another one."""
        tokens = tokens.flatten(1).clamp(0, self.num_tokens - 1)
        pairs = (tokens[:, :-1] * 31_337 + tokens[:, 1:] * 7_919) % BUCKETS if tokens.shape[1] > 1 else tokens * 0
        answers: Tensor = self.answers(torch.relu(self.singles(tokens) + self.pairs(pairs)))
        return answers


def _for_numbers(size: int, num_clusters: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.BatchNorm1d(size, affine=False, momentum=None),  # features of any scale
        nn.Linear(size, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, num_clusters),
    )


def _for_pictures(shape: tuple[int, ...], num_clusters: int, width: int) -> nn.Sequential:
    channels, side = shape[0], min(shape[1:])
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 5, stride=2, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU()]
    if side >= 32:
        layers += [nn.MaxPool2d(2), nn.Conv2d(2 * width, 4 * width, 3, padding=1), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(4) if side >= 32 else nn.MaxPool2d(2), nn.Flatten()]
    with torch.no_grad():
        flat = nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*layers, nn.Linear(flat, num_clusters))


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
