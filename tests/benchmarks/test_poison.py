"""What `benchmarks.poison` counts."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from benchmarks import poison
from benchmarks.poison_table import points
from cdfl.data import Sizes
from cdfl.run_events import Clusters, Uploaded
from cdfl.scenarios import load_scenario

pytestmark = pytest.mark.slow

QUICK = {"batch_size": 8, "local_epochs": 1, "shared_epochs": 30, "separate_epochs": 5}


def uploaded(client: int, after: float, rejected: bool, main: int = 0) -> Uploaded:
    scores = dict.fromkeys(("held", "before", "served", "served_held"), 0)
    nothing = dict.fromkeys(("epoch", "time", "update", "samples", "staleness", "divergence"), 0)
    costs = dict.fromkeys(("bytes_up", "bytes_down", "client_flops", "server_flops", "trained"), 0)
    mixture = [0.0, 0.0]
    mixture[main] = 1.0
    return Uploaded(
        client=client, after=after, outcome="rejected" if rejected else "applied", true_mixture=mixture, mixture=None,
        rates=[],
        **nothing, **scores, **costs,
    )  # fmt: skip


class TestScores:
    EVENTS = (
        Clusters(0, [0.0, 0.0]),
        *(Clusters(epoch, [0.5, 0.7]) for epoch in range(1, 5)),
        uploaded(1, after=0.1, rejected=True),
        uploaded(2, after=0.2, rejected=False),
        *(uploaded(4, after=0.6, rejected=False) for _ in range(5)),
        uploaded(3, after=0.9, rejected=True),
        uploaded(3, after=0.4, rejected=True, main=1),
        uploaded(3, after=0.6, rejected=False, main=1),
        Clusters(5, [1.0, 1.0]),
    )

    def test_poisoned(self):
        found = poison.score(self.EVENTS, frozenset({1, 2}), poisoned=True)
        assert found == pytest.approx(
            {
                "clusters": (4 * 0.6 + 1) / 5,
                "after": 0.6,
                "poison_rejected": 1 / 2,
                "honest_rejected": 2 / 8,
                "changed_rejected": 1.0,
                "worst_rejected": 0.0,
            }
        )

    def test_clean(self):
        found = poison.score(self.EVENTS, frozenset({1, 2}), poisoned=False)
        assert (found["poison_rejected"], found["honest_rejected"]) == (None, pytest.approx(3 / 10))
        assert found["after"] == 0.6  # of the clients that are honest in the other runs, too

    def test_nobody_uploaded_often(self):
        found = poison.score([Clusters(0, [0.5]), uploaded(3, after=0.5, rejected=True)], frozenset(), poisoned=False)
        assert found["worst_rejected"] is None


SMALL = replace(
    load_scenario("digits-4"), num_clients=10, num_uploads=30,
    sizes=Sizes(low=8, high=12, test=10, pretraining=20, proxy=20),
)  # fmt: skip


@pytest.mark.parametrize(("is_fast", "num_uploads"), [pytest.param(False, 80, marks=pytest.mark.long), (True, 30)])
def test_it_runs(is_fast, num_uploads):
    """The clusters have learned something, so that there is something to harm."""
    group = poison.Group(replace(SMALL, num_uploads=num_uploads), is_fast=is_fast, settings=QUICK)
    clean, free, guarded = (
        poison.measure(group, poison.Job("", attack, is_guarded, seed=0))
        for attack, is_guarded in (("clean", True), ("flipped-sign", False), ("flipped-sign", True))
    )
    assert clean["poison_rejected"] is None
    assert free["poison_rejected"] == 0
    assert guarded["poison_rejected"] > guarded["honest_rejected"]


def test_each_run_is_stored_when_it_is_done_and_not_repeated(monkeypatch, capsys):
    monkeypatch.setattr(poison, "GROUPS", {"small": poison.Group(SMALL, settings=QUICK)})
    monkeypatch.setattr(poison, "SEEDS", (3,))
    kept = {"old": {"groups": {"gone": {}}}}
    monkeypatch.setattr(poison, "read", lambda name, default: kept.get(name, default))
    monkeypatch.setattr(poison, "write", kept.__setitem__)
    monkeypatch.setattr(poison, "measure", lambda group, job: {"clusters": 0.5})
    monkeypatch.setattr(poison, "ProcessPoolExecutor", lambda *args, **options: ThreadPoolExecutor(1))
    monkeypatch.setattr("sys.argv", ["poison"])
    poison.main()
    runs = kept["poison"]["groups"]["small"]["runs"]
    assert [(run["attack"], run["guarded"], run["seed"]) for run in runs] == [("clean", False, 3), ("clean", True, 3)]
    poison.main()
    assert capsys.readouterr().out.count("\n") == 2
    assert kept["poison"]["groups"]["small"]["runs"] == runs


def test_what_was_measured_with_other_settings_is_old():
    group = poison.Group()
    stored = {"settings": poison.settings_of(group), "runs": []}
    assert poison.is_current(group, stored)
    assert not poison.is_current(group, None)
    assert not poison.is_current(poison.Group(settings={"base_rate": 0.01}), stored)
    for name, value in (("rise", 3), ("guard", False), ("rates", {})):
        assert not poison.is_current(group, stored | {"settings": stored["settings"] | {name: value}})


def test_points_lost_are_those_of_pairs_of_seeds():
    clean = [{"seed": seed, "after": 0.9 + 0.01 * seed} for seed in range(4)]
    attacked = [{"seed": seed, "after": 0.9 + 0.01 * seed - (0.02 if seed % 2 else 0.0)} for seed in (3, 2, 1, 0)]
    assert points(clean, attacked, "after") == "1.00 ± 1.84"  # 3.182 * 1.155 / 2
    assert points(clean, attacked[:1], "after") == "-"
