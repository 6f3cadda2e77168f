"""When to upload."""

import pytest

from cdfl.policy import ALWAYS, POLICIES, EverySamples, Look, LossRises, PageHinkley, Sometimes


def unasked():
    raise AssertionError("the loss was measured")


def decisions(policy, losses, samples=10):
    memory, answers = (), []
    for loss in losses:
        memory, upload = policy.decide(memory, Look(samples, lambda loss=loss: loss))
        answers.append(upload)
    return answers


def test_always():
    assert ALWAYS.decide((), Look(1, unasked)) == ((), True)


def test_every_so_many_samples():
    policy, memory, answers = EverySamples(100), (), []
    for samples in (40, 40, 40, 40, 100, 99, 1):
        memory, upload = policy.decide(memory, Look(samples, unasked))
        answers.append(upload)
    assert answers == [False, False, True, False, True, False, True]


def test_sometimes():
    policy = Sometimes(0.25)
    chances = (0.0, 0.2499, 0.25, 0.9)
    assert [policy.decide((), Look(1, unasked, chance))[1] for chance in chances] == [True, True, False, False]


def test_a_loss_that_rises_above_its_recent_mean():
    policy = LossRises(factor=2.0, window=2)
    assert decisions(policy, [1.0, 1.0, 1.9, 2.8]) == [False, False, False, False]  # means 1, 1, 1.45
    assert decisions(policy, [1.0, 1.0, 2.1]) == [False, False, True]
    assert decisions(policy, [1.0, 9.0, 9.0, 9.0]) == [False, True, False, False]  # after an upload, a new past
    assert decisions(policy, [9.0, 1.0, 1.0, 2.1]) == [False, False, False, True]  # the 9 is forgotten


def test_a_loss_that_drifts_by_hand():
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
    assert again == [False, False, True, False, False, True]  # it starts over after an upload


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_remembered_is_a_few_numbers(name):
    memory = ()
    for number in range(30):
        memory, upload = POLICIES[name].decide(memory, Look(50, lambda number=number: 1.0 + number % 7, 0.7))
        assert isinstance(upload, bool)
        assert isinstance(memory, tuple)
        assert len(memory) <= 5
        assert all(isinstance(value, float) for value in memory)
