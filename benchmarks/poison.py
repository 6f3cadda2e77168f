"""Claim: while a fifth of the clients poisons, the service's acceptance test keeps the clusters within a point of the
clean run; without it they lose more. And how many honest uploads it refuses, where data drift.

python benchmarks/poison.py          run the groups that are missing, or measured with other settings than today's
                                     (all: about half an hour of one core; what is done is kept if it is stopped)
python benchmarks/poison.py --docs   write the tables in docs/algorithm.md from benchmarks/results/poison.json

What harm is and what is refused before anything is usual were chosen on seeds 10 to 14, `max_harm` and what is
remembered of a client on seeds 100 to 106; the seeds here are others. Attackers attack from the first upload on, so
what the warm-up costs is in all numbers.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from attacks import ATTACKS, Attack, attacked
from machine import machine

from cdfl.cli.example_setup import settings as example
from cdfl.core import accept
from cdfl.data import Sudden
from cdfl.record import Clusters, Event, Uploaded, only
from cdfl.scenarios import Scenario, load_scenario
from cdfl.server.run import MAX_HARM
from cdfl.sim.runner import RunConfig, configure, simulations
from cdfl.sim.simulation import Simulation, SimulationGroup

ROOT = Path(__file__).resolve().parent.parent
RESULTS, DOCS = ROOT / "benchmarks" / "results" / "poison.json", ROOT / "docs" / "algorithm.md"
CLEAN = "clean"
NOTHING = "Not measured yet.\n"
LOOKS = 5  # at the clusters, at the end of a run, that are averaged: one upload more or less changes much
FIXED = ("WARM_UP", "ABSURD", "WINDOW", "MEMORY", "BEARABLE", "TRUSTED", "BLAMED")  # of the test, beside max_harm
DRIFTS = ("sudden", "gradual", "seasons", "newcomer", "dirichlet")
MEANING = {
    CLEAN: "nothing: all are honest",
    "flipped-sign": "`u - (v - u)`: the update with its sign flipped",
    "negated": "`-v`: the model with its sign flipped",
    "noise": "`u` plus Gaussian noise, 10 times as long as the update",
    "flipped-labels": "what they trained, 9 - y for y",
}


@dataclass(frozen=True)
class Group:
    """Runs that train alike, and share stacks."""

    scenario: str | Scenario = "digits-4"
    seeds: int = 5
    attacks: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)


GROUPS = {
    "digits-4": Group(attacks=tuple(ATTACKS)),
    "example": Group(attacks=tuple(ATTACKS), seeds=3, settings=asdict(example)),
    **{f"digits-4-{drift}": Group(f"digits-4-{drift}", seeds=3) for drift in DRIFTS},
    # As its own stream: clients hold one rotation, and then another one.
    "example-sudden": Group(
        replace(load_scenario("digits-4"), drift=Sudden(low=1.0, high=1.0, every=5)), seeds=3, settings=asdict(example)
    ),
}


def main() -> None:
    """Run what is missing, write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true")
    if not parser.parse_args().docs:
        torch.set_num_threads(1)
        stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"groups": {}}
        for name, group in GROUPS.items():
            if not is_current(group, stored["groups"].get(name)):
                stored["groups"][name] = {"settings": settings_of(group), "rows": measure(group)}
                RESULTS.write_text(json.dumps({**stored, "machine": machine()}, indent=1) + "\n")
    DOCS.write_text(rendered(DOCS.read_text(encoding="utf-8")), encoding="utf-8")


def config_of(group: Group, seed: int, max_harm: float | None) -> RunConfig:
    """One run of a group."""
    return configure(group.scenario, seed=seed, **{**group.settings, "max_harm": max_harm})


def settings_of(group: Group) -> dict[str, Any]:
    """What the numbers of a group depend on, as JSON has it."""
    settings = asdict(config_of(group, 0, MAX_HARM).settings)
    fixed = {name.lower(): getattr(accept, name) for name in FIXED}
    return json.loads(json.dumps({**fixed, **settings}))


def is_current(group: Group, stored: dict[str, Any] | None) -> bool:
    """Was a group measured with what is set today? A setting that did not exist then does not count."""
    if stored is None or len(stored["rows"][0]["clusters"]) != group.seeds:
        return False
    today = settings_of(group)
    return all(today.get(name) == value for name, value in stored["settings"].items())


