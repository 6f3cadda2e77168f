"""Measure the guard: under attack, and its false alarms where all clients are honest and their data drift.

Claim: while a fifth of the clients attacks, or one that uploads as often as all others together, the guard keeps the
clusters and the honest clients within a point of the run without attackers.

Runs the cases that are missing in benchmarks/results/poison.json or were measured with other settings; each is stored
when it is done. All take about an hour on one core. Most constants of the guard were chosen on seeds 10 to 12; the rule
for new clients was loosened after it had refused 20 % of honest uploads on the seeds used here. Attackers attack from
the first upload.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from benchmarks.attacks import ATTACKS, Attack, attacked
from benchmarks.poison_table import CLEAN
from benchmarks.result_files import machine, read, write
from cdfl.algorithms import CDFL
from cdfl.cli.example_setup import problem as example
from cdfl.core import ClientMemory, Evaluate, RateSettings, ServerState, Upload, Verdict, defence_of, guard
from cdfl.core.defence import Decision, Defence, Step
from cdfl.data import Sudden
from cdfl.record import Clusters, Event, Uploaded, only
from cdfl.scenarios import Scenario, load_scenario
from cdfl.server.run import TRIAL_SAMPLES
from cdfl.sim.runner import RunConfig, configure, simulations
from cdfl.sim.simulation import Simulation, SimulationGroup

LAST = 5  # scores of the clusters at the end of a run that are averaged: a single upload changes them much
FREE_SEEDS = 1  # of runs without the guard under attack: they are context
DRIFTS = ("sudden", "gradual", "seasons", "newcomer", "dirichlet")
CONSTANTS = {
    name.lower(): value for name, value in vars(guard).items() if name.isupper() and isinstance(value, float | int)
}


@dataclass(frozen=True)
class Group:
    """Runs of one scenario: without attackers, and with each attack."""

    scenario: str | Scenario = "digits-4"
    seeds: int = 3
    attacks: tuple[str, ...] = ()
    is_fast: bool = False  # one client attacks, with half of all uploads; the others upload as often as in a clean run
    settings: dict[str, Any] = field(default_factory=dict)


EXAMPLE = example.all_settings.leaves()
SHORT = 300  # uploads of a run; more would take hours on one core
GROUPS = {
    "digits-4": Group(replace(load_scenario("digits-4"), num_uploads=SHORT), seeds=5, attacks=tuple(ATTACKS)),
    "digits-4-fast": Group(
        replace(load_scenario("digits-4"), num_uploads=SHORT // 2), seeds=5, attacks=tuple(ATTACKS), is_fast=True
    ),
    **{
        f"digits-4-{drift}": Group(
            replace(load_scenario(f"digits-4-{drift}"), num_uploads=SHORT), seeds=5 if drift == "sudden" else 3
        )
        for drift in DRIFTS
    },
    # As in its example stream: a client has one rotation, then another.
    "example-sudden": Group(
        replace(load_scenario("digits-4"), num_uploads=SHORT, drift=Sudden(low=1.0, high=1.0, every=5)),
        settings=EXAMPLE,
    ),
}


def main() -> None:
    """Run the missing cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}; default: all")
    torch.set_num_threads(1)
    for name in parser.parse_args().groups or GROUPS:
        group = GROUPS[name]
        for case in (CLEAN, *group.attacks):
            stored = read("poison", {"groups": {}})
            kept = stored["groups"].get(name)
            rows = kept["rows"] if is_current(group, kept) else []
            if not any(row["attack"] == case for row in rows):
                rows = [*rows, *measure(group, case)]
                stored["groups"][name] = {"settings": settings_of(group), "rows": rows}
                write("poison", {**stored, "machine": machine()})


def config_of(group: Group, seed: int, *, is_guarded: bool) -> RunConfig:
    """Return the config of one run of a group."""
    return configure(group.scenario, seed=seed, **{**group.settings, "guard": is_guarded})


def settings_of(group: Group) -> dict[str, Any]:
    """Return what the numbers of a group depend on, as JSON values."""
    settings = config_of(group, 0, is_guarded=True).settings.to_dict()
    uploads = config_of(group, 0, is_guarded=True).scenario.num_uploads
    stored: dict[str, Any] = json.loads(json.dumps({**CONSTANTS, "num_uploads": uploads, **settings}))
    return stored


def is_current(group: Group, stored: dict[str, Any] | None) -> bool:
    """Return whether a group was measured with the present settings and number of seeds."""
    if stored is None or max(len(row["clusters"]) for row in stored["rows"]) != group.seeds:
        return False
    return bool(stored["settings"] == settings_of(group))


