"""The stacked kernels against one client at a time in PyTorch, and the Triton kernels against their plain twins.

Triton runs on CUDA where there is one, and in its interpreter on the CPU where TRITON_INTERPRET=1 is set.
"""

import os
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F

from cdfl.sim import kernels
from cdfl.sim.kernels import conv, loss, optim

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None or (DEVICE == "cpu" and not INTERPRETED),
    reason="Triton needs a CUDA device, or its interpreter (TRITON_INTERPRET=1)",
)
# Triton's interpreter turns arrays of one number into numbers, which NumPy is about to forbid.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),  # NumPy on NaN
]
TOLERANCE = {"ieee": 1e-5, "tf32": 3e-3, "bf16": 3e-2}  # of ||a - b|| / ||b||; the interpreter does not round to tf32


def stacked(B, N, C, size, OC, kernel, device="cpu", dtype=torch.float64):
    """Images channels-last in memory; weights and biases as views into one wide tensor, as in a stack of clients."""
    generator = torch.Generator().manual_seed(B + 10 * N + 100 * C + size + OC)
    x = torch.randn(B, N, size, size, C, generator=generator, dtype=dtype).permute(0, 1, 4, 2, 3)
    flat = torch.randn(B, OC * C * kernel**2 + OC + 7, generator=generator, dtype=dtype) / (C * kernel**2) ** 0.5
    x, flat = x.to(device), flat.to(device)
    weight = flat[:, 3 : 3 + OC * C * kernel**2].view(B, OC, C, kernel, kernel)
    return x, weight, flat[:, -OC - 1 : -1]


