"""Compare this checkout with an earlier one: the same events, and no more time.

Claim: the scenarios of the paper, and digits-4, give the same events as at the other commit, and take no more time. Nor
does an upload to the server.

Each scenario runs in processes of its own from both checkouts, with its own clients, data and network, 20 uploads, and
one pass over the data wherever it has several; scenarios with ResNet-18 have fewer samples, 500 test pictures and
batches of 8, too. What both events name is compared, number by number. Pairs are interleaved; CPU time of all threads
counts. `--served N` asks both servers, in turns and N times each, to answer 20 clients that do not train; with
`--accept-all`, without the harm test of the one and the guard of the other.

Each result is stored as it comes, in benchmarks/results/before.json. To make the other checkout:

    git worktree add ../before b1d7ebe
    python -m benchmarks.before ../before
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.stats import t

from benchmarks.fleet.target_models import goals_of
from benchmarks.result_files import ROOT, commit, machine, read, write
from cdfl.cli.init import EXAMPLE
from cdfl.problems import ProblemInstance
from cdfl.scenarios import load_problem

DIGITS = ["digits-4"]
CNN = [f"fashion-mnist-{clusters}" for clusters in (1, 2, 3, 4, 6)] + ["fashion-mnist-4-ablation", "digit-recognition"]
RESNET = [f"cifar-10-{clusters}" for clusters in (1, 2, 3, 4, 6)]
RESNET += [f"mini-imagenet-32px-{clusters}" for clusters in (2, 3, 4, 6)]
ONE_PASS = {"local_epochs": 1, "shared_epochs": 1, "separate_epochs": 1}
FEW = {"low": 20, "high": 40, "test": 20, "pretraining": 40, "proxy": 20}  # samples, for ResNet-18
SERVED_CLIENTS, SERVED_UPLOADS = 20, 500
NEW_NAMES = {"accuracies": "scores"}  # of fields, since the earlier commit; `_common` has one more
# What a process of either checkout runs: {name, sizes, uploads, settings} -> its events, and seconds of CPU time.
RUN = """
import json, os, sys, time
from dataclasses import asdict, replace
import torch, cdfl
from cdfl.data import Sizes
from cdfl.data.dataset import Dataset
from cdfl.scenarios import load_scenario
torch.set_num_threads(1)
work = json.loads(sys.argv[1])
scenario = load_scenario(work["name"])
if work["sizes"]:
    scenario = replace(scenario, sizes=Sizes(**work["sizes"]))
    os.cpu_count = lambda: 1  # models one by one: the earlier commit needs much memory for each
    check = Dataset.__post_init__
    def with_few_tests(dataset):
        for name in ("test_images", "test_labels", "test_inputs", "test_targets"):
            if (own := getattr(dataset, name, None)) is not None:
                object.__setattr__(dataset, name, own[:: max(1, len(own) // 500)])
        check(dataset)
    Dataset.__post_init__ = with_few_tests
events, begun = [], time.process_time()
cdfl.run(scenario, seed=0, num_uploads=work["uploads"], device="cpu", on_event=events.append, **work["settings"])
seconds = time.process_time() - begun
print(json.dumps({"seconds": seconds, "events": [[type(event).__name__, asdict(event)] for event in events]}))
"""
# A process of either checkout serves the example of `cdfl init` -> CPU milliseconds of an upload, uploads a second.
# The clients of both have the same goals.
SERVE = """
import json, sys, tempfile
from pathlib import Path
import numpy as np
try:
    from benchmarks.fleet import measure, clients
    from benchmarks.fleet.server import Server
except ImportError:
    from fleet import measure, clients
    from fleet.server import Server
from cdfl.cli.init import EXAMPLE
count, uploads, path, *options = json.loads(sys.argv[1])
goals = np.load(path)
measure.goals_of = lambda *given: goals
measure.make_clients = lambda port, tokens, *given: [clients.Client(port, *own) for own in zip(tokens, goals / 2)]
options = ["--max-rate", "1000", *options]
with tempfile.TemporaryDirectory() as folder, Server(EXAMPLE, Path(folder), count, *options) as server:
    print(json.dumps(measure.measure(server, count, uploads, warm_up=count)))
"""


def main() -> None:
    """Compare every scenario, and store what is found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--scenarios", default=",".join([*DIGITS, *CNN, *RESNET]), help="separated by commas")
    parser.add_argument("--pairs", type=int, default=1, help="interleaved pairs of each scenario")
    parser.add_argument("--served", type=int, default=0, help="interleaved pairs of servers, instead of scenarios")
    parser.add_argument("--accept-all", action="store_true", help="servers without a defence")
    args = parser.parse_args()
    found = read("before", {"scenarios": {}})
    if args.served:
        name, options = ("accepting", ["--accept-all"]) if args.accept_all else ("served", [])
        found |= {name: served(args.other.resolve(), args.served, options), "other": commit(args.other)}
        write("before", found | {"machine": machine()})
        print(found[name], flush=True)
    for name in [] if args.served else args.scenarios.split(","):
        found["scenarios"][name] = measure(name, args.other.resolve(), args.pairs)
        found |= {"other": commit(args.other), "machine": machine()}
        write("before", found)
        print(line(name, found["scenarios"][name]), flush=True)


def measure(name: str, other: Path, pairs: int) -> dict[str, Any]:
    """Run one scenario from both checkouts several times; compare events of the first pair, and times of all."""
    work = {"name": name, "uploads": 20, "settings": {}, "sizes": None}
    if name not in DIGITS:
        work["settings"] = ONE_PASS
    if name in RESNET:  # large batches of a stack would need 10 GB
        work |= {"sizes": FEW, "settings": ONE_PASS | {"batch_size": 8}}
    ratios, compared = [], dict[str, Any]()
    for number in range(pairs):
        order = [other, ROOT] if number % 2 == 0 else [ROOT, other]
        results = {place: run(place, work) for place in order}
        ratios.append(results[ROOT]["seconds"] / results[other]["seconds"])
        compared = compared or differences(results[other]["events"], results[ROOT]["events"])
    return {**compared, "cpu_ratios": ratios}


def run(checkout: Path, work: dict[str, Any]) -> dict[str, Any]:
    """Run a scenario from a checkout."""
    return process(checkout, RUN, work)


def served(other: Path, pairs: int, options: Sequence[str]) -> dict[str, list[float]]:
    """Return ratios, of this checkout to the other, of the server's CPU time and of the uploads a second."""
    ratios: dict[str, list[float]] = {"cpu": [], "rate": []}
    start = ProblemInstance.of(load_problem(str(EXAMPLE))).initial_state().cluster_models.numpy()
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        np.save(file, goals_of(EXAMPLE, start, SERVED_CLIENTS))
        file.flush()
        work = [SERVED_CLIENTS, SERVED_UPLOADS, file.name, *options]
        for number in range(pairs):
            order = [other, ROOT] if number % 2 == 0 else [ROOT, other]
            found = {place: process(place, SERVE, work) for place in order}
            for name, field in (("cpu", "server_cpu_ms"), ("rate", "rate")):
                ratios[name].append(found[ROOT][field] / found[other][field])
            print({name: round(each[-1], 3) for name, each in ratios.items()}, flush=True)
    return ratios


def process(checkout: Path, program: str, work: Any) -> dict[str, Any]:
    """Run a program in a process of a checkout; return what it prints."""
    sources = checkout / "src" if (checkout / "src").is_dir() else checkout
    paths = [sources, checkout] if sources != checkout else [checkout, checkout / "benchmarks"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", program, json.dumps(work)]
    done = subprocess.run(command, cwd=checkout, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def differences(before: list[Any], after: list[Any]) -> dict[str, Any]:
    """Compare the kinds of events that both runs have: how many, how many numbers, and how many of them differ."""
    kinds = {kind for kind, _ in before}
    after = [event for event in after if event[0] in kinds]
    if [kind for kind, _ in before] != [kind for kind, _ in after]:
        raise SystemExit("the runs have different events")
    numbers = differing = 0
    largest = 0.0
    for (_, old), (_, new) in zip(before, after, strict=True):
        for one, other in zip(*_common(old, new), strict=True):
            numbers += 1
            differing += one != other
            largest = max(largest, abs(one - other))
    return {"events": len(before), "numbers": numbers, "differing": differing, "largest": largest}


def _common(old: dict[str, Any], new: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Return the numbers of the fields that both events have, under today's names."""
    old = {NEW_NAMES.get(name, name): value for name, value in old.items()}
    if isinstance(old.get("deprecated"), bool):
        old["outcome"] = "deprecated" if old["deprecated"] else "rejected" if old["rejected"] else "applied"
    elif "deprecated" in old:
        old["deprecated_share"] = old["deprecated"]
    shared = [name for name in old if name in new and name != "notes"]  # sentences, since reworded
    for name in shared:
        if isinstance(old[name], str) and old[name] != new[name]:
            raise SystemExit(f"{name} was {old[name]!r} and is {new[name]!r}")
    return list(_numbers([old[name] for name in shared])), list(_numbers([new[name] for name in shared]))


def _numbers(value: Any) -> Iterator[float]:
    """Yield all numbers in a value, in order."""
    if isinstance(value, int | float):
        yield float(value)
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _numbers(part)


def line(name: str, found: dict[str, Any]) -> str:
    """Return the row of one scenario."""
    time = ratio(found["cpu_ratios"])
    return f"| {name} | {found['events']} | {found['numbers']:,} | {found['differing']} | {time} |"


def ratio(ratios: list[float]) -> str:
    """Return the mean of ratios, with its 95 % interval if there are at least three."""
    logs = [log(each) for each in ratios]
    if len(logs) < 3:
        return f"{exp(fmean(logs)):.2f}"
    half = float(t.ppf(0.975, len(logs) - 1)) * stdev(logs) / len(logs) ** 0.5
    return f"{exp(fmean(logs)):.2f} ({exp(fmean(logs) - half):.2f} to {exp(fmean(logs) + half):.2f}, {len(logs)} pairs)"


def table() -> str:
    """Return what was compared."""
    results = read("before")
    if results is None:
        return "Not measured yet.\n"
    rows = ["| scenario | events | numbers | that differ | CPU time |", "|---|---|---|---|---|"]
    rows += [line(name, found) for name, found in results["scenarios"].items()]
    on = results["machine"]
    lines = ["", f"CPU time is this commit over {results['other'][:7]}, on {on['cpu']}."]
    about = {"accepting": "without a defence", "served": "with the harm test then, with the guard now"}
    if any(name in results for name in about):
        lines += ["", "| the server of the example | CPU time of an upload | uploads a second |", "|---|---|---|"]
    for name, words in about.items():
        if both := results.get(name):
            lines.append(f"| {words} | {ratio(both['cpu'])} | {ratio(both['rate'])} |")
    return "\n".join(rows + lines) + "\n"


if __name__ == "__main__":
    main()
