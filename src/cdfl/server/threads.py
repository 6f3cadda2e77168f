"""How many threads torch may use in each thread of the server.

Evaluating a model gets all cores. All else is arithmetic on single vectors, which waits for memory, not for cores: a
second thread saves little there, and on a busy machine the two spend many times their work waiting for each other.
The bits of `core.server_update` do not depend on it.
"""

from concurrent.futures import ThreadPoolExecutor

import torch


def pool(size: int, name: str) -> ThreadPoolExecutor:
    """Threads that use torch alone."""
    return ThreadPoolExecutor(size, thread_name_prefix=name, initializer=use_torch_threads, initargs=(1,))


def use_torch_threads(count: int) -> None:
    """Let torch use so many threads from now on, in the thread that calls this."""
    torch.get_num_threads()  # the first call in a thread takes over the number that was set last, in whatever thread
    torch.set_num_threads(count)
