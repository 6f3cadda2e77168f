"""When to upload."""

import json
import random
import sys
from datetime import datetime
from zoneinfo import ZoneInfo, reset_tzpath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdfl import upload_policies as module
from cdfl.upload_policies import (
    ALWAYS,
    POLICIES,
    AtFirst,
    Daily,
    DriftDetected,
    Either,
    EverySamples,
    EverySeconds,
    LossRises,
    MixtureMoves,
    Observation,
    PageHinkley,
    Sometimes,
    Unless,
)


def unasked():
    raise AssertionError("the loss was measured")


def decisions(policy, losses, samples=10):
    memory, answers = (), []
    for loss in losses:
        memory, upload = policy.decide(memory, Observation(samples, lambda loss=loss: loss))
        answers.append(upload)
    return answers


def test_always():
    assert ALWAYS.decide((), Observation(1, unasked)) == ((), True)


def test_every_samples():
    policy, memory, answers = EverySamples(100), (), []
    for samples in (40, 40, 40, 40, 100, 99, 1):
        memory, upload = policy.decide(memory, Observation(samples, unasked))
        answers.append(upload)
    assert answers == [False, False, True, False, True, False, True]


def test_sometimes():
    policy = Sometimes(0.25)
    chances = (0.0, 0.2499, 0.25, 0.9)
    assert [policy.decide((), Observation(1, unasked, chance))[1] for chance in chances] == [True, True, False, False]


def test_loss_rises():
    policy = LossRises(factor=2.0, window=2)
    assert decisions(policy, [1.0, 1.0, 1.9, 2.5]) == [False, False, False, False]  # means 1, 1, 1.3
    assert decisions(policy, [1.0, 1.0, 2.1]) == [False, False, True]
    assert decisions(policy, [1.0, 9.0, 1.0, 9.0]) == [False, True, False, True]  # the level is remembered
    assert decisions(policy, [9.0, 1.0, 1.0, 2.1]) == [False, False, False, True]  # the 9 is forgotten


def test_a_loss_that_stays_high_is_not_forgotten():
    """Uploads go on, ever more rarely, until the level counts as new."""
    high = [0, 1, 4, 9, 18, 35]  # pauses of 0, 2, 4, 8, 16 turns
    for factor in (1.2, 1.5, 1.9):
        answers = decisions(LossRises(factor), [1.0] * 5 + [2.0] * 60)
        assert [turn - 5 for turn, upload in enumerate(answers) if upload] == high
    helped = decisions(LossRises(), [1.0] * 5 + [4.0, 3.0, 2.0, 1.3, 1.0, 1.0])
    assert helped == [False] * 5 + [True, True, True, True, False, False]  # each upload lowered the loss
    again = decisions(LossRises(remember=100), [1.0, *[2.0] * 30, *[4.0] * 30])
    assert [turn - 1 for turn, upload in enumerate(again) if upload] == [*high[:5], *[30 + turn for turn in high[:5]]]
    assert decisions(LossRises(patience=1), [1.0, *[2.0] * 9]) == [False, True, *[False] * 2, True, *[False] * 4, True]
    uploads = decisions(PageHinkley(), [1.0] * 9 + [2.0] * 40)
    assert 2 <= sum(uploads) <= 5
    assert not any(uploads[-15:])


@pytest.mark.parametrize("name", ["loss-rises", "follow", "adwin", "kswin"])
def test_uploads_that_do_not_help_do_not_move_the_level(name):
    """The loss stays at twice its level: there is another upload within eight turns, while the loss stays there."""
    noise = random.Random(5)  # noqa: S311
    steady = [noise.gauss(1.0, 0.05) for _ in range(150)]
    high = [noise.gauss(2.0, 0.05) for _ in range(45)]
    answers = decisions(POLICIES[name], [*steady, *high, *steady])
    first = answers.index(True)
    assert 150 <= first < 175  # KSWIN compares the last 30 losses
    assert sum(answers[first : first + 10]) == 4  # turns 0, 1, 4, 9
    assert not any(answers[200:])


def test_a_slow_rise_is_seen():
    """Each loss is 3 % above the last one: never 20 % above the mean of five."""
    rising = [1.03**turn for turn in range(25)]
    assert any(decisions(LossRises(), [1.0] * 50 + rising))
    assert not any(decisions(LossRises(remember=5), [1.0] * 50 + rising))


