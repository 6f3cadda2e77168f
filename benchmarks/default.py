"""Claim: of the changes to the preset `default` that are in the results, none makes replies better by more than .004 on
FashionMNIST (4), where uploads are uniform or everybody uploads once a session, nor on MiniImageNet (4) at 32x32, which
has a setting of its own (one seed): FedAsync at .15 is within .001 of it, FedAsync at .3 is .003 behind.

python benchmarks/default.py --device cuda --data-dir FOLDER     run all side by side (some minutes on an H200)
Writes benchmarks/results/default.json; what is already there is not run again, unless `default` has changed for its
scenario. The seeds are in no table of results, so that choosing by them flatters none. `provenance` in the file says
which rows did not come from this command.
"""

import argparse
import json
from dataclasses import asdict
from itertools import product
from pathlib import Path

from machine import machine

from cdfl.record import Finished
from cdfl.sim.runner import RunConfig, compare_events, configure
from cdfl.sim.time_models import TIME_MODELS

RESULTS = Path(__file__).resolve().parent / "results" / "default.json"
FLAT: dict[str, object] = {"staleness_slope": 0.0}  # no upload is too old
FORMER: dict[str, object] = {"cluster_step": "towards", "base_rate": 0.3, "rate_floor": "mean", **FLAT}
BOUNDS = [{"staleness_grace": grace, "staleness_slope": 1 / grace} for grace in (10.0, 30.0)]
ON_FASHION: list[dict[str, object]] = [
    {},
    FORMER,
    {"rate_floor": "mean"},
    {"base_rate": 0.1},
    {"base_rate": 0.3},
    *BOUNDS,
    FLAT,
    *({"time_model": "sessions", **changed} for changed in ({}, *BOUNDS)),
    {"main_share": 0.55},
    {"main_share": 0.75},
    # The paper's own, one at a time.
    {"weight_decay": 0.005},
    {"proximal_strength": 0.1},
    {"learning_rate": 0.01},
    {"shared_epochs": 0, "separate_epochs": 10},
]
ON_MINI: list[dict[str, object]] = [
    {},
    {"base_rate": 0.15},
    {"main_share": 0.45},
    {"base_rate": 0.15, "main_share": 0.45},
    {"algorithm": "fedasync"},
    {"algorithm": "fedasync", "base_rate": 0.15},
]
SEARCHES = {"fashion-mnist-4": ((100, 101), ON_FASHION), "mini-imagenet-32px-4": ((100,), ON_MINI)}  # seeds, changes


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    settings = {name: json.loads(json.dumps(asdict(configure(name).settings))) for name in SEARCHES}
    stored = json.loads(args.out.read_text()) if args.out.exists() else {"rows": []}
    # What was compared with another default says nothing of this one.
    same = [name for name in SEARCHES if stored.get("default", {}).get(name) == settings[name]]
    stored |= {"default": settings, "rows": [row for row in stored["rows"] if row["scenario"] in same]}
    known = [(row["scenario"], row["changed"], row["seed"]) for row in stored["rows"]]
    groups: dict[str, list[tuple[dict[str, object], RunConfig]]] = {}  # only runs that train alike share stacks
    for scenario, (seeds, changes) in SEARCHES.items():
        for changed, seed in product(changes, seeds):
            if (scenario, changed, seed) not in known:
                row = {"scenario": scenario, "changed": changed, "seed": seed}
                config = configure(
                    scenario, seed=seed, device=args.device, precision=args.precision, **_settings(changed)
                )
                groups.setdefault(f"{scenario} {config.settings.training}", []).append((row, config))
    for group in groups.values():
        for which, event in compare_events([config for _, config in group], None, args.data_dir):
            if isinstance(event, Finished):
                scores = {name: getattr(event, name) for name in ("before", "after", "cluster", "divergence")}
                stored["rows"].append(group[which][0] | scores)
                print(stored["rows"][-1], flush=True)
    args.out.write_text(json.dumps({**stored, "machine": machine()}, indent=1) + "\n")


def _settings(changed: dict[str, object]) -> dict[str, object]:
    return {name: TIME_MODELS[value] if name == "time_model" else value for name, value in changed.items()}


if __name__ == "__main__":
    main()
