"""Small networks for text: scores of the next token at every place, (n, tokens, T), as `cross_entropy` takes them."""

from math import sqrt

import torch
from torch import Tensor, nn

from cdfl.models.recurrent import GRU, rowwise


class RecurrentText(nn.Module):
    """An embedding, a GRU, and one linear layer."""

    def __init__(self, num_tokens: int, width: int = 32, hidden: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, width)
        self.gru = GRU(width, hidden)
        self.last = nn.Linear(hidden, num_tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores (n, tokens, T) for tokens (n, T)."""
        return rowwise(self.last, self.gru(self.embedding(tokens))).mT


class TransformerText(nn.Module):
    """Embeddings of tokens and places, blocks of causal attention, and one linear layer. Nothing is dropped out."""

    def __init__(self, num_tokens: int, places: int, width: int = 32, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, width)
        self.places = nn.Parameter(0.02 * torch.randn(places, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, num_tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores (n, tokens, T) for tokens (n, T)."""
        hidden = self.blocks(self.embedding(tokens) + self.places[: tokens.shape[1]])
        return rowwise(self.last, self.norm(hidden)).mT


class Block(nn.Module):
    """Attention to earlier places, then two linear layers; both add to their input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attend, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs (n, T, width) with what was found added."""
        hidden = inputs + self._attention(self.norms[0](inputs))
        return hidden + rowwise(self.down, nn.functional.gelu(rowwise(self.up, self.norms[1](hidden))))

    def _attention(self, inputs: Tensor) -> Tensor:
        n, T, width = inputs.shape
        parts = rowwise(self.attend, inputs).view(n, T, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)  # each (n, heads, T, width / heads)
        scores = queries @ keys.mT / sqrt(width // self.heads)
        later = torch.ones(T, T, dtype=torch.bool, device=inputs.device).triu(1)
        shares = scores.masked_fill(later, float("-inf")).softmax(dim=-1)
        return rowwise(self.join, (shares @ values).transpose(1, 2).flatten(2))


def gru(input_shape: tuple[int, ...], num_outputs: int) -> RecurrentText:
    """Make a GRU of 64 units for tokens: about 29,000 parameters with 110 characters."""
    return RecurrentText(num_outputs)


def transformer(input_shape: tuple[int, ...], num_outputs: int) -> TransformerText:
    """Make a transformer of two blocks, 32 wide, for tokens."""
    return TransformerText(num_outputs, input_shape[0])
