"""The queues of the plan for ten million clients, on cases that can be worked out by hand."""

import numpy as np
import pytest

from benchmarks.ten_million import GROUP, Costs, cores, run, station, stepper

COSTS = Costs(front=0.0, evaluate=0.0, step=1.0, commit=2.0)


def test_the_stepper_takes_what_waits_and_commits_once():
    done, busy, groups = stepper(np.array([0.0, 0.5, 1.0, 100.0]), COSTS)
    assert done.tolist() == [3.0, 7.0, 7.0, 103.0]  # alone; then two together; then one after a pause
    assert (busy, groups) == (3.0 + 4.0 + 3.0, 3)


def test_a_group_is_not_larger_than_a_commit():
    done, _, groups = stepper(np.zeros(GROUP + 1), COSTS)
    assert groups == 2
    assert done[0] == GROUP + 2.0
    assert done[-1] == GROUP + 2.0 + 3.0


def test_a_station_without_a_queue_takes_its_service_time():
    rng = np.random.default_rng(0)
    left = station(np.arange(1000) * 10.0, 1.0, 3, rng)
    assert (left - np.arange(1000) * 10.0).mean() == pytest.approx(1.0, abs=0.05)


def test_waits_grow_with_the_rate():
    costs = Costs(front=0.01, evaluate=0.0, step=0.002, commit=0.005)
    calm, full, over = (run(costs, rate, seed=0) for rate in (50, 400, 550))
    assert calm["p99"] < full["p99"] < over["p99"]
    assert over["p99_stepper"] > 1
    assert over["group"] == pytest.approx(GROUP, rel=0.05)
    assert cores(0.01, 130) == 2
