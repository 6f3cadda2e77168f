"""The stream of events without a network: what is in memory, when streams are woken, what is forgotten."""

import asyncio
import json
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest

from cdfl.server import events
from cdfl.server.connection_limit import PIECE
from cdfl.server.events import Notifier, StreamLimit, Told, stream
from cdfl.server.limits import Limits
from cdfl.wire import UnavailableError

from . import toy


def some_entry(number, client_id="car-7"):
    """An entry whose number is its epoch."""
    return replace(toy.some_entry(number, client_id), number=number)


async def always():
    return True


def events_of(journal, notifier, *, joins=True, is_allowed=always):
    """The stream of one who sees everything."""
    return stream(journal, notifier, StreamLimit(Limits()), 0, lambda each: each.whole, is_allowed, joins=joins)


def told(piece: bytes) -> list[int]:
    return [
        json.loads(line.removeprefix("data: "))["epoch"] for line in piece.decode().splitlines() if "data: " in line
    ]


class Journal:
    """A store that counts how often it is read."""

    def __init__(self, *entries):
        self.kept, self.reads = list(entries), 0

    def entries(self, after, limit):
        self.reads += 1
        return [entry for entry in self.kept if entry.number > after][:limit]


async def read(source, count, seconds=5.0):
    """The epochs of the next events."""
    found = []
    async with asyncio.timeout(seconds):
        async for piece in source:
            found += told(piece)
            if len(found) >= count:
                return found
    return found


def test_entries_are_encoded_once_and_read_from_memory():
    async def watch():
        notifier, journal = Notifier(), Journal(*(some_entry(epoch) for epoch in range(1, 4)))
        streams = [events_of(journal, notifier) for _ in range(20)]
        assert [await read(each, 3) for each in streams] == [[1, 2, 3]] * 20
        reads = journal.reads
        waiting = [asyncio.create_task(read(each, 1)) for each in streams]
        await asyncio.sleep(0.05)
        entry = some_entry(4)
        journal.kept.append(entry)
        notifier.committed([entry])
        assert await asyncio.gather(*waiting) == [[4]] * 20
        assert journal.reads <= reads + 20  # none was read for the new entry after the first wait

    asyncio.run(watch())


def test_streams_are_woken_a_few_times_a_second(monkeypatch):
    monkeypatch.setattr(events, "WAKE_SECONDS", 0.2)

    async def watch():
        notifier = Notifier()
        with notifier.subscribed() as news:
            woken = 0
            for epoch in range(100):
                notifier.committed([some_entry(epoch + 1)])
                await asyncio.sleep(0.005)
                if news.is_set():
                    woken += 1
                    news.clear()
        return woken

    assert 2 <= asyncio.run(watch()) <= 8


def test_many_streams_are_woken_less_often():
    async def pauses():
        notifier, found = Notifier(), []
        with ExitStack() as stack:
            for number in (1, 99, 900):  # 1, 100 and 1,000 streams
                for _ in range(number):
                    stack.enter_context(notifier.subscribed())
                found.append(notifier.pause)
        return found

    assert asyncio.run(pauses()) == [events.WAKE_SECONDS, 100 / events.MOST_WAKES, events.SLOWEST_SECONDS]


def test_what_was_forgotten_is_read_from_the_journal():
    async def watch():
        notifier, journal = Notifier(), Journal(some_entry(1, "car-7"))
        notifier.committed([some_entry(1, "car-7")])
        notifier.joined("car-7")
        assert b"car-7" in notifier.after(0)[0].whole
        notifier.forgot("car-7")
        journal.kept[0] = journal.kept[0].forgotten()
        source = events_of(journal, notifier)
        assert await read(source, 1) == [1]
        assert notifier.joins_after(0) == []
        return [piece async for piece in limited(events_of(journal, notifier))]

    assert not any(b"car-7" in piece for piece in asyncio.run(watch()))


async def limited(source, count=2):
    async for piece in source:
        yield piece
        count -= 1
        if count == 0:
            return


def test_a_gap_in_memory_is_read_from_the_journal():
    notifier = Notifier()
    notifier.committed([some_entry(epoch) for epoch in (5, 6)])
    assert notifier.after(3) is None
    assert [each.entry.epoch for each in notifier.after(4)] == [5, 6]
    assert [each.entry.epoch for each in notifier.after(5)] == [6]
    assert notifier.after(9) == []


