import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """The problems of these tests are too small for more, and other work may share the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
