import os
import signal

import pytest

from cdfl.signals import sigterm_interrupts


def test_sigterm_interrupts_until_the_end():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), sigterm_interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
