"""Networks of other sizes than the paper's CNN, for pictures of 28x28 and 32x32."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class _Lean:
    """Makes the paper's CNN with fewer channels and without a hidden layer."""

    width: int

    def __call__(self, input_shape: Shape, num_classes: int) -> nn.Module:
        channels, height, across = input_shape
        pooled = [((side - 4) // 2 - 4) // 2 for side in (height, across)]
        return nn.Sequential(
            nn.Conv2d(channels, self.width, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(self.width, 2 * self.width, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * self.width * pooled[0] * pooled[1], num_classes),
        )


def _double(input_shape: Shape, num_classes: int) -> nn.Module:
    """Make the paper's CNN with twice the channels and hidden units: four times the parameters."""
    channels, height, across = input_shape
    pooled = [((side - 4) // 2 - 4) // 2 for side in (height, across)]
    return nn.Sequential(
        nn.Conv2d(channels, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128 * pooled[0] * pooled[1], 1024),
        nn.ReLU(),
        nn.Linear(1024, num_classes),
    )


# Named by their parameters on 28x28 pictures of ten classes.
NETWORKS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "cnn-4k": _Lean(6),
    "cnn-15k": _Lean(14),
    "cnn-27k": _Lean(20),
    "cnn-108k": _Lean(43),
    "cnn-2m": _double,
}
