"""Measure the harm test: under attack, and its false alarms where data drift.

Claim: while a fifth of the clients attack, the test keeps the clusters within a point of the clean run; without it they
lose more.

Runs the groups that are missing in benchmarks/results/poison.json or were measured with other settings; each group is
stored when it is done. All groups take about half an hour on one core. The constants of the test were chosen on seeds
10 to 14 and 100 to 106, which are not used here. Attackers attack from the first upload, so the warm-up of the test is
in all numbers.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch

from benchmarks.attacks import ATTACKS, Attack, attacked
from benchmarks.poison_table import CLEAN
from benchmarks.result_files import machine, read, write
from cdfl.cli.example_setup import settings as example
from cdfl.core import harm_test
from cdfl.data import Sudden
from cdfl.record import Clusters, Event, Uploaded, only
from cdfl.scenarios import Scenario, load_scenario
from cdfl.server.run import MAX_HARM
from cdfl.sim.runner import RunConfig, configure, simulations
from cdfl.sim.simulation import Simulation, SimulationGroup

LAST = 5  # scores of the clusters at the end of a run that are averaged: a single upload changes them much
FIXED = (
    "WARM_UP",
    "ABSURD",
    "WINDOW",
    "MEMORY",
    "BEARABLE",
    "TRUSTED",
    "BLAMED",
)  # constants of the test, in `cdfl.core.harm_test`
DRIFTS = ("sudden", "gradual", "seasons", "newcomer", "dirichlet")


@dataclass(frozen=True)
class Group:
    """Runs that train alike and share stacks."""

    scenario: str | Scenario = "digits-4"
    seeds: int = 5
    attacks: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)


GROUPS = {
    "digits-4": Group(attacks=tuple(ATTACKS)),
    "example": Group(attacks=tuple(ATTACKS), seeds=3, settings=example.leaves()),
    **{f"digits-4-{drift}": Group(f"digits-4-{drift}", seeds=3) for drift in DRIFTS},
    # As in its example stream: a client has one rotation, then another.
    "example-sudden": Group(
        replace(load_scenario("digits-4"), drift=Sudden(low=1.0, high=1.0, every=5)), seeds=3, settings=example.leaves()
    ),
}


def main() -> None:
    """Run the missing groups."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    stored = read("poison", {"groups": {}})
    for name, group in GROUPS.items():
        if not is_current(group, stored["groups"].get(name)):
            stored["groups"][name] = {"settings": settings_of(group), "rows": measure(group)}
            write("poison", {**stored, "machine": machine()})


def config_of(group: Group, seed: int, max_harm: float | None) -> RunConfig:
    """Return the config of one run of a group."""
    return configure(group.scenario, seed=seed, **{**group.settings, "max_harm": max_harm})


def settings_of(group: Group) -> dict[str, Any]:
    """Return what the numbers of a group depend on, as JSON values."""
    settings = config_of(group, 0, MAX_HARM).settings.to_dict()
    fixed = {name.lower(): getattr(harm_test, name) for name in FIXED}
    stored: dict[str, Any] = json.loads(json.dumps({**fixed, **settings}))
    return stored


def is_current(group: Group, stored: dict[str, Any] | None) -> bool:
    """Return whether a group was measured with the present settings and number of seeds."""
    if stored is None or len(stored["rows"][0]["clusters"]) != group.seeds:
        return False
    return bool(stored["settings"] == settings_of(group))


def measure(group: Group) -> list[dict[str, Any]]:
    """Return a row for each attack and for none, with and without the test; a column has a number for each seed."""
    cases = [(seed, tested) for seed in range(group.seeds) for tested in (False, True)]
    configs = [config_of(group, seed, MAX_HARM if tested else None) for seed, tested in cases]
    runs: dict[tuple[str, bool], list[Simulation]] = {}
    for (_, tested), honest in zip(cases, simulations(configs), strict=True):
        runs.setdefault((CLEAN, tested), []).append(honest)
        for name in group.attacks:
            runs.setdefault((name, tested), []).append(attacked(honest, ATTACKS[name]))
    for _ in SimulationGroup([run for same in runs.values() for run in same]).events():
        pass
    return [row(name, tested, same) for (name, tested), same in runs.items()]


def row(name: str, tested: bool, runs: Iterable[Simulation]) -> dict[str, Any]:
    """Return the scores of runs that differ in their seed."""
    scores = []
    for run in runs:
        chosen = Attack().attackers(
            run.workload.seed, run.workload.scenario.num_clients
        )  # the same clients for every attack
        scores.append(score(run.emitted, chosen, poisoned=name != CLEAN))
    print(name, "tested" if tested else "all accepted", scores, flush=True)
    return {"attack": name, "tested": tested} | {column: [one[column] for one in scores] for column in scores[0]}


def score(events: Iterable[Event], chosen: frozenset[int], *, poisoned: bool) -> dict[str, float | None]:
    """Return one run in a few numbers; the accuracy of clients is that of the honest ones."""
    uploads, scores = only(events, Uploaded), only(events, Clusters)
    attackers = chosen if poisoned else frozenset()
    bad = [upload.outcome == "rejected" for upload in uploads if upload.client in attackers]
    honest = [upload for upload in uploads if upload.client not in attackers]
    good = [upload.outcome == "rejected" for upload in honest]
    changed = [upload.outcome == "rejected" for upload in after_a_change(honest)]
    last = {upload.client: upload.after for upload in uploads if upload.client not in chosen}
    return {
        "clusters": fmean(fmean(score.scores) for score in scores[-LAST:]),
        "clusters_at_the_end": fmean(scores[-1].scores),
        "after": fmean(last.values()),
        "poison_rejected": fmean(bad) if bad else None,
        "honest_rejected": fmean(good),
        "changed_rejected": fmean(changed) if changed else None,
    }


def after_a_change(uploads: Iterable[Uploaded]) -> Iterator[Uploaded]:
    """Yield uploads of clients whose main cluster differs from that at their previous upload."""
    mains: dict[int, int] = {}
    for upload in uploads:
        main = upload.true_mixture.index(max(upload.true_mixture))
        if mains.setdefault(upload.client, main) != main:
            yield upload
        mains[upload.client] = main


if __name__ == "__main__":
    main()
