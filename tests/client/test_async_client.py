"""The client in a service with an event loop."""

import asyncio
import threading

import httpx
import pytest

from cdfl.client import AsyncClient, Client, ClientError, ServerAwayError
from cdfl.upload_policies import EverySamples

from .toy import make_data, make_model


def connect(handler):
    return AsyncClient(
        "http://server.test",
        make_model(),
        "car-7",
        transport=httpx.MockTransport(handler),
        local_epochs=1,
        sleep=lambda s: None,
    )


def test_methods_are_awaited(server):
    async def live():
        async with connect(server.handle) as client:
            joined = await client.join()
            reply = await client.update(make_data())
            model = await client.start_model()
            other = await client.upload(model)
            return joined.outcome, reply.outcome, other.epoch, await client.flush()

    assert asyncio.run(live()) == ("joined", "applied", 2, None)
    assert AsyncClient.update.__doc__.startswith("Train on `data`")


def test_all_public_names_of_client_exist():
    def public(kind):
        return {name: isinstance(value, property) for name, value in vars(kind).items() if not name.startswith("_")}

    assert public(AsyncClient) == public(Client)


def test_properties_are_not_awaited(server):
    async def live():
        async with connect(server.handle) as client:
            before = client.joined, client.pending, client.uploads, client.epoch, client.mixture
            await client.prepare()
            await client.upload(await client.train(make_data()))
            await client.remember("a policy", (1.0,))
            one, inner = await client.recall("a policy"), client.client
            assert client.mixture == inner.mixture == tuple(server.clients["car-7"].mixture.tolist())
            assert (client.client_id, client.device) == (inner.client_id, inner.device)
            return before, (client.joined, client.pending, client.uploads, client.epoch), one

    assert asyncio.run(live()) == ((False, False, 0, 0, ()), (True, False, 1, 1), (1.0,))


def test_close_may_be_called_twice(server):
    async def live():
        async with connect(server.handle) as client:
            await client.close()
            with pytest.raises(ClientError, match="client 'car-7' is closed"):
                await client.join()

    asyncio.run(live())


def test_streams_may_be_asynchronous_or_not(server):
    async def fresh():
        for seed in range(3):
            await asyncio.sleep(0)
            yield make_data(seed=seed)

    async def live():
        async with connect(server.handle) as client:
            first = [turn.decided async for turn in client.watch(fresh(), EverySamples(48))]
            stream = [make_data(seed=seed) for seed in range(3)]
            return first, [turn.decided async for turn in client.watch(stream, EverySamples(48))]

    assert asyncio.run(live()) == ([False, True, False], [True, False, True])  # 24 samples were left over


def test_the_event_loop_runs_while_the_server_works(server):
    """The server waits for the event loop, which would hang if the client blocked it."""
    threads, may_answer = set(), threading.Event()

    def slow(request):
        threads.add(threading.current_thread().name)
        assert may_answer.wait(60)
        return server.handle(request)

    async def live():
        async with connect(slow) as client:
            update = asyncio.create_task(client.update(make_data()))
            await asyncio.sleep(0)
            may_answer.set()
            return (await update).outcome

    assert asyncio.run(live()) == "applied"
    assert {name.rsplit("_", 1)[0] for name in threads} == {"cdfl-car-7"}


def test_a_cancelled_call_ends_before_the_next_begins(server):
    order, is_asked, may_answer = [], threading.Event(), threading.Event()

    def slow(request):
        order.append(("begin", request.method))
        is_asked.set()
        assert may_answer.wait(60)
        order.append(("end", request.method))
        return server.handle(request)

    async def live():
        async with connect(slow) as client:
            join = asyncio.create_task(client.join())
            await asyncio.to_thread(is_asked.wait, 60)
            join.cancel()
            with pytest.raises(asyncio.CancelledError):
                await join
            update = asyncio.create_task(client.update(make_data()))
            await asyncio.sleep(0)
            may_answer.set()
            await update

    asyncio.run(live())
    assert order == [(what, method) for method in ("GET", "POST") for what in ("begin", "end")]


def test_errors_are_raised_to_the_caller():
    async def live():
        def away(request):
            raise httpx.ConnectError("refused")

        async with connect(away) as client:
            await client.join()

    with pytest.raises(ServerAwayError, match="refused"):
        asyncio.run(live())