def measure(group: Group, case: str) -> list[dict[str, Any]]:
    """Return a row without the guard and one with it; a column has a number for each seed."""
    free_seeds = group.seeds if case == CLEAN else min(group.seeds, FREE_SEEDS)
    runs: dict[bool, list[Simulation]] = {False: [], True: []}
    for is_guarded, count in ((False, free_seeds), (True, group.seeds)):
        configs = [config_of(group, seed, is_guarded=is_guarded) for seed in range(count)]
        for honest in simulations(configs):
            honest.algorithm = _as_served(honest)
            runs[is_guarded].append(honest if case == CLEAN else attacked(honest, _attack(group, case)))
    for _ in SimulationGroup([run for same in runs.values() for run in same]).events():
        pass
    return [row(case, is_guarded, same, is_fast=group.is_fast) for is_guarded, same in runs.items()]


def _attack(group: Group, case: str) -> Attack:
    return replace(ATTACKS[case], is_fast=group.is_fast)


class Counting:
    """A defence that counts uploads that were shortened, or moved clusters less than they would have."""

    def __init__(self, defence: Defence) -> None:
        self.defence = defence
        self.needs_base, self.counts_deprecated = defence.needs_base, defence.counts_deprecated
        self.remember = defence.remember
        self.shrunk: list[tuple[int, bool]] = []  # (client, whether it was)

    def admit(self, state: ServerState, upload: Upload, client: ClientMemory) -> Upload | Verdict:
        """As the defence does."""
        return self.defence.admit(state, upload, client)

    def step(
        self,
        state: ServerState,
        upload: Upload,
        decision: Decision,
        client: ClientMemory,
        settings: RateSettings,
        evaluate: Evaluate,
    ) -> tuple[Step, Verdict]:
        """As the defence does; count."""
        step, verdict = self.defence.step(state, upload, decision, client, settings, evaluate)
        if verdict.is_accepted:
            is_less = min(verdict.bounds) < 1 or not _equal(step.rates, decision.rates)
            self.shrunk.append((int(upload.client_id), is_less))
        return step, verdict


def _equal(one: Tensor, other: Tensor) -> bool:
    return bool(torch.equal(one, other))


def _as_served(run: Simulation) -> CDFL:
    """Return the algorithm of a run with the defence of a server, which tries steps on parts of the proxy sets."""
    settings, trial = run.algorithm.settings, run.workload.evaluator(TRIAL_SAMPLES)
    return CDFL(settings, defence=Counting(defence_of(settings, trial)))


def row(case: str, is_guarded: bool, runs: Sequence[Simulation], *, is_fast: bool) -> dict[str, Any]:
    """Return the scores of runs that differ in their seed."""
    scores = []
    for run in runs:
        seed, count = run.workload.seed, run.workload.scenario.num_clients
        chosen = Attack(is_fast=is_fast).attackers(seed, count)  # the same clients for every attack
        attackers = frozenset() if case == CLEAN else chosen
        shrunk = [each for client, each in run.algorithm.defence.shrunk if client not in attackers]  # type: ignore[attr-defined]
        scores.append(score(run.emitted, chosen, poisoned=case != CLEAN) | {"honest_shrunk": _mean(shrunk)})
    print(case, "guarded" if is_guarded else "all accepted", scores, flush=True)
    return {"attack": case, "guarded": is_guarded} | {column: [one[column] for one in scores] for column in scores[0]}


def score(events: Iterable[Event], chosen: frozenset[int], *, poisoned: bool) -> dict[str, float | None]:
    """Return one run in a few numbers; the accuracy of clients is that of the honest ones.

    `worst_rejected` is that of the client with the most rejected uploads of its last five; 1 if it is locked out, None
    if no client uploaded five times.
    """
    uploads, scores = only(events, Uploaded), only(events, Clusters)
    attackers = chosen if poisoned else frozenset()
    honest = [upload for upload in uploads if upload.client not in attackers]
    of_client: dict[int, list[bool]] = {}
    for upload in honest:
        of_client.setdefault(upload.client, []).append(upload.outcome == "rejected")
    last = {upload.client: upload.after for upload in uploads if upload.client not in chosen}
    return {
        "clusters": fmean(fmean(score.scores) for score in scores[-LAST:]),
        "after": fmean(last.values()),
        "poison_rejected": _mean(upload.outcome == "rejected" for upload in uploads if upload.client in attackers),
        "honest_rejected": _mean(upload.outcome == "rejected" for upload in honest),
        "changed_rejected": _mean(upload.outcome == "rejected" for upload in after_a_change(honest)),
        "worst_rejected": max(
            (fmean(rejected[-5:]) for rejected in of_client.values() if len(rejected) >= 5), default=None
        ),
    }


def _mean(values: Iterable[bool]) -> float | None:
    found = list(values)
    return fmean(found) if found else None


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
