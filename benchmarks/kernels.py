"""Check and time the GPU kernels of `cdfl.sim.kernels` on the paper's CNN, beside PyTorch doing the same work.

Times are microseconds for one client and one training step of a batch of 128 (forward, backward, Adam with the
proximal term): medians over replays of a CUDA graph. The eager loop cannot be captured and is timed as it runs.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.result_files import commit, machine
from cdfl.core import Layout
from cdfl.models.cnn import cnn
from cdfl.sim import kernels
from cdfl.sim.kernel_network import KernelNetwork
from cdfl.sim.kernels import conv, loss

BATCH, CLASSES, LR, RHO = 128, 10, 1e-3, 0.1
PRECISIONS: tuple[kernels.Precision, ...] = ("ieee", "tf32", "bf16")


def microseconds(work: Callable[[], Any], calls: int = 20, replays: int = 7) -> float:
    """Median time of one call, over replays of a graph of `calls` of them."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # compile and allocate workspaces first: neither can be captured
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            work()
    graph.replay()
    return statistics.median(_timed(graph.replay) for _ in range(replays)) / calls


def _timed(work: Callable[[], Any]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


class Stack:
    """B clients with their own parameters, Adam state and one batch each."""

    def __init__(self, width: int, shape: tuple[int, int, int]) -> None:
        torch.manual_seed(0)
        models = [cnn(shape, CLASSES) for _ in range(width)]
        shapes = [tuple(p.shape) for p in models[0].parameters()]
        sizes = [p.numel() for p in models[0].parameters()]
        self.size = sum(sizes)
        self.flat = torch.zeros(width, kernels.aligned(self.size), device="cuda")
        for client, model in enumerate(models):
            self.flat[client, : self.size] = nn.utils.parameters_to_vector(model.parameters()).detach()
        self.params = self.flat[:, : self.size]
        pieces = self.params.split(sizes, dim=1)
        self.leaves = [p.view(width, *s).detach().requires_grad_() for p, s in zip(pieces, shapes, strict=True)]
        self.grads, self.first, self.second = (torch.zeros_like(self.flat)[:, : self.size] for _ in range(3))
        self.grad_pieces = [p.view(width, *s) for p, s in zip(self.grads.split(sizes, 1), shapes, strict=True)]
        self.anchors = self.flat.clone()[:, : self.size]
        self.steps = torch.zeros(width, dtype=torch.int64, device="cuda")
        self.active = torch.ones(width, dtype=torch.bool, device="cuda")
        channels, height, side = shape
        self.chains = {p: KernelNetwork.of(models[0], Layout.of(models[0]), p) for p in PRECISIONS}
        kept = self.chains["tf32"].channels(channels)  # type: ignore[union-attr]  # the paper's CNN is a chain
        self.images = torch.zeros(width, BATCH, height, side, kept, device="cuda")
        self.images[..., :channels] = torch.rand(width, BATCH, height, side, channels, device="cuda")
        self.x = self.images[..., :channels].permute(0, 1, 4, 2, 3)  # (B, N, C, H, W)
        self.y = torch.randint(CLASSES, (width, BATCH), device="cuda")

    def step_by_hand(self, precision: kernels.Precision) -> None:
        """One training step of all clients through the kernels."""
        chain = self.chains[precision]
        assert chain is not None
        with torch.no_grad():
            self._adam(kernels.adam_step_, chain.gradients(self.params, self.images, self.y))

    def step(self, block: Callable[..., Tensor]) -> None:
        """The same through autograd and plain PyTorch; `block` is the convolution."""
        w1, b1, w2, b2, w3, b3, w4, b4 = self.leaves
        h = block(block(self.x, w1, b1), w2, b2).flatten(2)  # (B, N, 1024)
        h = torch.baddbmm(b3[:, None], h, w3.mT).relu()
        z = torch.baddbmm(b4[:, None], h, w4.mT)  # (B, N, classes)
        grads = torch.autograd.grad(loss.cross_entropy_torch(z, self.y).sum(), self.leaves)
        torch._foreach_copy_(self.grad_pieces, grads)
        self._adam(kernels.adam_step_torch_, self.grads)

    def _adam(self, adam: Callable[..., None], grads: Tensor) -> None:
        adam(
            self.params, grads, self.first, self.second, self.steps, lr=LR, anchors=self.anchors, active=self.active,
            rho=RHO,
        )  # fmt: skip
        self.steps += self.active


def im2col(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same block by unfolding and one batched matrix product."""
    B, N, C, H, W = x.shape
    OC, kernel = weight.shape[1], weight.shape[3]
    patches = x.unfold(3, kernel, 1).unfold(4, kernel, 1)  # (B, N, C, H', W', k, k)
    columns = patches.permute(0, 1, 3, 4, 2, 5, 6).reshape(B, -1, C * kernel * kernel)
    out = torch.baddbmm(bias[:, None], columns, weight.flatten(2).mT)  # (B, N*H'*W', OC)
    out = out.view(B * N, H - kernel + 1, W - kernel + 1, OC).permute(0, 3, 1, 2)
    pooled: Tensor = F.max_pool2d(out.relu(), 2)
    return pooled.view(B, N, *pooled.shape[1:])


def grouped(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same block as one convolution with a group for each client."""
    B = x.shape[0]
    out = F.conv2d(x.transpose(0, 1).flatten(1, 2), weight.flatten(0, 1), bias.flatten(), groups=B)
    pooled: Tensor = F.max_pool2d(out.relu(), 2)
    return pooled.view(len(pooled), B, -1, *pooled.shape[2:]).transpose(0, 1)


def eager(shape: tuple[int, int, int]) -> float:
    """One client in plain PyTorch, as it is usually written."""
    model = cnn(shape, CLASSES).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    anchors = [p.detach().clone() for p in model.parameters()]
    x, y = torch.rand(BATCH, *shape, device="cuda"), torch.randint(CLASSES, (BATCH,), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        proximal = sum(((p - a) ** 2).sum() for p, a in zip(model.parameters(), anchors, strict=True))
        (F.cross_entropy(model(x), y) + RHO / 2 * proximal).backward()
        optimizer.step()

    def steps() -> None:
        for _ in range(20):
            step()

    steps()
    return statistics.median(_timed(steps) for _ in range(5)) / 20


def check(shape: tuple[int, int, int]) -> dict[str, float]:
    """Relative errors against float64 on fresh random inputs, and whether two runs give the same bits."""
    errors: dict[str, float] = {}
    rounding: dict[kernels.Precision, Callable[[Tensor], Tensor]] = {
        "ieee": lambda t: t,
        "tf32": lambda t: (t.contiguous().view(torch.int32) & -0x2000).view(torch.float32),  # the matrix unit cuts off
        "bf16": lambda t: t.bfloat16(),
    }
    for layer, (N, C, size, OC, kernel) in {
        "conv1": (BATCH, shape[0], shape[1], 32, 5),
        "conv2": (BATCH, 32, (shape[1] - 4) // 2, 64, 5),
        "odd": (37, 16, 11, 48, 3),
    }.items():
        images = torch.randn(3, N, size, size, C, device="cuda")
        weight = torch.randn(3, OC, C, kernel, kernel, device="cuda") / (C * kernel * kernel) ** 0.5
        bias = torch.randn(3, OC, device="cuda") / 10
        side = (size - kernel + 1) // 2
        upstream = torch.randn(3, N, side, side, OC, device="cuda")
        for precision in PRECISIONS:
            # The reference gets its operands rounded alike: rounding changes which of two close corners wins, and the
            # gradient of a corner that lost is far from small.
            x, w = (rounding[precision](t).double() for t in (images, weight))
            reference = block(x, w, bias.double(), upstream.double(), "ieee", exact=True)
            results = [block(images, weight, bias, upstream, precision) for _ in range(2)]
            same = all(torch.equal(a, b) for a, b in zip(*results, strict=True))
            errors[f"{layer} {precision} reproducible"] = float(same)
            for name, a, b in zip(("out", "grad_x", "grad_weight", "grad_bias"), results[0], reference, strict=True):
                errors[f"{layer} {precision} {name}"] = ((a.double() - b).norm() / b.norm()).item()
    return errors


def block(
    images: Tensor, weight: Tensor, bias: Tensor, upstream: Tensor, precision: kernels.Precision, exact: bool = False
) -> list[Tensor]:
    """Output and gradients (of images, weights, biases) of one convolution, by the kernels or in plain PyTorch."""
    ahead, back = operands(weight, precision)
    grad_weight, grad_bias = torch.empty_like(weight), torch.empty_like(bias)
    if exact:
        out, corner = conv.conv_relu_pool_torch(images, ahead, bias)
        conv.conv_grad_weight_torch(images, upstream, corner, grad_weight, grad_bias)
        return [out, conv.conv_grad_input_torch(images, upstream, corner, back), grad_weight, grad_bias]
    out, corner = kernels.conv_relu_pool(images, ahead, bias, precision)
    upstream = upstream.to(out.dtype)
    kernels.conv_grad_weight(images, upstream, corner, grad_weight, grad_bias, precision)
    return [out, kernels.conv_grad_input(images, upstream, corner, back, precision), grad_weight, grad_bias]


def operands(weight: Tensor, precision: kernels.Precision) -> list[Tensor]:
    """Filters in the orders of the way forward and of the way back."""
    dtype = torch.bfloat16 if precision == "bf16" else weight.dtype
    return [weight.permute(order).contiguous().to(dtype) for order in ((0, 1, 3, 4, 2), (0, 3, 4, 2, 1))]


def kernel_times(stack: Stack, precision: kernels.Precision) -> dict[str, float]:
    """Each kernel alone, microseconds a client."""
    w1, b1, w2, b2, *_ = (leaf.detach() for leaf in stack.leaves)
    width, images = stack.x.shape[0], stack.images
    ahead1, _ = operands(F.pad(w1, (0, 0, 0, 0, 0, images.shape[4] - w1.shape[2])), precision)
    ahead2, back2 = operands(w2, precision)
    hidden, corner1 = kernels.conv_relu_pool(images, ahead1, b1, precision)
    out, corner2 = kernels.conv_relu_pool(hidden, ahead2, b2, precision)
    grad1, grad2 = torch.randn_like(hidden), torch.randn_like(out)
    works: dict[str, Callable[[], Any]] = {
        "conv1 forward": lambda: kernels.conv_relu_pool(images, ahead1, b1, precision),
        "conv2 forward": lambda: kernels.conv_relu_pool(hidden, ahead2, b2, precision),
        "conv2 grad weight": lambda: kernels.conv_grad_weight(hidden, grad2, corner2, grads[2], grads[3], precision),
        "conv2 grad input": lambda: kernels.conv_grad_input(hidden, grad2, corner2, back2, precision),
        "conv1 grad weight": lambda: kernels.conv_grad_weight(images, grad1, corner1, grads[0], grads[1], precision),
        "adam": lambda: kernels.adam_step_(
            stack.params, stack.grads, stack.first, stack.second, stack.steps, lr=LR, anchors=stack.anchors,
            active=stack.active, rho=RHO,
        ),
    }  # fmt: skip
    grads = stack.grad_pieces
    return {name: microseconds(work) / width for name, work in works.items()}


def main() -> None:
    """Check, time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="result file; default: print only")
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 4, 8, 16, 64], help="clients in a stack")
    parser.add_argument("--images", nargs="+", default=["28x1", "32x3"], help="size x channels")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    runs = []
    for images in options.images:
        size, channels = (int(n) for n in images.split("x"))
        runs.append(run((channels, size, size), options.widths))
    if options.out:
        found = {"machine": machine(), "commit": commit(), "runs": runs}
        options.out.write_text(json.dumps(found, indent=1) + "\n")


def run(shape: tuple[int, int, int], widths: list[int]) -> dict[str, Any]:
    """Check and time images of one shape."""
    errors = check(shape)
    for name, value in errors.items():
        print(f"{name:32s} {value:.2e}" if "repro" not in name else f"{name:32s} {bool(value)}")
    ways: dict[str, Callable[[Stack], None]] = {
        "im2col + bmm": lambda stack: stack.step(im2col),
        "grouped convolution": lambda stack: stack.step(grouped),
        "kernels, tf32": lambda stack: stack.step_by_hand("tf32"),
        "kernels, bf16": lambda stack: stack.step_by_hand("bf16"),
    }
    rows: dict[str, dict[str, float]] = {"eager PyTorch, one client": {"1": eager(shape)}}
    for width in widths:
        stack = Stack(width, shape)
        for name, way in ways.items():
            if width > 16 and "kernels" not in name:
                continue  # the time for each client no longer falls there, and memory grows
            work = lambda way=way, stack=stack: way(stack)  # noqa: E731
            rows.setdefault(name, {})[str(width)] = microseconds(work, calls=5) / width
        for precision in ("tf32", "bf16"):
            for name, value in kernel_times(stack, precision).items():
                rows.setdefault(f"  {precision} {name}", {})[str(width)] = value
    print(f"\n{'microseconds a client-step':34s}" + "".join(f"{'B=' + str(w):>9s}" for w in widths))
    for name, row in rows.items():
        print(f"{name:34s}" + "".join(f"{row[str(w)]:9.1f}" if str(w) in row else " " * 9 for w in widths))
    return {"images": shape, "errors": errors, "us": rows}


if __name__ == "__main__":
    main()
