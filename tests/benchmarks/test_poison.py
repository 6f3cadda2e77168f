"""The acceptance test, as measured: what benchmarks/poison.py counts, and what it found."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from cdfl.data import Sizes
from cdfl.record import Clusters, Uploaded
from cdfl.scenarios import load_scenario

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
QUICK = {"batch_size": 8, "local_epochs": 1, "shared_epochs": 1, "separate_epochs": 1}


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import poison

    return poison


def uploaded(client: int, after: float, rejected: bool, main: int = 0) -> Uploaded:
    nothing = dict.fromkeys(("epoch", "time", "update", "samples", "staleness", "held", "before", "divergence"), 0)
    costs = dict.fromkeys(("bytes_up", "bytes_down", "client_flops", "server_flops"), 0)
    mixture = [0.0, 0.0]
    mixture[main] = 1.0
    return Uploaded(
        client=client, after=after, rejected=rejected, true_mixture=mixture, mixture=None, rates=[], deprecated=False,
        **nothing, **costs,
    )  # fmt: skip


class TestScores:
    EVENTS = (
        Clusters(0, [0.0, 0.0]),
        *(Clusters(epoch, [0.5, 0.7]) for epoch in range(1, 5)),
        uploaded(1, after=0.1, rejected=True),
        uploaded(2, after=0.2, rejected=False),
        uploaded(3, after=0.9, rejected=True),
        uploaded(3, after=0.4, rejected=True, main=1),
        uploaded(3, after=0.6, rejected=False, main=1),
        Clusters(5, [1.0, 1.0]),
    )

    def test_poisoned(self, poison):
        found = poison.score(self.EVENTS, frozenset({1, 2}), poisoned=True)
        assert found == pytest.approx(
            {
                "clusters": (4 * 0.6 + 1) / 5,
                "clusters_at_the_end": 1.0,
                "after": 0.6,
                "poison_rejected": 1 / 2,
                "honest_rejected": 2 / 3,
                "changed_rejected": 1.0,
            }
        )

    def test_clean(self, poison):
        found = poison.score(self.EVENTS, frozenset({1, 2}), poisoned=False)
        assert (found["poison_rejected"], found["honest_rejected"]) == (None, pytest.approx(3 / 5))
        assert found["after"] == 0.6  # of the clients that are honest in the other runs, too


def test_it_runs(poison):
    small = replace(
        load_scenario("digits-4"), num_clients=10, num_uploads=30,
        sizes=Sizes(low=8, high=12, test=10, pretraining=20, proxy=20),
    )  # fmt: skip
    rows = poison.measure(poison.Group(small, seeds=2, attacks=("negated",), settings=QUICK))
    assert [(row["attack"], row["tested"]) for row in rows] == [
        ("clean", False), ("negated", False), ("clean", True), ("negated", True),
    ]  # fmt: skip
    assert all(len(row["clusters"]) == 2 for row in rows)
    assert rows[1]["poison_rejected"] == [0, 0]
    assert min(rows[3]["poison_rejected"]) >= 0.5  # all that come once something is usual; half come before that
    assert rows[3]["clusters"] != rows[1]["clusters"]


def test_what_was_measured_with_other_settings_is_old(poison):
    group = poison.Group(seeds=2)
    stored = {"settings": poison.settings_of(group), "rows": [{"clusters": [0.9, 0.8]}]}
    assert poison.is_current(group, stored)
    assert not poison.is_current(group, None)
    assert not poison.is_current(poison.Group(seeds=3), stored)
    assert not poison.is_current(poison.Group(seeds=2, settings={"base_rate": 0.01}), stored)
    for name, value in (("warm_up", 3), ("max_harm", 1.5), ("cluster_step", "neither")):
        assert not poison.is_current(group, stored | {"settings": stored["settings"] | {name: value}})
    del stored["settings"]["base_rate"]  # nobody knew of it then
    assert poison.is_current(group, stored)


class TestResults:
    @pytest.fixture
    def groups(self, poison):
        return json.loads(poison.RESULTS.read_text())["groups"]

    def test_the_page_shows_them(self, poison):
        text = poison.DOCS.read_text(encoding="utf-8")
        assert poison.rendered(text) == text

    def test_they_are_those_of_the_service(self, poison, groups):
        assert groups.keys() <= poison.GROUPS.keys()
        for name, group in groups.items():
            assert poison.is_current(poison.GROUPS[name], group), f"{name} is old: python benchmarks/poison.py"

    @pytest.mark.parametrize("attack", ["flipped-sign", "negated", "noise", "flipped-labels"])
    @pytest.mark.parametrize("name", ["digits-4", "example"])
    def test_near_the_clean_run_with_the_test_and_not_without(self, groups, name, attack):
        if name not in groups:
            pytest.skip(f"{name} has not been measured yet: python benchmarks/poison.py")
        scores = {(row["attack"], row["tested"]): fmean(row["clusters"]) for row in groups[name]["rows"]}
        clean = scores["clean", False]
        # An update with its sign flipped is as long as an honest one, and its model not much worse: it is caught least.
        assert scores[attack, True] > clean - (0.03 if attack == "flipped-sign" else 0.01)
        assert scores[attack, False] < clean - 0.01

    def test_false_alarms_cost_nobody_a_point(self, groups):
        for name, group in groups.items():
            free, tested = (
                {row["tested"]: row for row in group["rows"] if row["attack"] == "clean"}[k] for k in (0, 1)
            )
            for column in ("clusters", "after"):
                assert fmean(tested[column]) > fmean(free[column]) - 0.01, (name, column)