def gradients(function, tensors, seed=0):
    """The result of a function, and the gradients of its inputs under a random gradient of the result."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    out = function(*leaves)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    grads = torch.autograd.grad(out, leaves, upstream.to(out))
    return [out.detach(), *grads]


def error(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-30)).item()


@pytest.mark.parametrize(("C", "OC", "size", "kernel"), [(1, 16, 10, 5), (3, 4, 9, 3)])
def test_stacked_convolution_is_each_clients_own(C, OC, size, kernel):
    x, weight, bias = stacked(3, 2, C, size, OC, kernel)
    ours = gradients(kernels.conv_relu_pool, (x, weight, bias))
    for client in range(3):

        def plain(images, w, b):
            return F.max_pool2d(F.relu(F.conv2d(images, w, b)), 2)

        leaves = [t[client].clone().requires_grad_() for t in (x, weight, bias)]
        out = plain(*leaves)
        upstream = torch.randn(ours[0].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        grads = torch.autograd.grad(out, leaves, upstream[client])
        for mine, theirs in zip(ours, [out, *grads], strict=True):
            torch.testing.assert_close(mine[client], theirs, rtol=1e-12, atol=1e-12)


def test_bf16_returns_bf16_and_float32_gradients():
    x, weight, bias = stacked(2, 3, 3, 8, 16, 3, dtype=torch.float32)
    out, _, grad_weight, grad_bias = gradients(lambda *t: kernels.conv_relu_pool(*t, "bf16"), (x, weight, bias))
    assert (out.dtype, grad_weight.dtype, grad_bias.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    assert error(out, kernels.conv_relu_pool(x, weight, bias)) < TOLERANCE["bf16"]


@pytest.mark.parametrize(
    ("x", "weight", "bias", "message"),
    [
        ((2, 3, 1, 8, 8), (2, 4, 3, 3, 3), (2, 4), "differ in clients, channels or filters"),
        ((2, 3, 1, 8, 8), (3, 4, 1, 3, 3), (3, 4), "differ in clients, channels or filters"),
        ((3, 1, 8, 8), (2, 4, 1, 3, 3), (2, 4), "takes x"),
        ((2, 3, 1, 5, 8), (2, 4, 1, 5, 5), (2, 4), "too small"),
    ],
)
def test_convolution_refuses_what_does_not_fit(x, weight, bias, message):
    with pytest.raises(ValueError, match=message):
        kernels.conv_relu_pool(torch.rand(x), torch.rand(weight), torch.rand(bias))


def test_convolution_refuses_an_unknown_precision():
    x, weight, bias = stacked(1, 1, 1, 8, 4, 3)
    with pytest.raises(ValueError, match="'fp8' is unknown"):
        kernels.conv_relu_pool(x, weight, bias, "fp8")


def optimizer_run(make, update, steps=4, rho=0.1):
    """Each client with its own optimizer of torch.optim, and the stack; the second client rests in the third step."""
    generator = torch.Generator().manual_seed(5)
    start, anchor = (torch.randn(3, 11, generator=generator, dtype=torch.float64) for _ in range(2))
    grads = torch.randn(steps, 3, 11, generator=generator, dtype=torch.float64)
    params = start.clone()
    alone = [torch.nn.Parameter(row.clone()) for row in start]
    optimizers = [make([p]) for p in alone]
    for i in range(steps):
        active = torch.tensor([True, i != 2, True])
        update(params, grads[i], anchor, active)
        for client in range(3):
            if active[client]:
                alone[client].grad = grads[i, client] + rho * (alone[client].detach() - anchor[client])
                optimizers[client].step()
    torch.testing.assert_close(params, torch.stack([p.detach() for p in alone]), rtol=1e-10, atol=1e-12)


def test_adam_is_torchs():
    first, second, step = torch.zeros(3, 11).double(), torch.zeros(3, 11).double(), torch.zeros(3, dtype=torch.int64)

    def update(params, grads, anchor, active):
        kernels.adam_step_(
            params, grads, first, second, step, lr=0.01, anchors=anchor, active=active, rho=0.1, weight_decay=0.02
        )
        step.add_(active)

    optimizer_run(lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.02), update)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_torchs(momentum):
    momenta = torch.zeros(3, 11).double() if momentum else None

    def update(params, grads, anchor, active):
        kernels.sgd_step_(
            params, grads, momenta, lr=0.05, anchors=anchor, active=active, rho=0.1, momentum=momentum,
            weight_decay=0.02,
        )  # fmt: skip

    optimizer_run(lambda p: torch.optim.SGD(p, lr=0.05, momentum=momentum, weight_decay=0.02), update)


def test_momentum_needs_its_state():
    with pytest.raises(ValueError, match="needs a tensor `momenta`"):
        kernels.sgd_step_(torch.ones(1, 2), torch.ones(1, 2), None, lr=0.1, momentum=0.9)


def test_cross_entropy_is_torchs_and_leaves_padding_out():
    logits = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    targets = torch.tensor([[0, 1, 2, 3, 0], [3, 3, -1, 1, -1], [-1, -1, -1, -1, -1]])
    ours, grad = gradients(lambda z: kernels.cross_entropy(z, targets), (logits,))
    for client in range(2):
        keep = targets[client] >= 0
        torch.testing.assert_close(ours[client], F.cross_entropy(logits[client][keep], targets[client][keep]))
        assert (grad[client][~keep] == 0).all()
    assert ours[2] == 0
    assert (grad[2] == 0).all()


@needs_triton
@pytest.mark.parametrize("precision", ["ieee", "tf32", "bf16"])
@pytest.mark.parametrize(
    ("B", "N", "C", "size", "OC", "kernel"),
    [(2, 3, 1, 12, 16, 5), (1, 2, 3, 9, 32, 3), (2, 2, 16, 9, 16, 5), (1, 2, 32, 7, 64, 3), (1, 1, 16, 6, 80, 3)],
)
def test_triton_convolution(B, N, C, size, OC, kernel, precision):
    if INTERPRETED and precision != "ieee":
        pytest.skip("Triton's interpreter multiplies bfloat16 numbers as if they were integers")
    tensors = stacked(B, N, C, size, OC, kernel, DEVICE, torch.float32)
    ours = gradients(lambda *t: conv.ConvReluPool.apply(*t, precision), tensors)
    reference = gradients(kernels.conv_relu_pool_torch, [t.double() for t in tensors])
    for mine, theirs in zip(ours, reference, strict=True):
        assert mine.shape == theirs.shape
        assert error(mine, theirs) < (0.2 if precision == "bf16" else 5 * TOLERANCE[precision])


@needs_triton
def test_triton_ties_zeros_and_nan_as_torch():
    x = torch.zeros(2, 1, 1, 8, 8, device=DEVICE)  # all four corners equal: the first one takes the gradient
    weight = torch.ones(2, 16, 1, 3, 3, device=DEVICE)
    bias = torch.zeros(2, 16, device=DEVICE)
    bias[:, 1::3], bias[:, 2::3] = 1.0, -1.0  # a maximum of 0, above and below: ReLU passes only the second
    ours = gradients(lambda *t: conv.ConvReluPool.apply(*t, "ieee"), (x, weight, bias))
    for mine, theirs in zip(ours, gradients(kernels.conv_relu_pool_torch, (x, weight, bias)), strict=True):
        torch.testing.assert_close(mine, theirs)
    weight[0, 3, 0, 1, 1] = float("nan")
    out = conv.ConvReluPool.apply(x, weight, bias, "ieee")
    torch.testing.assert_close(out, kernels.conv_relu_pool_torch(x, weight, bias), equal_nan=True)
    assert out[1].isfinite().all()


@needs_triton
def test_triton_skips_clients_that_nobody_wants():
    x, weight, bias = stacked(3, 2, 1, 12, 16, 5, DEVICE, torch.float32)
    weight[1] = float("nan")
    active = torch.tensor([True, False, True], device=DEVICE)
    out, _ = conv._forward(conv._channels_last(x), weight, bias, "ieee", active)
    wanted = kernels.conv_relu_pool_torch(x, weight, bias).permute(0, 1, 3, 4, 2)[active]
    torch.testing.assert_close(out[active], wanted)


@needs_triton
def test_triton_convolution_reads_expanded_and_plain_layouts():
    x, weight, bias = stacked(2, 2, 3, 8, 16, 3, DEVICE, torch.float32)
    shared = x[:1].expand(2, -1, -1, -1, -1)
    for images in (shared, x.contiguous()):
        out = conv.ConvReluPool.apply(images, weight, bias, "ieee")
        torch.testing.assert_close(out, kernels.conv_relu_pool_torch(images, weight, bias), rtol=1e-5, atol=1e-5)


@needs_triton
def test_triton_results_do_not_depend_on_the_stack():
    x, weight, bias = stacked(3, 3, 16, 8, 16, 3, DEVICE, torch.float32)
    together = conv.ConvReluPool.apply(x, weight, bias, "tf32")
    assert torch.equal(together[1:2], conv.ConvReluPool.apply(x[1:2], weight[1:2], bias[1:2], "tf32"))


@needs_triton
def test_triton_adam_and_sgd():
    generator = torch.Generator().manual_seed(1)
    wide = [torch.randn(3, 1500, generator=generator).to(DEVICE) for _ in range(5)]
    wide[4].abs_()
    step, active = torch.tensor([0, 6, 900], device=DEVICE), torch.tensor([True, True, False], device=DEVICE)
    for launch, plain in ((run_adam, kernels.adam_step_torch_), (run_sgd, kernels.sgd_step_torch_)):
        ours, reference = [t.clone() for t in wide], [t.clone() for t in wide]
        launch(*(t[:, 3:1203] for t in ours), step, active)
        params, grads, anchors, first, second = (t[:, 3:1203] for t in reference)
        options = {"lr": 0.01, "anchors": anchors, "active": active, "rho": 0.1, "weight_decay": 0.02}
        if plain is kernels.adam_step_torch_:
            plain(params, grads, first, second, step, **options)
        else:
            plain(params, grads, first, momentum=0.9, **options)
        for mine, theirs in zip(ours, reference, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def run_adam(params, grads, anchors, first, second, step, active):
    optim.launch_adam(params, grads, anchors, first, second, step, active, 0.01, 0.1, (0.9, 0.999), 1e-8, 0.02)


def run_sgd(params, grads, anchors, first, second, step, active):
    optim.launch_sgd(params, grads, first, anchors, active, 0.01, 0.1, 0.9, 0.02)


@needs_triton
def test_triton_cross_entropy():
    logits = torch.randn(3, 5, 10, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    targets = torch.tensor([[0, 1, 2, 3, 9], [3, 3, -1, 1, -1], [-1, -1, -1, -1, -1]], device=DEVICE)
    logits[1, 2] = float("nan")  # in a sample that is left out
    ours = gradients(lambda z: loss.CrossEntropy.apply(z, targets), (logits,))
    for mine, theirs in zip(ours, gradients(lambda z: kernels.cross_entropy_torch(z, targets), (logits,)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
