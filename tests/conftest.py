import signal

import pytest
import torch
from hypothesis import HealthCheck, settings

# On a busy machine examples take long to make; that is no fault of theirs.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell that runs tests in the background makes them ignore Ctrl-C, and the commands they start and interrupt as well.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """The problems of these tests are too small for more, and other work may share the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
