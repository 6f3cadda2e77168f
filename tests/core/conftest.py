import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def _one_thread():
    """Tensors of a few numbers gain nothing from more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
