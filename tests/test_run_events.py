import json

import pytest

from cdfl.run_events import Clusters, Diverged, Finished, Started, Uploaded, from_json, only, to_json

EVENTS = [
    Started("digits-4", "cdfl", 0, 40, 4, 600, 1234, [{"name": "accuracy", "higher_is_better": True}], ["0°", "90°"]),
    Clusters(0, [0.1, 1 / 3]),
    Uploaded(
        epoch=1, time=0.1 + 0.2, client=3, update=0, samples=20, staleness=1, outcome="applied", held=0.3, before=0.5,
        after=0.625, served=0.7, served_held=0.35, true_mixture=[0.25, 0.75], mixture=None, divergence=None,
        rates=[0.3, 0.0], bytes_up=10, bytes_down=10, client_flops=10**15, server_flops=0, trained=40,
    ),
    Diverged(2.5, 7),
    Finished(1, 0.4, 0.5, 0.6, 0.8, 0.3, 0.7, None, 0.0, 0.0, 1, {"0-4": 1}, 10, 10, 10**15, 0, 40),
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_survives_a_round_trip(event):
    line = to_json(event)
    assert "\n" not in line
    assert from_json(line) == event
    assert json.loads(line)["event"] == type(event).__name__.lower()


@pytest.mark.parametrize(
    "line",
    ['{"event": "party"}', '{"epoch": 3}', '{"event": "clusters", "epoch": 3}', '{"event": "clus', "[1, 2]", "3", "[]"],
)
def test_lines_that_are_not_events(line):
    with pytest.raises(ValueError, match="this line is not an event of this version of cdfl: '"):
        from_json(line)


def test_only():
    assert only(EVENTS, Clusters) == [EVENTS[1]]
