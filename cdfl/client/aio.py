"""The client for services that run an event loop: the same methods, each in the client's own thread."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial, update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

from cdfl.client.client import Client
from cdfl.client.data import Data
from cdfl.client.watch import Seen, Watcher
from cdfl.policy import Policy

P = ParamSpec("P")
R = TypeVar("R")


def _in_thread(
    method: Callable[Concatenate[Client, P], R],
) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, R]]:
    async def call(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(partial(method, self.client, *args, **kwargs))

    update_wrapper(call, method)
    return call


class AsyncClient:
    """A `Client` whose methods are awaited. Training and waiting block one thread, never the event loop.

    Calls come one after the other. A call that is cancelled goes on in its thread to its end; the next one waits.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.client = Client(*args, **kwargs)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"cdfl-{self.client.client_id}")

    join = _in_thread(Client.join)
    update = _in_thread(Client.update)
    upload = _in_thread(Client.upload)
    flush = _in_thread(Client.flush)

    async def watch(
        self, stream: Iterable[Data] | AsyncIterable[Data], policy: Policy, recent: int = 1
    ) -> AsyncIterator[Seen]:
        """As `Client.watch`; the stream may be asynchronous too."""
        watcher = await self._run(partial(Watcher, self.client, policy, recent))
        if isinstance(stream, AsyncIterable):
            async for data in stream:
                yield await self._run(partial(watcher.look, data))
        else:
            for data in stream:
                yield await self._run(partial(watcher.look, data))

    async def close(self) -> None:
        """Wait for what is going on, then let go of everything."""
        await self._run(self.client.close)
        self._thread.shutdown(wait=False)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _run(self, call: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
