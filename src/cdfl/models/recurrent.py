"""A GRU whose clients stack: with B clients, every operation works on all of them at once.

torch's own GRU cannot be vectorised by `vmap`. A plain loop over time can, but its gradient of the weights is a product
for each step. Here the gradient is written out, and that product is one over all steps.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class GRU(nn.Module):
    """One layer, as `torch.nn.GRU(input_size, hidden_size, batch_first=True)`, with the same names of weights.

    >>> one, other = GRU(3, 5), nn.GRU(3, 5, batch_first=True)
    >>> _ = one.load_state_dict(other.state_dict())
    >>> inputs = torch.randn(2, 7, 3)
    >>> torch.allclose(one(inputs), other(inputs)[0], atol=1e-6)
    True
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight_ih_l0 = nn.Parameter(torch.empty(3 * hidden_size, input_size))
        self.weight_hh_l0 = nn.Parameter(torch.empty(3 * hidden_size, hidden_size))
        self.bias_ih_l0 = nn.Parameter(torch.empty(3 * hidden_size))
        self.bias_hh_l0 = nn.Parameter(torch.empty(3 * hidden_size))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden_size**-0.5), hidden_size**-0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the hidden state after every step, (n, T, H), for inputs (n, T, I)."""
        sums = rowwise(F.linear, inputs, self.weight_ih_l0, self.bias_ih_l0)  # (n, T, 3H), all steps at once
        if torch.is_grad_enabled():
            states: Tensor
            states, *_ = Recurrence.apply(sums, self.weight_hh_l0, self.bias_hh_l0)  # type: ignore[no-untyped-call]
            return states
        return plain_recurrence(sums, self.weight_hh_l0, self.bias_hh_l0)


def rowwise(function: Any, inputs: Tensor, *weights: Tensor | None) -> Tensor:
    """Apply a function of rows (n, I) to inputs (n, T, I): one product, where vmap would make n of them."""
    found: Tensor = function(inputs.flatten(0, 1), *weights)
    return found.view(*inputs.shape[:2], -1)


def plain_recurrence(sums: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the states (n, T, H) from the sums of inputs (n, T, 3H), in plain operations, which can be exported."""
    size = weight.shape[1]
    state, states = sums.new_zeros(sums.shape[0], size), []  # len() would fix the number of samples in an export
    for own in sums.unbind(1):
        inner = F.linear(state, weight, bias)
        reset, update = torch.sigmoid(own[:, : 2 * size] + inner[:, : 2 * size]).chunk(2, dim=1)
        new = torch.tanh(own[:, 2 * size :] + reset * inner[:, 2 * size :])
        state = torch.lerp(new, state, update)
        states.append(state)
    return torch.stack(states, dim=1)


class Recurrence(torch.autograd.Function):
    """`plain_recurrence` with its gradient written out; `vmap` gives all clients to one call.

    Sums are (n, T, 3H) in the order reset, update, candidate, and weights (3H, H); or there are B of each.
    """

    @staticmethod
    def forward(sums: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        """Return the states (n, T, H) or (B, n, T, H), and what the backward pass needs."""
        clients = weight.ndim == 3
        sums, weight, bias = (part if clients else part[None] for part in (sums, weight, bias))
        (B, n, T, _), size = sums.shape, weight.shape[-1]
        transposed, bias = weight.mT.contiguous(), bias[:, None]  # (B, H, 3H), (B, 1, 3H)
        states = sums.new_zeros(B, n, T + 1, size)  # the first is 0
        gates, candidates, products = (sums.new_empty(B, n, T, width) for width in (2 * size, size, size))
        state = sums.new_zeros(B, n, size)
        for t in range(T):
            inner = torch.baddbmm(bias, state, transposed)  # (B, n, 3H)
            gate = torch.sigmoid_(sums[:, :, t, : 2 * size] + inner[..., : 2 * size])
            product = inner[..., 2 * size :]
            new = torch.addcmul(sums[:, :, t, 2 * size :], gate[..., :size], product).tanh_()
            state = torch.lerp(new, state, gate[..., size:])
            for kept, value in ((gates, gate), (candidates, new), (products, product)):
                kept[:, :, t] = value
            states[:, :, t + 1] = state
        found = states[:, :, 1:]
        return (found if clients else found[0]), states, gates, candidates, products

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the states, and what they were computed from."""
        ctx.save_for_backward(inputs[1], *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of sums, weight and bias."""
        weight, states, gates, candidates, products = ctx.saved_tensors
        clients = weight.ndim == 3
        weight, upstream = (part if clients else part[None] for part in (weight, upstream))
        B, n, T, size = candidates.shape
        of_sums = torch.empty(B, n, T, 3 * size, dtype=states.dtype, device=states.device)
        of_inner = torch.empty_like(of_sums)  # of state @ weight + bias
        before = states[:, :, :T]
        grad = torch.zeros(B, n, size, dtype=states.dtype, device=states.device)  # of the state after a step
        for t in reversed(range(T)):
            grad = grad + upstream[:, :, t]
            reset, update = gates[:, :, t, :size], gates[:, :, t, size:]
            new, product = candidates[:, :, t], products[:, :, t]
            passed = grad * update
            candidate = (grad - passed) * (1 - new * new)
            updated = (passed - passed * update) * (before[:, :, t] - new)
            inner = candidate * reset
            resetted = (inner - inner * reset) * product
            own = torch.cat([resetted, updated, inner], dim=2)  # (B, n, 3H)
            of_inner[:, :, t] = own
            of_sums[:, :, t, 2 * size :] = candidate
            grad = torch.baddbmm(passed, own, weight)
        of_sums[..., : 2 * size] = of_inner[..., : 2 * size]
        flat = of_inner.flatten(1, 2)  # (B, n T, 3H)
        of_weight = flat.mT @ before.reshape(B, n * T, size)  # (B, 3H, H)
        found = of_sums, of_weight, flat.sum(dim=1)
        return found if clients else tuple(part[0] for part in found)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Tensor) -> tuple[Any, Any]:
        """Call the function once for all clients."""
        sums, weight, bias = (
            part.expand(info.batch_size, *part.shape) if dim is None else part.movedim(dim, 0)
            for part, dim in zip(given, in_dims, strict=True)
        )
        outputs = Recurrence.apply(sums, weight, bias)  # type: ignore[no-untyped-call]
        return outputs, (0, None, None, None, None)
