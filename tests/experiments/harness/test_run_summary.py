"""What is kept of a run, worked out by hand."""

import pytest

from cdfl.run_events import Diverged
from experiments.harness.run_summary import MIXTURES_KEPT, MOST_POINTS, summarize_run
from tests.experiments.small import events


def test_curves_by_hand():
    kept = summarize_run(events(num_clients=2, rounds=3), 2, updates=True)
    # Uploads have before .51, .52, ..., .56; sessions are pairs of them.
    assert kept["sessions"]["upload"] == [2, 4, 6]
    assert kept["sessions"]["before"] == [0.515, 0.535, 0.555]
    assert kept["sessions"]["after"] == [0.615, 0.635, 0.655]
    assert kept["sessions"]["divergence"] == [0.1, 0.1, 0.1]
    assert kept["updates"]["clients"] == [2, 2, 2]
    assert kept["updates"]["held"] == [0.3, 0.3, 0.3]
    assert kept["clusters"] == {"epoch": [0, 2, 4, 6], "accuracy": [0.2, 0.32, 0.34, 0.36]}
    assert kept["end"]["before"] == pytest.approx(0.555)
    assert kept["end"]["rate"] == 0.3
    assert "mixtures" not in kept
    assert "updates" not in summarize_run(events(num_clients=2, rounds=3), 2)


def test_a_session_that_is_not_over_does_not_count():
    told = events(num_clients=2, rounds=3)
    short = [event for event in told if getattr(event, "epoch", 0) != 6 or not hasattr(event, "client")]
    kept = summarize_run(short, 2, updates=True)
    assert kept["sessions"]["upload"] == [2, 4]
    assert kept["updates"]["clients"] == [2, 2, 1]


def test_mixtures_of_the_last_uploads():
    kept = summarize_run(events(num_clients=10, rounds=10), 10, mixtures=True)
    assert kept["mixtures"]["true"] == [[0.5, 0.5]] * MIXTURES_KEPT
    assert kept["mixtures"]["estimated"] == [[0.4, 0.6]] * MIXTURES_KEPT
    silent = summarize_run(events(2, 2, mixture=None, divergence=None), 2, mixtures=True)
    assert "mixtures" not in silent
    assert "divergence" not in silent["sessions"]


def test_long_runs_are_thinned_to_their_ends():
    kept = summarize_run(events(num_clients=1, rounds=400), 1, updates=True)
    assert len(kept["sessions"]["upload"]) == len(kept["clusters"]["epoch"]) == MOST_POINTS
    assert (kept["sessions"]["upload"][0], kept["sessions"]["upload"][-1]) == (1, 400)
    assert len(kept["updates"]["held"]) == MOST_POINTS


def test_a_run_in_which_everything_diverged():
    told = events(num_clients=2, rounds=1)
    nothing = [event for event in told if not hasattr(event, "client")] + [Diverged(1.0, 0)]
    kept = summarize_run(nothing, 2)
    assert kept["sessions"] == {"upload": [], "before": [], "after": []}
    assert kept["end"]["rate"] == 0.0
