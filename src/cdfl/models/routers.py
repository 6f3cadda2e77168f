"""Networks for the router: small ones that tell clusters apart, for pictures, text and tables."""

import torch
from torch import Tensor, nn

WIDTHS = (16, 32, 64)  # channels of the first convolution of a router for pictures
HIDDEN = 32  # hidden units of a router for numbers
BUCKETS = 4096  # pairs of tokens are counted in so many places
FEATURES = 32  # numbers that a router for tokens computes from its counts


def default_router(inputs: Tensor, num_clusters: int, num_parameters: int) -> nn.Module:
    """Make a router for inputs like these (N, ...), for experts with so many parameters.

    Pictures (N, C, H, W) get convolutions, with at most a twentieth of an expert's parameters if that is enough for the
    smallest; tokens (N, T), whole numbers, are counted; other numbers go through one hidden layer.

    >>> router = default_router(torch.zeros(2, 1, 28, 28), num_clusters=4, num_parameters=582_026)
    >>> router(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 4])
    """
    if not inputs.is_floating_point():
        return PairCounts(int(inputs.max()) + 1, num_clusters)
    if inputs.ndim == 4 and min(inputs.shape[2:]) >= 4:
        made = [_for_pictures(inputs[:1], num_clusters, width) for width in WIDTHS]
        fitting = [router for router in made if _size(router) <= num_parameters / 20]
        return fitting[-1] if fitting else made[0]
    return nn.Sequential(
        nn.Flatten(),
        nn.BatchNorm1d(inputs[0].numel(), affine=False, momentum=None),  # features of any scale
        nn.Linear(inputs[0].numel(), HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, num_clusters),
    )


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


def _for_pictures(pictures: Tensor, num_clusters: int, width: int) -> nn.Sequential:
    channels, height, width_of_picture = pictures.shape[1:]
    layers: list[nn.Module] = []
    side, before, after = min(height, width_of_picture), channels, width
    first = 5 if side >= 16 else 3
    layers += [nn.Conv2d(before, after, first, stride=2 if side >= 16 else 1, padding=first // 2), nn.ReLU()]
    layers += [nn.MaxPool2d(2), nn.Conv2d(after, 2 * after, 3, padding=1), nn.ReLU()]
    if side >= 32:
        layers += [nn.MaxPool2d(2), nn.Conv2d(2 * after, 4 * after, 3, padding=1), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(4) if side >= 32 else nn.MaxPool2d(2), nn.Flatten()]
    with torch.no_grad():
        flat = nn.Sequential(*layers)(torch.zeros(pictures.shape)).shape[1]
    return nn.Sequential(*layers, nn.Linear(flat, num_clusters))


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
