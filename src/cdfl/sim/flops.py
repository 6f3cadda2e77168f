"""Count the floating-point operations of a network."""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class Flops(NamedTuple):
    """The floating-point operations of one sample: in the forward pass, and in training (forward and backward)."""

    forward: int
    training: int


class _Watch(TorchDispatchMode):
    """Sees every operator that is called."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing is compiled here, and True makes torch import its compiler for seconds."""
        return False


class _Operations(_Watch):
    """Counts floating-point operations as `torch.utils.flop_counter` does."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet, kwargs = func._overloadpacket, kwargs or {}
        if packet not in flop_registry:
            with self:  # an operator made of others
                found = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if found is NotImplemented else found
        found = func(*args, **kwargs)
        self.count += flop_registry[packet](*args, **kwargs, out_val=found)
        return found


class _Calls(_Watch):
    """Counts calls of torch's operators."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def count_flops(model: nn.Module, inputs: Tensor) -> Flops:
    """Run a copy of the model on a few inputs (n, ...), and count its multiplications and additions.

    Batch norm cannot train on one sample, so pass two at least. Operations that torch cannot count are left out.

    The backward pass costs less than twice the forward pass: the gradients of the inputs and of frozen parameters are
    not computed. The optimiser and the proximal term, once a batch, are not counted.

    >>> count_flops(nn.Linear(3, 2), torch.zeros(2, 3))  # 3 x 2 of each; as many for the gradient of the weights
    Flops(forward=12, training=24)
    """
    model = copy.deepcopy(model)
    weight = next(model.parameters())
    gpus = [weight.device] if weight.device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):  # dropout draws random numbers
        with _Operations() as forward, torch.no_grad():  # type: ignore[no-untyped-call]
            model.eval()(inputs)
        with _Operations() as training, torch.enable_grad():  # type: ignore[no-untyped-call]
            model.train()(inputs).sum().backward()  # the counter ignores losses anyway
    once, both = (counter.count // len(inputs) for counter in (forward, training))
    return Flops(once, both)


def count_calls(model: nn.Module, inputs: Tensor) -> int:
    """Return the number of calls of torch's operators in a forward pass, whatever the number of samples.

    >>> count_calls(nn.Linear(3, 2), torch.zeros(2, 3))
    2
    """
    model, calls = copy.deepcopy(model).eval(), _Calls()  # type: ignore[no-untyped-call]
    with calls, torch.no_grad():
        model(inputs)
    return int(calls.count)
