import pytest
import torch

from cdfl.device import find_device, torch_threads


def test_existing_devices():
    assert find_device("cpu") == "cpu"
    assert find_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["gpu", "tpu", "", "cuda:", "cuda:x", "cuda:-1"])
def test_invalid_names(name):
    with pytest.raises(ValueError, match=f"device is '{name}'; expected auto, cpu, cuda or cuda:N"):
        find_device(name)


def test_a_missing_device():
    with pytest.raises(ValueError, match="device is 'cuda:99', but this machine has no such GPU"):
        find_device("cuda:99")


@pytest.mark.parametrize("count", [1, 3])
def test_the_number_of_threads_is_restored(count):
    def fail():
        assert torch.get_num_threads() == count
        raise RuntimeError("on purpose")

    torch.set_num_threads(2)
    with pytest.raises(RuntimeError, match="on purpose"), torch_threads(count):
        fail()
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
