import pytest
import torch

from cdfl.data import to_input


def test_only_bytes_are_scaled():
    with pytest.raises(TypeError, match=r"to_input scales uint8 pixels, got torch\.float32"):
        to_input(torch.zeros(1))


def test_the_type_is_the_networks():
    assert to_input(torch.zeros(1, dtype=torch.uint8), torch.bfloat16).dtype == torch.bfloat16
