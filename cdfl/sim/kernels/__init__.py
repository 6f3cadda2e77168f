"""The inner loop of training a stack of clients: Triton kernels on a GPU, plain PyTorch everywhere else.

Every function takes and returns tensors whose first dimension is the client. None of them waits for the device or
chooses anything by timing, so all can be captured in a CUDA graph after one call to compile them.
"""

from cdfl.sim.kernels.conv import Precision, conv_relu_pool, conv_relu_pool_torch
from cdfl.sim.kernels.loss import cross_entropy, cross_entropy_torch
from cdfl.sim.kernels.optim import adam_step_, adam_step_torch_, sgd_step_, sgd_step_torch_

__all__ = [
    "Precision",
    "adam_step_",
    "adam_step_torch_",
    "conv_relu_pool",
    "conv_relu_pool_torch",
    "cross_entropy",
    "cross_entropy_torch",
    "sgd_step_",
    "sgd_step_torch_",
]