def test_a_stream_sends_little_at_once():
    """Events of many clusters are long, and a peer may not read them."""

    async def watch():
        entries = [replace(some_entry(number), losses=(0.1,) * 2000) for number in range(1, 60)]
        seen, source = [], events_of(Journal(*entries), Notifier())
        while b"".join(seen).count(b"data: ") < len(entries):
            seen.append(await anext(source))
        return seen

    sizes = list(map(len, asyncio.run(watch())))
    assert sum(sizes) > 4 * PIECE
    assert max(sizes) < 2 * PIECE


def test_what_others_see_has_no_client():
    seen = Told(some_entry(1, "car-7"))
    assert b"car-7" in seen.whole
    assert b"car-7" not in seen.public
    assert json.loads(seen.public.split(b"\n")[0].removeprefix(b"data: ")).keys() == {"number", "epoch", "outcome"}


def test_a_quiet_stream_shows_that_it_lives(monkeypatch):
    monkeypatch.setattr(events, "CHECK_SECONDS", 0.05)

    async def watch():
        source = events_of(Journal(), Notifier(), joins=False)
        return [piece async for piece in limited(source)]

    assert asyncio.run(watch()) == [events.OPENING, events.SIGN_OF_LIFE]


@pytest.mark.parametrize("joins", [True, False])
def test_joins_are_shown_to_those_who_see_all(joins):
    async def watch():
        notifier, journal = Notifier(), Journal()
        source = events_of(journal, notifier, joins=joins)
        assert await anext(source) == events.OPENING
        waiting = asyncio.create_task(anext(source))
        await asyncio.sleep(0.05)
        notifier.joined("car-7")
        notifier.committed([some_entry(1)])
        return await asyncio.wait_for(waiting, 5)

    assert (b"event: joined" in asyncio.run(watch())) is joins


def test_a_stream_ends_when_it_is_no_longer_allowed(monkeypatch):
    """A token that is revoked while its stream is open."""
    monkeypatch.setattr(events, "CHECK_SECONDS", 0.01)

    async def watch():
        async def revoked():
            return False

        source = events_of(Journal(), Notifier(), is_allowed=revoked)
        async with asyncio.timeout(5):
            return [piece async for piece in source]

    assert asyncio.run(watch())[0] == events.OPENING


def test_streams_that_read_old_entries_take_turns():
    """However many there are, one page is read at a time, and the reader rests after it."""
    active, most = 0, 0

    class Slow(Journal):
        def entries(self, after, limit):
            nonlocal active, most
            active += 1
            most = max(most, active)
            time.sleep(0.005)
            active -= 1
            return super().entries(after, limit)

    async def watch():
        journal = Slow(*(some_entry(epoch) for epoch in range(1, 4)))
        notifier, limit = Notifier(), StreamLimit(Limits())
        streams = [stream(journal, notifier, limit, 0, lambda each: each.whole, always, joins=False) for _ in range(8)]
        begun = time.monotonic()
        assert await asyncio.gather(*(read(each, 3) for each in streams)) == [[1, 2, 3]] * 8
        return time.monotonic() - begun

    took = asyncio.run(watch())
    assert most == 1
    assert took >= 8 * 0.005 * events.REST  # a rest of so many times the work


class TestPlaces:
    LIMITS = Limits(streams=4, client_streams=2, operator_streams=1)

    def test_one_client_cannot_take_all(self):
        limit = StreamLimit(self.LIMITS)
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(limit.place("car-7", is_operator=False))
            with pytest.raises(UnavailableError, match="2 streams of this client"):
                stack.enter_context(limit.place("car-7", is_operator=False))
            stack.enter_context(limit.place("car-8", is_operator=False))

    def test_all_clients_together_leave_the_operator_its_own(self):
        limit = StreamLimit(self.LIMITS)
        with ExitStack() as stack:
            for number in range(4):
                stack.enter_context(limit.place(f"car-{number}", is_operator=False))
            with pytest.raises(UnavailableError, match="4 streams are open"):
                stack.enter_context(limit.place("another", is_operator=False))
            stack.enter_context(limit.place(None, is_operator=True))

    def test_a_stream_that_ends_leaves_room(self):
        limit = StreamLimit(Limits(streams=1, client_streams=1, operator_streams=1))
        for _ in range(3):
            with limit.place("car-7", is_operator=False):
                pass
