"""How well clients of any mixture are estimated: beyond the mixtures that scenarios draw, few inputs, 2 to 8 clusters.

Claim: the router's estimate needs no prior on the main share, few inputs, and no fixed number of clusters.

For each seed the server pre-trains its clusters and trains its router; then clients of each kind hold fresh data, and
their mixtures are estimated: by the router, from inputs alone (`client.see`); by all that a client has, with targets
(`client.follow`); by the server, from the upload of a newcomer (preset `default`); and by an estimate that knows the
largest cluster and takes its share for .65, the mean of the paper's drift. No federation runs: clusters are as
pre-trained.

Clusters are rotations by 360 / K degrees. Each case is stored as it comes, in benchmarks/results/mixtures.json:

    python -m benchmarks.mixtures                                    # digits: minutes on a CPU
    python -m benchmarks.mixtures --source fashion-mnist --device cuda --data-dir DATA
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.result_files import RESULTS, machine, read, write
from cdfl.core import ServerState, Upload, client_update, initial_state, join, server_update
from cdfl.core.experts import PRIOR, mixture_of
from cdfl.data import Dirichlet, Drift, PaperDrift, Rotations, Sizes
from cdfl.scenarios import load_scenario
from cdfl.sim.event_builders import divergence
from cdfl.sim.run_router import train_together
from cdfl.sim.scenario_instance import ScenarioInstance

SCENARIO = {"digits": "digits-4", "fashion-mnist": "fashion-mnist-4"}
SERVER = {"digits": {"pretraining": 100, "proxy": 200}, "fashion-mnist": {"pretraining": 3000, "proxy": 1000}}
MANY = {"digits": 80, "fashion-mnist": 400}  # inputs of a client
SHARES: dict[str, Drift] = {
    "40 to 90 % main (as in scenarios)": PaperDrift(),
    "100 %: one cluster": PaperDrift(1.0, 1.0),
    "25 to 40 % main": PaperDrift(0.25, 0.4),
    "any (Dirichlet .5)": Dirichlet(0.5),
}
CLIENTS, MEAN_SHARE = 60, 0.65
Estimates = dict[str, list[float]]


def main() -> None:
    """Estimate all kinds of clients, and store how well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", choices=list(SCENARIO), default="digits", help="dataset")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--clusters", default="2,3,4,6,8", help="numbers of clusters, separated by commas")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--data-dir", type=Path, help="folder of the datasets; default: $CDFL_DATA")
    parser.add_argument("--out", type=Path, help="another folder for the result")
    args = parser.parse_args()
    found = [case for case in read("mixtures", []) if case["source"] != args.source]
    for count in map(int, args.clusters.split(",")):
        for seed in range(args.seeds):
            for case in measure(args.source, count, seed, args.device, args.data_dir):
                found.append(case | {"machine": machine()})
                print({name: value for name, value in case.items() if name != "estimates"}, flush=True)
            write("mixtures", found, args.out or RESULTS)


def measure(source: str, num_clusters: int, seed: int, device: str, data_dir: Path | None) -> Iterator[dict[str, Any]]:
    """Yield how well each kind of client is estimated, of one seed."""
    base = load_scenario(SCENARIO[source])
    few, many = 20, MANY[source]
    kinds = [(name, drift, count) for name, drift in SHARES.items() for count in (many, few)]
    if num_clusters != 4:
        kinds = kinds[:2]
    scenario = replace(base, clusters=Rotations(source, num_clusters), sizes=_sizes(source, many))
    settings = scenario.all_settings
    first = ScenarioInstance(scenario, scenario.federation(seed, data_dir).to(device), settings)
    estimators = Estimators(first)
    for name, drift, count in kinds:
        other = replace(scenario, drift=drift, sizes=_sizes(source, count))
        instance = ScenarioInstance(other, other.federation(seed, data_dir).to(device), settings)
        estimates: dict[str, Estimates] = {}
        for client in range(CLIENTS):
            true = instance.federation.draw(client, 0).true_mixture.tolist()
            for way, estimate in estimators.of(instance, client, true).items():
                kept = estimates.setdefault(way, {"kl": [], "main": []})
                kept["kl"].append(divergence(true, estimate))
                kept["main"].append(estimate[int(np.argmax(true))])
            estimates.setdefault("true", {"main": []})["main"].append(max(true))
        yield {
            "source": source,
            "clusters": num_clusters,
            "seed": seed,
            "kind": name,
            "inputs": count,
            "router_right": float(estimators.router.accuracy),
            "estimates": {
                way: _summary(own, estimates["true"]["main"]) for way, own in estimates.items() if way != "true"
            },
        }


