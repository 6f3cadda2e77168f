"""The inner loop of training a stack of clients: Triton kernels on a GPU, plain PyTorch elsewhere.

The first dimension of every tensor is the client. No function waits for the device or tunes itself, so each can be
captured in a CUDA graph after one call that compiles it.
"""

from cdfl.sim.kernels.block_sizes import aligned, runs_triton
from cdfl.sim.kernels.conv import Precision, conv_grad_input, conv_grad_weight, conv_relu_pool
from cdfl.sim.kernels.gather import take_batch, take_columns
from cdfl.sim.kernels.linear import bias_relu, bias_relu_grad, product
from cdfl.sim.kernels.loss import cross_entropy, cross_entropy_grad
from cdfl.sim.kernels.norm import norm_relu
from cdfl.sim.kernels.optim import adam_step_, adam_step_torch_, sgd_step_, sgd_step_torch_

__all__ = [
    "Precision",
    "adam_step_",
    "adam_step_torch_",
    "aligned",
    "bias_relu",
    "bias_relu_grad",
    "conv_grad_input",
    "conv_grad_weight",
    "conv_relu_pool",
    "cross_entropy",
    "cross_entropy_grad",
    "norm_relu",
    "product",
    "runs_triton",
    "sgd_step_",
    "sgd_step_torch_",
    "take_batch",
    "take_columns",
]
