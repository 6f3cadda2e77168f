"""Who is there when."""

from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest

from cdfl.sim.time_models import TIME_MODELS, Devices, Exponential, FewActive, Sessions, Span, Uniform


def turns_of(model, clients=6, count=400, seed=0):
    return list(islice(model.ticks(clients, np.random.default_rng(seed)), count))


def looks_of(model, **given):
    return [tick.client for tick in turns_of(model, **given) if tick.kind == "turn"]


@pytest.mark.parametrize("name", TIME_MODELS)
def test_every_model_keeps_its_promises(name):
    ticks = turns_of(TIME_MODELS[name])
    assert ticks == turns_of(TIME_MODELS[name])  # a function of the generator
    assert ticks != turns_of(TIME_MODELS[name], seed=1)
    times = [tick.time for tick in ticks]
    assert times == sorted(times)
    there = set()
    for tick in ticks:
        if tick.kind == "join":
            assert tick.client not in there
            there.add(tick.client)
        assert tick.client in there
    assert there == set(range(6))
    assert set(looks_of(TIME_MODELS[name])) == set(range(6))


@pytest.mark.parametrize("name", TIME_MODELS)
def test_one_client_is_enough(name):
    assert set(looks_of(TIME_MODELS[name], clients=1, count=10)) == {0}


def test_uniform_is_even_and_without_order():
    counts = Counter(looks_of(Uniform(), count=6006))
    assert all(900 < counts[client] < 1100 for client in range(6))
    turns = looks_of(Uniform())
    assert any(one == other for one, other in pairwise(turns))


def test_a_session_has_everybody_once():
    turns = looks_of(Sessions(), count=6 + 60)
    sessions = [turns[start : start + 6] for start in range(0, 60, 6)]
    assert all(sorted(session) == list(range(6)) for session in sessions)
    assert len({tuple(session) for session in sessions}) > 1


def test_few_are_active_at_a_time():
    turns = looks_of(FewActive(active=4, turns_each=5), count=6 + 30)
    assert len(set(turns[:20])) == 4
    assert turns[:4] * 5 == turns[:20]
    assert len(set(turns[20:30])) == 2  # the rest of six
    assert set(turns[20:30]).isdisjoint(turns[:4])
    with pytest.raises(ValueError, match="active is 0, turns_each is 5; expected at least 1 of each"):
        FewActive(active=0)


def test_exponential_waiting_times_are_uneven():
    even = Counter(looks_of(Exponential(unevenness=0.0), count=6006))
    uneven = Counter(looks_of(Exponential(unevenness=1.5), count=6006))
    assert max(even.values()) < 1.3 * min(even.values())
    assert max(uneven.values()) > 3 * min(uneven.values())
    times = [tick.time for tick in turns_of(Exponential(unevenness=0.0), count=6006)]
    assert times[-1] == pytest.approx(1000, rel=0.1)  # six clients, one tick a unit of time each


# -- devices


def test_a_cycle_adds_up_by_hand():
    spans = Span("constant", 2.0), Span("constant", 3.0), Span("constant", 0.5), Span("constant", 0.25)
    ticks = turns_of(Devices(*spans), clients=1, count=3)
    # download .25, wait 2, train 3 at half the slowness, upload .25
    assert [(tick.time, tick.kind) for tick in ticks] == [(0.0, "join"), (4.0, "turn"), (8.0, "turn")]


def test_equal_times_are_taken_in_the_order_they_were_made():
    tick = Devices(Span("constant", 1.0), Span(), Span("constant", 1.0), Span())
    ticks = turns_of(tick, clients=3, count=9)
    assert [(tick.time, tick.client) for tick in ticks] == [
        (time, client) for time in (0.0, 1.0, 2.0) for client in range(3)
    ]


def test_who_leaves_looks_no_more_and_the_run_may_end():
    model = Devices(joins=Span("uniform", 3.0), stays=Span("exponential", 5.0))
    ticks = turns_of(model, count=10**6)
    assert Counter(tick.kind for tick in ticks)["leave"] == Counter(tick.kind for tick in ticks)["join"] == 6
    for client in range(6):
        own = [tick for tick in ticks if tick.client == client]
        assert (own[0].kind, own[-1].kind) == ("join", "leave")
        assert {tick.kind for tick in own[1:-1]} <= {"turn"}
        assert 1.5 <= own[0].time <= 4.5


def test_a_slow_device_is_slow_always():
    turns = Counter(looks_of(Devices(Span(), Span("constant", 1.0), Span("lognormal", 1.0, 1.5), Span()), count=5000))
    assert max(turns.values()) > 5 * min(turns.values())


# -- spans of time


@pytest.mark.parametrize("kind", ["constant", "uniform", "exponential", "lognormal"])
def test_spans_have_their_mean_and_are_never_negative(kind):
    rng = np.random.default_rng(0)
    drawn = [Span(kind, 2.0).draw(rng, client=0) for _ in range(20000)]
    assert np.mean(drawn) == pytest.approx(2.0, rel=0.03)
    assert min(drawn) >= 0
    assert (len(set(drawn)) == 1) == (kind == "constant")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "weekly"}, "a span is 'weekly'; expected one of constant, uniform, exponential, lognormal, trace"),
        ({"mean": -1.0}, "a constant span has mean -1.0 and spread 0.5; expected numbers of at least 0"),
        ({"mean": float("nan")}, "has mean nan"),
        ({"kind": "uniform", "mean": 1.0, "spread": 2.0}, "a spread of at most 1 where it is uniform"),
        ({"kind": "trace"}, "a trace span has 0 rows; expected rows of numbers"),
        ({"kind": "trace", "trace": ((1.0,), ())}, "a trace span has 2 rows; expected rows of numbers"),
    ],
)
def test_nonsense_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Span(**given)


def test_a_trace_is_read_round_and_round(tmp_path):
    file = tmp_path / "waits.csv"
    file.write_text("1, 2\n5\n")
    span = Span.from_file(file)
    assert Span.from_file(str(file)) == span
    file.write_text("1, 2,\n5,, \n")  # as spreadsheets fill lines up
    assert Span.from_file(file) == span
    rng = np.random.default_rng(0)
    assert [span.draw(rng, client=0, number=number) for number in range(3)] == [1.0, 2.0, 1.0]
    assert [span.draw(rng, client=client) for client in range(4)] == [1.0, 5.0, 1.0, 5.0]
    devices = Devices(wait=span, training=Span(), network=Span())
    turns = [(tick.time, tick.client) for tick in turns_of(devices, clients=2, count=7) if tick.kind == "turn"]
    assert turns == [(1.0, 0), (3.0, 0), (4.0, 0), (5.0, 1), (6.0, 0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "waits.csv is empty; expected one line of numbers for each client"),
        ("1,2\nsoon\n", "waits.csv, line 2: 'soon'; expected numbers of at least 0, separated by commas"),
        ("1,-2\n", "waits.csv, line 1: '1,-2'"),
        ("1,inf\n", "waits.csv, line 1"),
        ("nan\n", "waits.csv, line 1"),
        ("1\n\n2\n", "waits.csv, line 2: ''"),
        (",\n", "waits.csv, line 1: ','"),
        ("1.0,,2\n", "waits.csv, line 1: '1.0,,2'; expected numbers of at least 0, separated by commas"),
        (
            b"\xff\xfe1\x00",
            r"waits.csv is not a text file \(.*can't decode byte 0xff.*\); expected one line of numbers for each",
        ),
    ],
)
def test_a_bad_trace_says_where(tmp_path, text, message):
    file = tmp_path / "waits.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message):
        Span.from_file(file)
