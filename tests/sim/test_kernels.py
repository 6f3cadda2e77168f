"""The stacked kernels against one client at a time in PyTorch, and the Triton kernels against their plain twins.

Triton runs on CUDA where there is one, and in its interpreter on the CPU where TRITON_INTERPRET=1 is set.
"""

import os
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F

from cdfl.sim import kernels
from cdfl.sim.kernels import conv, gather, linear, loss, norm, optim

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None or (DEVICE == "cpu" and not INTERPRETED),
    reason="Triton needs a CUDA device, or its interpreter (TRITON_INTERPRET=1)",
)
# Triton's interpreter ticks arrays of one number into numbers, which NumPy is about to forbid.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),  # NumPy on NaN
]
TOLERANCE = {"ieee": 1e-5, "tf32": 3e-3, "bf16": 3e-2}  # of ||a - b|| / ||b||; the interpreter does not round to tf32


def stacked(B, N, C, size, OC, kernel, device="cpu", dtype=torch.float64):
    """Images channels-last; weights and biases as views into one wide tensor, as in a stack of clients."""
    generator = torch.Generator().manual_seed(B + 10 * N + 100 * C + size + OC)
    images = torch.randn(B, N, size, size, C, generator=generator, dtype=dtype)
    flat = torch.randn(B, OC * C * kernel**2 + OC + 7, generator=generator, dtype=dtype) / (C * kernel**2) ** 0.5
    images, flat = images.to(device), flat.to(device)
    weight = flat[:, 3 : 3 + OC * C * kernel**2].view(B, OC, C, kernel, kernel)
    return images, weight, flat[:, -OC - 1 : -1]


def upstream_of(out):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)


def by_autograd(images, weight, bias):
    """Output and gradients of images, weights and biases: each client alone, in PyTorch's own layers."""
    leaves = [t.detach().clone().requires_grad_() for t in (images, weight, bias)]
    x = leaves[0].permute(0, 1, 4, 2, 3)
    rows = [F.max_pool2d(F.relu(F.conv2d(*one)), 2) for one in zip(x, *leaves[1:], strict=True)]
    out = torch.stack(rows).permute(0, 1, 3, 4, 2)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream_of(out))]


def by_hand(images, weight, bias, precision="ieee", triton=False):
    """The same through the functions of `conv`: their Triton kernels, or their twins in plain PyTorch."""
    operand = torch.bfloat16 if precision == "bf16" else weight.dtype
    ahead, back = (weight.permute(order).contiguous().to(operand) for order in ((0, 1, 3, 4, 2), (0, 3, 4, 2, 1)))
    wide = torch.full((len(weight), weight[0].numel() + bias.shape[1] + 5), 7.0, dtype=weight.dtype).to(weight.device)
    grad_weight, grad_bias = wide[:, 2 : 2 + weight[0].numel()].view(weight.shape), wide[:, -bias.shape[1] - 1 : -1]
    if triton:
        out, corner = conv.launch_forward(images, ahead, bias, precision)
        grad = upstream_of(out)
        conv.launch_grad_weight(images, grad, corner, grad_weight, grad_bias, precision)
        grad_images = conv.launch_grad_input(images, grad, corner, back, precision)
    else:
        out, corner = conv.conv_relu_pool_torch(images, ahead, bias)
        grad = upstream_of(out)
        conv.conv_grad_weight_torch(images, grad, corner, grad_weight, grad_bias)
        grad_images = conv.conv_grad_input_torch(images, grad, corner, back)
    assert (wide[:, [0, 1, -bias.shape[1] - 2, -1]] == 7.0).all()  # nothing was written beside the gradients
    return [out, grad_images, grad_weight, grad_bias]


