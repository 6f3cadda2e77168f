"""Simulate and serve one problem for each kind of data: pictures, text, tables, a time series.

Claim: what can be simulated can be served, and both give the same models. The problems are small; they rank no
algorithms.

Each problem runs with all algorithms in the simulator, and with CDFL on a server: one `cdfl.Client` for each simulated
one, over HTTP, with the same data in the same order. Writes benchmarks/results/kinds.json; text needs the handbook in
$CDFL_DATA. Takes some minutes on two cores.
"""

import argparse
import time
from contextlib import ExitStack
from statistics import fmean, stdev
from typing import Any

import torch

import cdfl
from benchmarks.result_files import machine, read, write
from cdfl.algorithms import ALGORITHMS
from cdfl.core import flatten
from cdfl.scenarios import load_scenario
from cdfl.sim.runner import RunConfig, configure
from cdfl.sim.scenario_instance import ScenarioInstance

PROBLEMS = {
    "pictures": "digits-4",
    "text": "handbook-4",
    "table, classes": "breast-cancer-3",
    "table, numbers": "diabetes-2",
    "time series": "power-2",
}


def main() -> None:
    """Run every problem both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--clients", type=int, default=12, help="clients of each problem")
    parser.add_argument("--uploads", type=int, default=120, help="uploads of each run")
    parser.add_argument("--only", choices=list(PROBLEMS), help="one kind of data; the others keep their result")
    args = parser.parse_args()
    found = read("kinds", {"problems": {}})
    for kind in [args.only] if args.only else list(PROBLEMS):
        found["problems"][kind] = measure(PROBLEMS[kind], args.seeds, args.clients, args.uploads)
        found |= {"seeds": args.seeds, "machine": machine()}
        write("kinds", found)


def measure(name: str, seeds: int, clients: int, uploads: int) -> dict[str, Any]:
    """Return the scores of all algorithms and of the server on one problem, and times of CDFL."""
    options: dict[str, Any] = {"num_clients": clients, "num_uploads": uploads, "device": "cpu"}
    others = cdfl.compare(name, algorithms=[own for own in ALGORITHMS if own != "cdfl"], seeds=seeds, **options)
    scores = {own: list(others.values(own).values()) for own in others.algorithms}
    scores |= {"cdfl": [], "served": []}
    times: dict[str, list[float]] = {"cdfl": [], "served": []}
    differences = []
    for seed in range(seeds):
        begun = time.perf_counter()
        run = cdfl.run(name, seed=seed, progress=False, **options)
        times["cdfl"].append(time.perf_counter() - begun)
        scores["cdfl"].append(float(run.summary.after or 0.0))
        begun = time.perf_counter()
        score, models = serve(configure(name, seed=seed, **options))
        times["served"].append(time.perf_counter() - begun)
        scores["served"].append(score)
        simulated = torch.stack([flatten(model) for model in run.cluster_models.values()])
        differences.append(float((models - simulated).abs().max()))
        print(f"{name}, seed {seed}: after {scores['cdfl'][-1]:.4f}, served {score:.4f}", flush=True)
    metric = load_scenario(name).main_metric
    return {
        "name": name,
        "metric": metric.name,
        "higher_is_better": metric.higher_is_better,
        "clients": clients,
        "uploads": uploads,
        "after": scores,
        "seconds": times,
        "largest_difference": max(differences),  # of a weight, between the cluster models
    }


def serve(config: RunConfig) -> tuple[float, torch.Tensor]:
    """Serve a problem to real clients; return their score after the last reply of each, and the cluster models."""
    scenario, last = config.scenario, {}
    instance = ScenarioInstance(scenario, scenario.federation(config.seed), config.settings)
    passes = config.settings.replace(local_epochs=1)  # the plan holds all passes
    turns = [0] * scenario.num_clients
    with ExitStack() as opened:
        server = opened.enter_context(cdfl.serve(scenario, seed=config.seed, device="cpu", accept_all=True))
        clients = [opened.enter_context(server.client(str(number), settings=passes)) for number in range(len(turns))]
        for tick in instance.ticks(config.time_model):
            if tick.kind == "join":
                clients[tick.client].join()
                continue
            draw = instance.federation.draw(tick.client, turns[tick.client])
            inputs, targets = instance.inputs(draw.train)
            plan = instance.plan(draw, tick.client, turns[tick.client])
            clients[tick.client].update([(inputs[batch], targets[batch]) for batch in plan])
            turns[tick.client] += 1
            model = flatten(clients[tick.client].model)
            last[tick.client] = float(instance.scores(model, draw.test)[0])
            if sum(turns) == scenario.num_uploads:
                break
        models = torch.stack([flatten(model) for model in server.cluster_models.values()])
    return fmean(last.values()), models


def table() -> str:
    """Return the scores of all problems."""
    results = read("kinds")
    if results is None:
        return "Not measured yet.\n"
    measured = set.intersection(*(set(own["after"]) for own in results["problems"].values()))
    names = [name for name in ALGORITHMS if name in measured]
    heads = f"| | metric | clients / uploads | CDFL served | {' | '.join(names)} | seconds |"
    rows = [heads, "|---" * (len(names) + 5) + "|"]
    for kind, own in results["problems"].items():
        cells = [_spread(own["after"][name]) for name in ("served", *names)]
        arrow = "higher" if own["higher_is_better"] else "lower"
        size = f"{own['clients']} / {own['uploads']}"
        seconds = f"{fmean(own['seconds']['cdfl']):.1f} / {fmean(own['seconds']['served']):.1f}"
        what = f"{kind}: `{own['name']}` | {own['metric']}, {arrow} is better"
        rows.append(f"| {what} | {size} | {' | '.join(cells)} | {seconds} |")
    largest = max(own["largest_difference"] for own in results["problems"].values())
    on = results["machine"]
    note = (
        f"\n{results['seeds']} seeds, on {on['cpu']}, {on['cores']} cores. Largest difference of a weight between "
        f"simulated and served cluster models: {largest:.0e}.\n"
    )
    return "\n".join(rows) + "\n" + note


def _spread(values: list[float]) -> str:
    return f"{fmean(values):.3f} ± {stdev(values):.3f}"


if __name__ == "__main__":
    main()
