"""The client for asyncio: the same methods, run in a thread."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial, update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from cdfl.client.batches import Data
from cdfl.client.client import Client
from cdfl.client.data_stream import StreamFollower, Turn
from cdfl.upload_policies import Policy

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
    """A `Client` whose methods are awaited. Training and waiting block a thread, never the event loop.

    Properties are read directly. Calls run one after the other. A cancelled call still runs to its end in the thread,
    and the next call waits for it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.client = Client(*args, **kwargs)
        self._is_closed = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"cdfl-{self.client.client_id}")

    @property
    def client_id(self) -> str:
        """As `Client.client_id`."""
        return self.client.client_id

    @property
    def epoch(self) -> int:
        """As `Client.epoch`."""
        return self.client.epoch

    @property
    def mixture(self) -> tuple[float, ...]:
        """As `Client.mixture`."""
        return self.client.mixture

    @property
    def own_mixture(self) -> tuple[float, ...]:
        """As `Client.own_mixture`."""
        return self.client.own_mixture

    @property
    def mixture_moved(self) -> float:
        """As `Client.mixture_moved`."""
        return self.client.mixture_moved

    @property
    def has_experts(self) -> bool:
        """As `Client.has_experts`."""
        return self.client.has_experts

    @property
    def one_model(self) -> bool:
        """As `Client.one_model`."""
        return self.client.one_model

    @one_model.setter
    def one_model(self, value: bool) -> None:
        self.client.one_model = value

    @property
    def joined(self) -> bool:
        """As `Client.joined`."""
        return self.client.joined

    @property
    def pending(self) -> bool:
        """As `Client.pending`."""
        return self.client.pending

    @property
    def uploads(self) -> int:
        """As `Client.uploads`."""
        return self.client.uploads

    @property
    def device(self) -> torch.device:
        """As `Client.device`."""
        return self.client.device

    join = _in_thread(Client.join)
    update = _in_thread(Client.update)
    prepare = _in_thread(Client.prepare)
    start_model = _in_thread(Client.start_model)
    train = _in_thread(Client.train)
    upload = _in_thread(Client.upload)
    predict = _in_thread(Client.predict)
    see = _in_thread(Client.see)
    follow = _in_thread(Client.follow)
    flush = _in_thread(Client.flush)
    remember = _in_thread(Client.remember)
    recall = _in_thread(Client.recall)

    async def watch(
        self, stream: Iterable[Data] | AsyncIterable[Data], policy: Policy, recent: int = 1
    ) -> AsyncIterator[Turn]:
        """As `Client.watch`; the stream may also be asynchronous."""
        follower = await self._run(partial(StreamFollower, self.client, policy, recent))
        if isinstance(stream, AsyncIterable):
            async for data in stream:
                yield await self._run(partial(follower.turn, data))
        else:
            for data in stream:
                yield await self._run(partial(follower.turn, data))

    async def close(self) -> None:
        """Wait for the running call, then close the client."""
        await self._run(self.client.close)
        self._is_closed = True
        self._thread.shutdown(wait=False)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _run(self, call: Callable[[], R]) -> R:
        if self._is_closed:  # the thread has ended; the closed client raises at once
            return call()
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