def test_losses_may_be_negative():
    """Such as the negative log-likelihood of a density."""
    assert decisions(LossRises(), [-3.0] * 5 + [-2.5, -2.3, -3.5]) == [False] * 6 + [True, False]


def test_mixture_moves():
    policy = MixtureMoves(0.25)
    moved = [policy.decide((), Observation(1, unasked, mixture_moved=share))[1] for share in (0.0, 0.25, 0.26, 1.0)]
    assert moved == [False, False, True, True]
    either = Either(LossRises(), MixtureMoves())
    memory, _ = either.decide((), Observation(1, lambda: 1.0))
    memory, upload = either.decide(memory, Observation(1, lambda: 1.0, mixture_moved=0.5))
    assert upload
    assert either.decide(memory, Observation(1, lambda: 2.0))[1]  # the other one has not forgotten its level


def test_page_hinkley_by_hand():
    policy = PageHinkley(threshold=1.0, tolerance=0.0)
    # means 1, 1, 5/3: the sum rises by 0, 0, 4/3
    assert decisions(policy, [1.0, 1.0, 3.0]) == [False, False, True]
    # means 1, 1, 4/3, 1.5: by 0, 0, 2/3, then .5 more
    assert decisions(policy, [1.0, 1.0, 2.0, 2.0]) == [False, False, False, True]
    assert not any(decisions(policy, [3.0, 2.0, 1.0, 0.5, 0.4]))  # better and better
    assert not any(decisions(policy, [1.0] * 50))
    slow = PageHinkley(threshold=1.0, tolerance=0.5)
    assert not any(decisions(slow, [1.0, 1.0, 2.0, 2.0, 2.0]))
    again = decisions(policy, [1.0, 1.0, 3.0, 3.0, 3.0, 6.0])
    assert again == [False, False, True, False, False, True]  # the mean is then 7/3, so 3 is 2/3 above it


@pytest.mark.parametrize("name", POLICIES)
def test_memory_is_a_few_numbers(name):
    memory = ()
    for number in range(30):
        memory, upload = POLICIES[name].decide(memory, Observation(50, lambda number=number: 1.0 + number % 7, 0.7))
        assert isinstance(upload, bool)
        assert isinstance(memory, tuple)
        assert len(memory) <= 40
        assert all(isinstance(value, float) for value in memory)


def at(policy, times, memory=()):
    answers = []
    for time in times:
        memory, upload = policy.decide(memory, Observation(1, unasked, time=time))
        answers.append(upload)
    return answers


def test_every_seconds():
    assert at(EverySeconds(10), [100, 105, 110, 119, 121]) == [False, False, True, False, True]
    assert at(EverySeconds(10), [100, 50, 55, 60]) == [False, False, False, True]  # the clock was set back at 50


def moment(text, zone="Europe/Berlin"):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def test_daily():
    policy = Daily("03:30", zone="Europe/Berlin")
    times = ["2026-05-01 03:29", "2026-05-01 03:31", "2026-05-01 23:00", "2026-05-02 03:29", "2026-05-02 12:00"]
    assert at(policy, map(moment, times)) == [False, True, False, False, True]
    after = ["2026-05-01 03:31", "2026-05-01 03:32", "2026-05-05 02:00", "2026-05-05 04:00"]
    assert at(policy, map(moment, after)) == [False, False, True, True]  # days were missed, then the day itself


def test_daily_when_clocks_change():
    policy = Daily("02:30", zone="Europe/Berlin")  # does not exist on 29 March 2026, comes twice on 25 October
    spring = ["2026-03-28 12:00", "2026-03-29 12:00", "2026-03-30 01:00", "2026-03-30 12:00"]
    assert at(policy, map(moment, spring)) == [False, True, False, True]
    autumn = ["2026-10-24 12:00", "2026-10-25 12:00", "2026-10-25 13:00", "2026-10-26 12:00"]
    assert at(policy, map(moment, autumn)) == [False, True, False, True]