def measure(group: Group) -> list[dict[str, Any]]:
    """One row for each attack (and none), with and without the test; every column has a number for each seed."""
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
    """The scores of runs that differ in their seed."""
    scores = []
    for run in runs:
        chosen = Attack().attackers(run.task.seed, run.task.scenario.num_clients)  # the same ones, whatever they do
        scores.append(score(run.told, chosen, poisoned=name != CLEAN))
    print(name, "tested" if tested else "all accepted", scores, flush=True)
    return {"attack": name, "tested": tested} | {column: [one[column] for one in scores] for column in scores[0]}


def score(events: Iterable[Event], chosen: frozenset[int], *, poisoned: bool) -> dict[str, float | None]:
    """One run in a few numbers. Accuracy of clients is that of the honest ones, and of the same ones in a clean run."""
    uploads, looks = only(events, Uploaded), only(events, Clusters)
    attackers = chosen if poisoned else frozenset()
    bad = [upload.outcome == "rejected" for upload in uploads if upload.client in attackers]
    honest = [upload for upload in uploads if upload.client not in attackers]
    good = [upload.outcome == "rejected" for upload in honest]
    changed = [upload.outcome == "rejected" for upload in after_a_change(honest)]
    last = {upload.client: upload.after for upload in uploads if upload.client not in chosen}
    return {
        "clusters": fmean(fmean(look.accuracies) for look in looks[-LOOKS:]),
        "clusters_at_the_end": fmean(looks[-1].accuracies),
        "after": fmean(last.values()),
        "poison_rejected": fmean(bad) if bad else None,
        "honest_rejected": fmean(good),
        "changed_rejected": fmean(changed) if changed else None,
    }


def after_a_change(uploads: Iterable[Uploaded]) -> Iterator[Uploaded]:
    """Uploads of clients whose main cluster is another one than at their upload before."""
    mains: dict[int, int] = {}
    for upload in uploads:
        main = upload.true_mixture.index(max(upload.true_mixture))
        if mains.setdefault(upload.client, main) != main:
            yield upload
        mains[upload.client] = main


def rendered(text: str) -> str:
    """The page with its tables written anew."""
    groups = json.loads(RESULTS.read_text())["groups"]
    tables = {
        "poison": attack_table(groups["digits-4"]["rows"]) if "digits-4" in groups else NOTHING,
        "poison-example": attack_table(groups["example"]["rows"]) if "example" in groups else NOTHING,
        "false-alarms": drift_table({name: groups[name]["rows"] for name in GROUPS if name in groups}),
    }
    for name, table in tables.items():
        begin, end = f"<!-- {name}: written by benchmarks/poison.py --docs -->\n", f"<!-- {name}: end -->"
        head, rest = text.split(begin)
        text = head + begin + table + end + rest.split(end)[1]
    return text


def attack_table(rows: list[dict[str, Any]]) -> str:
    """What each attack does, without and with the test."""
    lines = [
        "| 20 % of the clients upload | clusters, all accepted | clusters, tested | honest clients, all accepted "
        "| honest clients, tested | poison refused | honest uploads refused |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in MEANING:
        free, tested = _pair(rows, name)
        cells = [_spread(run[column]) for column in ("clusters", "after") for run in (free, tested)]
        cells += [_share(tested["poison_rejected"]), _share(tested["honest_rejected"])]
        lines.append(f"| {MEANING[name]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def drift_table(groups: dict[str, list[dict[str, Any]]]) -> str:
    """What the test costs where all are honest."""
    if not groups:
        return NOTHING
    lines = [
        "| all are honest | uploads refused | where the main cluster has changed | clusters, all accepted | tested "
        "| clients, all accepted | tested |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, rows in groups.items():
        free, tested = _pair(rows, CLEAN)
        cells = [_spread(run[column]) for column in ("clusters", "after") for run in (free, tested)]
        refused = f"{_share(tested['honest_rejected'])} | {_share(tested['changed_rejected'])}"
        lines.append(f"| {name} | {refused} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _pair(rows: list[dict[str, Any]], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    found = {row["tested"]: row for row in rows if row["attack"] == name}
    return found[False], found[True]


def _spread(values: list[float]) -> str:
    return f"{fmean(values):.3f} ± {stdev(values):.3f}"


def _share(values: list[float | None]) -> str:
    found = [value for value in values if value is not None]
    return f"{fmean(found):.1%} ± {stdev(found):.1%}" if found else "-"


if __name__ == "__main__":
    main()