def gradients(function, tensors):
    """The result of a function, and the gradients of its inputs under a random gradient of the result."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream_of(out))]


def error(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-30)).item()


@pytest.mark.parametrize(("C", "OC", "size", "kernel"), [(1, 16, 10, 5), (3, 4, 9, 3)])
def test_stacked_convolution_is_each_clients_own(C, OC, size, kernel):
    tensors = stacked(3, 2, C, size, OC, kernel)
    for mine, theirs in zip(by_hand(*tensors), by_autograd(*tensors), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_bf16_returns_bf16_and_float32_gradients():
    tensors = stacked(2, 3, 3, 8, 16, 3, dtype=torch.float32)
    out, grad_images, grad_weight, grad_bias = by_hand(*tensors, precision="bf16")
    assert (out.dtype, grad_images.dtype) == (torch.bfloat16, torch.float32)  # as the images are
    assert (grad_weight.dtype, grad_bias.dtype) == (torch.float32, torch.float32)
    assert error(out, by_autograd(*tensors)[0]) < TOLERANCE["bf16"]


def test_filling_channels_get_no_gradient():
    images, weight, bias = stacked(2, 2, 4, 8, 16, 3)
    images[..., 3] = 0.0
    expected = by_autograd(images, weight, bias)[2][:, :, :3]
    found, filters = torch.empty(expected.shape).double(), weight.permute(0, 1, 3, 4, 2)
    out, corner = kernels.conv_relu_pool(images, filters, bias)
    kernels.conv_grad_weight(images, upstream_of(out), corner, found, torch.empty_like(bias))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


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
    with pytest.raises(ValueError, match="pass a tensor `momenta` of zeros"):
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


@pytest.fixture(params=["by tap", "by patch"])
def reading(request, monkeypatch):
    """Both ways in which the forward kernel can read images, whichever it would choose."""
    choose = conv.forward_options
    monkeypatch.setattr(conv, "forward_options", lambda *a: choose(*a) | {"BY_PATCH": request.param == "by patch"})


@needs_triton
@pytest.mark.parametrize("precision", ["ieee", "tf32", "bf16"])
@pytest.mark.parametrize(
    ("B", "N", "C", "size", "OC", "kernel"),
    [
        (2, 3, 1, 12, 16, 5), (1, 2, 3, 9, 32, 3), (2, 3, 4, 10, 16, 5),
        (2, 2, 16, 9, 16, 5), (1, 2, 32, 7, 64, 3), (1, 1, 16, 6, 80, 3),
    ],
)  # fmt: skip
def test_triton_convolution(B, N, C, size, OC, kernel, precision):
    if INTERPRETED and precision != "ieee":
        pytest.skip("Triton's interpreter multiplies bfloat16 numbers as if they were integers")
    tensors = stacked(B, N, C, size, OC, kernel, DEVICE, torch.float32)
    ours = by_hand(*tensors, precision, triton=True)
    for mine, theirs in zip(ours, by_autograd(*(t.double() for t in tensors)), strict=True):
        assert mine.shape == theirs.shape
        assert error(mine, theirs) < (0.2 if precision == "bf16" else 5 * TOLERANCE[precision])


@needs_triton
@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize("precision", ["ieee", "tf32", "bf16"])
@pytest.mark.parametrize(("C", "size", "OC", "kernel"), [(1, 12, 16, 5), (3, 9, 40, 3), (4, 11, 16, 5)])
def test_triton_finds_the_corner(C, size, OC, kernel, precision):
    if INTERPRETED and precision != "ieee":
        pytest.skip("Triton's interpreter multiplies bfloat16 numbers as if they were integers")
    tensors = stacked(2, 2, C, size, OC, kernel, DEVICE, torch.float32)
    images, weight, bias = ((4 * t).round() / 4 for t in tensors)  # no sum is rounded, and many are tied
    filters = weight[..., 1:].permute(0, 1, 3, 4, 2).contiguous()  # higher than wide
    expected, place = conv.conv_relu_pool_torch(images, filters, bias)
    operands = filters.bfloat16() if precision == "bf16" else filters
    out, corner = conv.launch_forward(images, operands, bias, precision)
    assert torch.equal(corner, place)
    torch.testing.assert_close(out, expected.to(out.dtype))


@needs_triton
@pytest.mark.usefixtures("reading")
def test_triton_ties_zeros_and_nan_as_torch():
    images = torch.zeros(2, 1, 8, 8, 1, device=DEVICE)  # all four corners equal: the first one takes the gradient
    weight = torch.ones(2, 16, 1, 3, 3, device=DEVICE)
    bias = torch.zeros(2, 16, device=DEVICE)
    bias[:, 1::3], bias[:, 2::3] = 1.0, -1.0  # a maximum of 0, above and below: ReLU passes only the second
    ours, theirs = by_hand(images, weight, bias, triton=True), by_hand(images, weight, bias)
    for mine, own, reference in zip(ours, theirs, by_autograd(images, weight, bias), strict=True):
        torch.testing.assert_close(mine, reference)
        torch.testing.assert_close(own, reference)
    weight[0, 3, 0, 1, 1] = float("nan")
    out = by_hand(images, weight, bias, triton=True)[0]
    torch.testing.assert_close(out, by_autograd(images, weight, bias)[0], equal_nan=True)
    assert out[1].isfinite().all()


NORMS = [(training, added, relu) for training in (True, False) for added in (True, False) for relu in (True, False)]


def normed(function, training, added, relu, C=5):
    """Output, gradients and running statistics of a function with the arguments of `norm_relu`."""
    generator = torch.Generator().manual_seed(0)
    shape = (7, C, 3, 6)
    draws = [torch.randn(size, generator=generator).to(DEVICE) for size in (shape, shape, C, C, C)]
    images, other = (draw.contiguous(memory_format=torch.channels_last).requires_grad_() for draw in draws[:2])
    weight, bias = (draw.requires_grad_() for draw in draws[2:4])
    mean, variance = draws[4].clone(), draws[4].square() + 0.5
    with torch.set_grad_enabled(training):
        given = 3 * images + 2, weight, bias, mean, variance, other if added else None
        out = function(*given, training=training, momentum=0.3, eps=1e-3, relu=relu)
    leaves = [images, weight, bias, *([other] if added else [])] if training else []
    grads = torch.autograd.grad((out * draws[1].detach().cos()).sum(), leaves) if training else ()
    return [out.detach(), mean, variance, *grads]


@pytest.mark.parametrize(("training", "added", "relu"), NORMS)
def test_norm_in_plain_pytorch_is_that_of_the_layers(training, added, relu):
    def layers(images, weight, bias, mean, variance, other, *, training, momentum, eps, relu):
        norm = torch.nn.BatchNorm2d(len(weight), eps, momentum).to(images).train(training)
        values = {"weight": weight, "bias": bias, "running_mean": mean, "running_var": variance}
        found = torch.func.functional_call(norm, values, (images,))
        found = found if other is None else found + other
        return found.relu() if relu else found

    for one, other in zip(
        normed(norm.norm_relu_torch, training, added, relu), normed(layers, training, added, relu), strict=True
    ):
        torch.testing.assert_close(one, other)


@needs_triton
@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize(("training", "added", "relu"), NORMS)
def test_triton_norm(training, added, relu):
    for C in (5, 64):
        pairs = (normed(each, training, added, relu, C) for each in (norm.norm_relu, norm.norm_relu_torch))
        for one, other in zip(*pairs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@needs_triton
@pytest.mark.usefixtures("reading")
def test_triton_skips_inactive_clients():
    images, weight, bias = stacked(3, 2, 1, 12, 16, 5, DEVICE, torch.float32)
    weight[1] = float("nan")
    active = torch.tensor([True, False, True], device=DEVICE)
    filters = weight.permute(0, 1, 3, 4, 2).contiguous()
    out, _ = conv.launch_forward(images, filters, bias, "ieee", active)
    torch.testing.assert_close(out[active], by_autograd(images, weight, bias)[0][active])


@needs_triton
@pytest.mark.usefixtures("reading")
def test_triton_convolution_reads_expanded_images_and_leaves_filling_out():
    images, weight, bias = stacked(2, 2, 4, 8, 16, 3, DEVICE, torch.float32)
    images = images[:1].expand(2, -1, -1, -1, -1)
    expected, _, expected_weight, _ = by_autograd(images, weight, bias)
    out, corner = conv.launch_forward(images, weight.permute(0, 1, 3, 4, 2).contiguous(), bias, "ieee")
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    found = torch.empty(2, 16, 3, 3, 3, device=DEVICE)
    conv.launch_grad_weight(images, upstream_of(out), corner, found, torch.empty_like(bias), "ieee")
    torch.testing.assert_close(found, expected_weight[:, :, :3], rtol=1e-4, atol=1e-4)


@needs_triton
@pytest.mark.usefixtures("reading")
def test_triton_results_do_not_depend_on_the_stack():
    tensors = stacked(3, 3, 16, 8, 16, 3, DEVICE, torch.float32)
    together = by_hand(*tensors, "tf32", triton=True)
    images, weight, bias = (t[:2].clone() for t in tensors)
    for one, other in zip(by_hand(images, weight, bias, "tf32", triton=True)[::2], together[::2], strict=True):
        assert torch.equal(one[0], other[0])  # the gradients of the others begin at another random number


@needs_triton
def test_triton_takes_batches_and_columns():
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(3, 7, 5, 5, 2, generator=generator).to(DEVICE)
    targets = torch.randint(10, (3, 7), generator=generator).to(DEVICE)
    plans = torch.randint(7, (3, 4, 6), generator=generator).to(DEVICE)
    step, limits = torch.tensor([0, 3, 9], device=DEVICE), torch.tensor([4, 3, 2], device=DEVICE)
    ours = gather.launch_take_batch(images, targets, plans, step, limits)
    for mine, theirs in zip(ours, gather.take_batch_torch(images, targets, plans, step, limits), strict=True):
        assert torch.equal(mine, theirs)
    models = torch.randn(3, 1500, generator=generator).to(DEVICE)[:, 3:1203]
    source = torch.randint(-20, 1200, (1100,), generator=generator, dtype=torch.int32).to(DEVICE)
    for dtype, rtol in ((torch.float32, 0.0), (torch.bfloat16, 2**-7)):  # the interpreter rounds bfloat16 downwards
        mine, theirs = (
            gather.launch_take_columns(models, source, dtype),
            gather.take_columns_torch(models, source, dtype),
        )
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=0.0)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_triton_bias_and_relu(dtype):
    generator = torch.Generator().manual_seed(4)
    sums, grad = (torch.randn(2, 70, 40, generator=generator).to(DEVICE) for _ in range(2))
    bias, grad_bias = torch.randn(2, 50, generator=generator).to(DEVICE)[:, 3:43], torch.zeros(2, 50, device=DEVICE)
    sums[1, 2, 3] = float("nan")
    out = linear.launch_bias_relu(sums, bias, dtype)
    expected = torch.relu(sums + bias[:, None]).to(dtype)
    torch.testing.assert_close(out, expected, equal_nan=True)
    passed = linear.launch_bias_relu_grad(grad, out, grad_bias[:, 3:43], dtype)
    expected = torch.where(out <= 0, 0.0, grad)
    torch.testing.assert_close(passed, expected.to(dtype))
    torch.testing.assert_close(grad_bias[:, 3:43], expected.sum(1), rtol=1e-5, atol=1e-5)
    assert (grad_bias[:, [0, 1, 2, 43]] == 0).all()


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
    bias = torch.randn(3, 14, generator=torch.Generator().manual_seed(3)).to(DEVICE)[:, 2:12]
    targets = torch.tensor([[0, 1, 2, 3, 9], [3, 3, -1, 1, -1], [-1, -1, -1, -1, -1]], device=DEVICE)
    logits[1, 2] = float("nan")  # in a sample that is left out
    ours = gradients(lambda z: loss.CrossEntropy.apply(z, targets), (logits,))
    for mine, theirs in zip(ours, gradients(lambda z: loss.cross_entropy_torch(z, targets), (logits,)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    grad_bias = torch.zeros(3, 14, device=DEVICE)
    _, grad = loss.launch_cross_entropy(logits, targets, bias, grad_bias[:, 2:12])
    total = (logits + bias[:, None]).requires_grad_()
    (expected,) = torch.autograd.grad(loss.cross_entropy_torch(total, targets).sum(), total)
    torch.testing.assert_close(grad, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(grad_bias[:, 2:12], expected.sum(1), rtol=1e-5, atol=1e-6)
    assert (grad_bias[:, [0, 1, 12, 13]] == 0).all()