def test_unless_postpones():
    on_battery = iter([True, True, False, False])
    policy, memory, answers = Unless(EverySamples(20), lambda: next(on_battery)), (), []
    for _ in range(6):
        memory, upload = policy.decide(memory, Observation(10, unasked))
        answers.append(upload)
    #          10     due    due   allowed, and 20 seen again since (then due at once), 10, due
    assert answers == [False, False, False, True, False, True]
    assert next(on_battery, "asked four times") == "asked four times"


def test_at_first():
    policy = AtFirst(LossRises(factor=2.0))
    assert policy.decide((), Observation(1, unasked))[1]
    assert decisions(policy, [9.0, 1.0, 1.5, 9.0, 9.0]) == [True, False, False, True, True]


def test_either():
    policy, memory, answers = Either(EverySamples(100), LossRises(factor=2.0)), (), []
    for loss in (1.0, 1.0, 5.0, 5.0, 5.0, 5.0):
        memory, upload = policy.decide(memory, Observation(30, lambda loss=loss: loss))
        answers.append(upload)
    assert answers == [False, False, True, True, False, False]  # the loss, twice; the samples at the fourth


COMPOSED = (
    AtFirst(Either(EverySamples(30), AtFirst(LossRises()))),
    Unless(Either(EverySamples(35), LossRises(factor=1.5)), lambda: False),
    Either(Unless(PageHinkley(), lambda: False), EverySeconds(40)),
    Either(Either(EverySamples(50), PageHinkley()), Unless(Daily("00:00", "UTC"), lambda: True)),
    DriftDetected("ADWIN", {"clock": 1, "grace_period": 2}, window=100),
    DriftDetected("KSWIN", {"seed": 1, "window_size": 20, "stat_size": 5}, window=100),
    DriftDetected("PageHinkley", {"min_instances": 3, "threshold": 2.0}, window=100),
)


@pytest.mark.parametrize("policy", COMPOSED, ids=repr)
@settings(max_examples=20, deadline=None)
@given(
    losses=st.lists(st.floats(0, 10), min_size=1, max_size=40),
    restarts=st.sets(st.integers(0, 39)),
)
def test_a_restart_changes_no_decision(policy, losses, restarts):
    """What is remembered goes through a file, and what was only in the process is gone."""
    memory, answers, restarted, again = (), [], (), []
    for number, loss in enumerate(losses):
        observation = Observation(10, lambda loss=loss: loss, time=10.0 * number)
        memory, upload = policy.decide(memory, observation)
        answers.append(upload)
    for number, loss in enumerate(losses):
        if number in restarts:
            module._FED.clear()
            restarted = tuple(json.loads(json.dumps(restarted)))
        observation = Observation(10, lambda loss=loss: loss, time=10.0 * number)
        restarted, upload = policy.decide(restarted, observation)
        again.append(upload)
    assert again == answers
    assert restarted == memory


@pytest.mark.parametrize("name", ["adwin", "kswin"])
def test_detectors_react_to_a_rise_and_not_to_a_fall(name):
    noise = random.Random(3)  # noqa: S311
    steady = [noise.gauss(1.0, 0.1) for _ in range(150)]
    rise = [noise.gauss(2.0, 0.1) for _ in range(150)]
    answers = decisions(POLICIES[name], steady + rise)
    assert sum(answers[:150]) == 0
    assert 4 <= sum(answers[150:200]) <= 6  # the first, and while it does not help
    assert sum(answers[250:]) == 0  # the new level
    assert not any(decisions(POLICIES[name], rise + steady))


def test_losses_beyond_the_window_are_dropped():
    policy, memory = DriftDetected("ADWIN", window=10), ()
    for number in range(30):
        memory, _ = policy.decide(memory, Observation(1, lambda number=number: number % 3))
    assert memory[-10:] == (2, 0, 1, 2, 0, 1, 2, 0, 1, 2)
    assert len(memory) == 16


def test_the_cache_of_detectors_is_bounded():
    for client in range(2 * module.MOST_FED):
        DriftDetected("ADWIN").decide((), Observation(1, lambda client=client: float(client)))
    assert len(module._FED) == module.MOST_FED


