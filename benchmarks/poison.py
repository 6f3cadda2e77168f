"""Measure the guard: under attack, and its false alarms where all clients are honest and their data drift.

Claim: while a fifth of the clients attacks, or one that uploads as often as all others together, the guard keeps the
clusters and the honest clients within a point of the run without attackers.

Runs what is missing in benchmarks/results/poison.json or was measured with other settings; each run is stored when it
is done. All together take about 80 minutes of one core; `--processes` uses more. The constants of the guard were chosen
on other seeds. Attackers attack from the first upload.
"""

import argparse
import json
import runpy
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

import cdfl
from benchmarks.poison_attacks import ATTACKS, Attack, attacked
from benchmarks.poison_table import CLEAN
from benchmarks.result_files import machine, read, write
from cdfl.algorithms import CDFL
from cdfl.core import ClientMemory, Evaluate, RateSettings, ServerState, Upload, Verdict, defence_of, guard
from cdfl.core.defence import Defence, Limited
from cdfl.data import Sudden
from cdfl.run_events import Clusters, Event, Uploaded, only
from cdfl.scenarios import Scenario, load_scenario
from cdfl.sim.runner import RunConfig, configure, simulations
from cdfl.sim.simulation import Simulation

LAST = 5  # scores of the clusters at the end of a run that are averaged: a single upload changes them much
SHORT = 300  # uploads of a run, half of them in runs with a fast attacker; 600 take twice as long
SEEDS = tuple(range(50, 55))  # looked at once, with the final guard
FREE_SEEDS = 1  # of runs without the guard under attack: they are context
DRIFTS = ("sudden", "gradual", "seasons", "newcomer", "dirichlet", "labels")
CONSTANTS = {
    name.lower(): value for name, value in vars(guard).items() if name.isupper() and isinstance(value, float | int)
}


@dataclass(frozen=True)
class Group:
    """Runs of one scenario: without attackers, and with each attack."""

    scenario: str | Scenario = "digits-4"
    attacks: tuple[str, ...] = ()
    is_fast: bool = False  # one client attacks, with half of all uploads; the others upload as often as in a clean run
    settings: dict[str, Any] = field(default_factory=dict)


def _short(name: str, num_uploads: int = SHORT) -> Scenario:
    return replace(load_scenario(name), num_uploads=num_uploads)


EXAMPLE = runpy.run_path(str(Path(cdfl.__file__).parent / "cli" / "example_problem.py"))[
    "problem"
].all_settings.leaves()
FAST = tuple(name for name in ATTACKS if name not in ("on-and-off", "hidden", "absent"))
GROUPS = {
    "digits-4": Group(_short("digits-4"), attacks=tuple(ATTACKS)),
    **{f"digits-4-{drift}": Group(_short(f"digits-4-{drift}")) for drift in DRIFTS},
    # As in its example stream: a client has one rotation, then another.
    "example-sudden": Group(replace(_short("digits-4"), drift=Sudden(low=1.0, high=1.0, every=5)), settings=EXAMPLE),
    "digits-4-fast": Group(_short("digits-4", SHORT // 2), attacks=FAST, is_fast=True),
}


class Job(NamedTuple):
    """One run."""

    group: str
    attack: str
    guarded: bool
    seed: int


def main() -> None:
    """Run the missing jobs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}; default: all")
    parser.add_argument("--processes", type=int, default=1, help="runs at the same time, each on one core")
    args = parser.parse_args()
    stored = read("poison", {"groups": {}})
    groups: dict[str, Any] = {name: kept for name, kept in stored["groups"].items() if name in GROUPS}
    for name in args.groups or GROUPS:
        if not is_current(GROUPS[name], groups.get(name)):
            groups[name] = {"settings": settings_of(GROUPS[name]), "runs": []}
    jobs = list(missing(groups, args.groups or list(GROUPS)))
    with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(measure, GROUPS[job.group], job): job for job in jobs}
        for number, done in enumerate(as_completed(running), 1):
            job = running[done]
            groups[job.group]["runs"].append({**job._asdict(), **done.result()})
            groups[job.group]["runs"].sort(key=lambda run: [str(run[name]) for name in Job._fields])
            print(f"{number} of {len(jobs)}: {groups[job.group]['runs'][-1]}", flush=True)
            write("poison", {"groups": groups, "machine": machine()})


def missing(groups: dict[str, Any], names: Iterable[str]) -> Iterator[Job]:
    """Yield the runs that are not stored, group by group; those that are only context come last."""
    known = {tuple(run[name] for name in Job._fields) for kept in groups.values() for run in kept["runs"]}
    cases = [(name, attack) for name in names for attack in (CLEAN, *GROUPS[name].attacks)]
    jobs = [Job(*case, guarded, seed) for case in cases for guarded in (True, False) for seed in SEEDS]
    jobs = [job for job in jobs if job.guarded or job.attack == CLEAN]
    jobs += [
        Job(*case, False, seed) for case in cases for seed in SEEDS[:FREE_SEEDS] if case[1] not in (CLEAN, "absent")
    ]
    yield from (job for job in jobs if job not in known)


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
    """Return whether a group was measured with the present settings."""
    return stored is not None and bool(stored["settings"] == settings_of(group))


def measure(group: Group, job: Job) -> dict[str, float | None]:
    """Return the scores of one run."""
    torch.set_num_threads(1)
    attack = replace(ATTACKS.get(job.attack, Attack()), is_fast=group.is_fast)
    [run] = simulations([config_of(group, job.seed, is_guarded=job.guarded)])
    run.algorithm = _as_served(run)
    run = run if job.attack == CLEAN else attacked(run, attack)
    for _ in run.events():
        pass
    chosen = attack.attackers(job.seed, run.instance.scenario.num_clients)  # the same clients for every attack
    attackers = frozenset() if job.attack == CLEAN else chosen
    shrunk = [each for client, each in run.algorithm.defence.shrunk if client not in attackers]  # type: ignore[attr-defined]
    return score(run.emitted, chosen, poisoned=job.attack != CLEAN) | {"honest_shrunk": _mean(shrunk)}


class Counting:
    """A defence that counts uploads that were shortened, or moved clusters less than they would have."""

    def __init__(self, defence: Defence) -> None:
        self.defence = defence
        self.needs_base, self.counts_deprecated = defence.needs_base, defence.counts_deprecated
        self.remember = defence.remember
        self.shrunk: list[tuple[int, bool]] = []  # (client, whether it was)

    def admit(self, state: ServerState, upload: Upload, client: ClientMemory) -> tuple[Upload, Verdict]:
        """As the defence does."""
        return self.defence.admit(state, upload, client)

    def limit(
        self,
        state: ServerState,
        upload: Upload,
        rates: Tensor,
        client: ClientMemory,
        settings: RateSettings,
        evaluate: Evaluate,
    ) -> Limited:
        """As the defence does; count."""
        limited = self.defence.limit(state, upload, rates, client, settings, evaluate)
        if limited.verdict.is_accepted:
            is_less = min(limited.verdict.bounds) < 1 or not torch.equal(limited.rates, rates)
            self.shrunk.append((int(upload.client_id), is_less))
        return limited


def _as_served(run: Simulation) -> CDFL:
    """Return the algorithm of a run with the defence of a server, which tries steps on parts of the proxy sets."""
    settings, trial = run.algorithm.settings, run.instance.evaluator(guard.TRIAL_SAMPLES)
    return CDFL(settings, defence=Counting(defence_of(settings, trial)))


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
