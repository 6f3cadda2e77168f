"""Claim: of the changes to the preset `default` that are in the results, none makes replies better by more than .004 on
FashionMNIST (4), where uploads are uniform or everybody uploads once a session.

python benchmarks/default.py --device cuda --data-dir FOLDER     run all side by side (two minutes on an H200)
Writes benchmarks/results/default.json; what is already there is not run again, unless the default has changed. The
seeds are in no table of results, so that choosing by them flatters none. `provenance` in the file says which rows did
not come from this command.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from machine import machine

from cdfl.core import Hyperparams
from cdfl.record import Finished
from cdfl.sim.clock import TIME_MODELS
from cdfl.sim.run import compare_events, configure

RESULTS = Path(__file__).resolve().parent / "results" / "default.json"
SEEDS = (100, 101)
FLAT: dict[str, object] = {"staleness_slope": 0.0}  # no upload is too old
FORMER: dict[str, object] = {"cluster_step": "towards", "base_rate": 0.3, "rate_floor": "mean", **FLAT}
BOUNDS = [{"staleness_grace": grace, "staleness_slope": 1 / grace} for grace in (10.0, 30.0)]
SETTINGS: list[dict[str, object]] = [
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


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    today = json.loads(json.dumps(asdict(Hyperparams())))
    stored = json.loads(args.out.read_text()) if args.out.exists() else {}
    if stored.get("default") != today:  # what was compared with another default says nothing of this one
        stored = {"default": today, "rows": []}
    known = [(row["changed"], row["seed"]) for row in stored["rows"]]
    missing = [(changed, seed) for changed in SETTINGS for seed in SEEDS if (changed, seed) not in known]
    options = {"device": args.device, "precision": args.precision}
    configs = [configure("fashion-mnist-4", seed=seed, **options, **_settings(changed)) for changed, seed in missing]
    for which, event in compare_events(configs, None, args.data_dir) if configs else ():
        if isinstance(event, Finished):
            changed, seed = missing[which]
            scores = {name: getattr(event, name) for name in ("before", "after", "cluster", "divergence")}
            stored["rows"].append({"changed": changed, "seed": seed} | scores)
            print(stored["rows"][-1], flush=True)
    args.out.write_text(json.dumps({**stored, "machine": machine()}, indent=1) + "\n")


def _settings(changed: dict[str, object]) -> dict[str, object]:
    return {name: TIME_MODELS[value] if name == "time_model" else value for name, value in changed.items()}


if __name__ == "__main__":
    main()