def test_a_missing_package_names_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "river", None)
    module._FED.clear()
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'cdfl\[client\]'"):
        DriftDetected("ADWIN").decide((), Observation(1, lambda: 0.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EverySamples(-5), "count is -5; expected a whole number, 1 or more"),
        (lambda: EverySamples(2.5), "count is 2.5; expected a whole number, 1 or more"),
        (lambda: Sometimes(2), "probability is 2; expected a number from 0 to 1"),
        (lambda: Sometimes(float("nan")), "probability is nan; expected a number from 0 to 1"),
        (lambda: LossRises(factor=-1), "factor is -1; expected a number, 0 or more"),
        (lambda: LossRises(factor="2"), "factor is '2'; expected a number, 0 or more"),
        (lambda: LossRises(window=0), "window is 0; expected a whole number, 1 or more"),
        (lambda: PageHinkley(threshold=-1.0), "threshold is -1.0; expected a number, 0 or more"),
        (lambda: PageHinkley(tolerance=float("inf")), "tolerance is inf; expected a finite number, 0 or more"),
        (lambda: EverySeconds(float("nan")), "seconds is nan; expected a number, 0 or more"),
        (lambda: Daily("25:00"), "at is '25:00'; expected a time of day such as '03:30'"),
        (lambda: Daily(3), "at is 3; expected a time of day such as '03:30'"),
        (lambda: Daily("03:30", "Mars/X"), "zone is 'Mars/X'; expected None or a name such as 'Europe/Berlin'"),
        (lambda: AtFirst(None), r"policy is None; expected an object with decide\(memory, observation\)"),
        (lambda: Unless(LossRises, bool), "policy is the class LossRises; expected an object with decide"),
        (lambda: Unless(ALWAYS, True), "veto is True; expected a function that returns True to postpone"),
        (lambda: Either(ALWAYS, 5), "second is 5; expected an object with decide"),
        (lambda: DriftDetected("Adwin"), "river.drift has no detector 'Adwin'; try ADWIN, KSWIN, PageHinkley"),
        (lambda: DriftDetected(None), "river.drift has no detector None; try ADWIN"),
        (lambda: DriftDetected(window=0), "window is 0; expected a whole number, 1 or more"),
    ],
)
def test_invalid_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_infinity_means_never_and_an_empty_zone_means_local():
    assert at(EverySeconds(float("inf")), [0, 1e9]) == [False, False]
    assert decisions(LossRises(float("inf")), [0.0, 1.0, 9.0]) == [False, False, False]
    assert decisions(PageHinkley(float("inf")), [0.0, 1.0, 9.0]) == [False, False, False]
    assert EverySamples(1e3) == EverySamples(1000)
    observation = Observation(1, unasked, time=moment("2026-05-01 12:00"))
    assert Daily("03:30", "").decide((0.0,), observation) == Daily("03:30").decide((0.0,), observation)


def test_a_machine_without_time_zones(monkeypatch):
    for package in ("tzdata", "tzdata.zoneinfo.Europe"):
        monkeypatch.setitem(sys.modules, package, None)
    ZoneInfo.clear_cache()
    reset_tzpath(to=())
    try:
        with pytest.raises(ValueError, match=r"zone is 'Europe/Berlin'; .* has no time zone data: pip install tzdata"):
            Daily("03:30", "Europe/Berlin")
    finally:
        reset_tzpath()


class Answers:
    """A policy that gives what it was made with."""

    def __init__(self, *answer):
        self.answer = answer

    def decide(self, memory, observation):
        return self.answer


@pytest.mark.parametrize(
    "around",
    [
        lambda inner: Unless(inner, lambda: False),
        AtFirst,
        lambda inner: Either(inner, LossRises()),
        lambda inner: Either(LossRises(), inner),
    ],
    ids=["unless", "at first", "either", "or"],
)
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (((), "no"), r"Answers.decide returned 'no' as its decision; expected True \(upload\) or False"),
        ((("a",), False), r"Answers.decide returned the memory \('a',\); expected a tuple of numbers"),
        ((True,), r"Answers.decide returned \(True,\); expected \(memory, bool\)"),
    ],
)
def test_inner_policies_are_checked(around, answer, words):
    policy = around(Answers(*answer))
    with pytest.raises(ValueError, match=words):
        policy.decide((1.0,) if isinstance(policy, AtFirst) else (), Observation(1, lambda: 1.0))