def _sizes(source: str, inputs: int) -> Sizes:
    return Sizes(low=inputs, high=inputs, test=20, **SERVER[source])


class Estimators:
    """The ways to estimate a mixture, with the router and the clusters of one seed."""

    def __init__(self, instance: ScenarioInstance) -> None:
        self.module = instance.router_module()
        self.router = instance.train_router(self.module, train_together)
        self.state: ServerState | None = None
        if instance.device.type == "cpu":  # the others cost minutes on large data
            clusters = instance.pretrain()
            self.state = initial_state(clusters, instance.evaluate, instance.layout.num_parameters)
            self.loss_scale = instance.loss_scale(clusters)

    def of(self, instance: ScenarioInstance, client: int, true: list[float]) -> dict[str, list[float]]:
        """Return the estimates of one client's mixture by each way."""
        turn = instance.turn_data(client, 0)
        inputs, targets = instance.inputs(turn.draw.train)
        evidence = self.router.evidence(self.module, inputs).cpu()
        found = {"router": mixture_of(evidence, strength=PRIOR)}
        if self.state is not None:
            losses = instance.losses_of_each(self.state.cluster_models, inputs, targets)
            found["with targets"] = mixture_of(evidence - self.loss_scale * losses.double(), strength=PRIOR)
            found["upload"] = _of_upload(instance, self.state, inputs, targets, turn.plan)
        rest = (1 - MEAN_SHARE) / (len(true) - 1)
        constant = [MEAN_SHARE if k == int(np.argmax(true)) else rest for k in range(len(true))]
        return {way: mixture.tolist() for way, mixture in found.items()} | {"constant": constant}


def _of_upload(instance: ScenarioInstance, state: ServerState, inputs: Tensor, targets: Tensor, plan: Tensor) -> Tensor:
    """Return the server's estimate from what a newcomer uploads."""
    start = join(state, instance.settings).personal_model
    batches = ((inputs[batch], targets[batch]) for batch in plan)
    trained = client_update(instance.model, start, batches, instance.loss, instance.settings.training)
    upload = Upload(trained, state.epoch, base_model=start)
    return server_update(state, upload, instance.settings, instance.evaluate)[1].mixture


def _summary(own: Estimates, true: list[float]) -> dict[str, float | None]:
    """Return the mean KL, and the correlation of the largest cluster's true and estimated share."""
    pairs = np.array([true, own["main"]])
    varies = bool((pairs.std(axis=1) > 1e-9).all())
    return {"kl": fmean(own["kl"]), "correlation": float(np.corrcoef(pairs)[0, 1]) if varies else None}


def table() -> str:
    """Return KL / correlation of each way, mean over seeds."""
    cases = read("mixtures", [])
    if not cases:
        return "Not measured yet.\n"
    ways = ("router", "with targets", "upload", "constant")
    titles = ("router, inputs alone", "with targets", "upload, by the server", "main cluster + .65")
    rows = [f"| data | clusters | shares | inputs | router right | {' | '.join(titles)} |", "|---" * 9 + "|"]
    keys = dict.fromkeys((case["source"], case["clusters"], case["kind"], case["inputs"]) for case in cases)
    for key in keys:
        same = [case for case in cases if (case["source"], case["clusters"], case["kind"], case["inputs"]) == key]
        right = fmean(case["router_right"] for case in same)
        cells = [_cell([case["estimates"].get(way) for case in same]) for way in ways]
        rows.append(f"| {key[0]} | {key[1]} | {key[2]} | {key[3]} | {right:.0%} | {' | '.join(cells)} |")
    seeds = len({case["seed"] for case in cases})
    note = f"KL (± deviation over {seeds} seeds; without it: one seed) / correlation; {CLIENTS} clients of each seed"
    return "\n".join(rows) + f"\n\n{note}.\n"


def _cell(found: list[dict[str, float | None] | None]) -> str:
    measured = [each for each in found if each is not None]
    if not measured:
        return "-"
    kls = [float(each["kl"] or 0.0) for each in measured]
    correlations = [each["correlation"] for each in measured if each["correlation"] is not None]
    spread = f" ± {stdev(kls):.3f}" if len(kls) > 1 else ""
    return f"{fmean(kls):.3f}{spread} / {f'{fmean(correlations):.2f}' if correlations else '-'}"


if __name__ == "__main__":
    main()
