"""Compare the preset `default` with changes to it.

Claim: no change in the result file improves replies by more than .004, neither on FashionMNIST (4) nor on
MiniImageNet (4) at 32x32.

Writes benchmarks/results/default.json and runs only what is missing there. If `default` changes for a scenario, all its
rows run again. The seeds are in no table of results. `provenance` in the file names rows from other sources.
Takes some minutes on an H200.
"""

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.result_files import machine, read, write
from cdfl.run_events import Finished
from cdfl.sim.runner import RunConfig, compare_events, configure
from cdfl.sim.time_models import TIME_MODELS

FLAT: dict[str, Any] = {"staleness_slope": 0.0}  # no damping of stale uploads
FORMER: dict[str, Any] = {"cluster_step": "towards", "base_rate": 0.3, "rate_floor": "mean", **FLAT}
BOUNDS: list[dict[str, Any]] = [{"staleness_grace": grace, "staleness_slope": 1 / grace} for grace in (10.0, 30.0)]
ON_FASHION: list[dict[str, Any]] = [
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
    # The printed values, one at a time.
    {"weight_decay": 0.005},
    {"proximal_strength": 0.1},
    {"learning_rate": 0.01},
    {"shared_epochs": 0, "separate_epochs": 10},
]
ON_MINI: list[dict[str, Any]] = [
    {},
    {"base_rate": 0.15},
    {"main_share": 0.45},
    {"base_rate": 0.15, "main_share": 0.45},
    {"algorithm": "fedasync"},
    {"algorithm": "fedasync", "base_rate": 0.15},
]
SEARCHES = {"fashion-mnist-4": ((100, 101), ON_FASHION), "mini-imagenet-32px-4": ((100,), ON_MINI)}  # seeds, changes


def main() -> None:
    """Run the missing rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--precision", default="auto", help="auto, float32, tf32 or bfloat16")
    parser.add_argument("--data-dir", type=Path, help="folder of the datasets; default: $CDFL_DATA")
    args = parser.parse_args()
    settings = {name: json.loads(json.dumps(configure(name).settings.to_dict())) for name in SEARCHES}
    stored = read("default", {"rows": []})
    # Rows that were compared with another default are void.
    same = [name for name in SEARCHES if stored.get("default", {}).get(name) == settings[name]]
    stored |= {"default": settings, "rows": [row for row in stored["rows"] if row["scenario"] in same]}
    known = [(row["scenario"], row["changed"], row["seed"]) for row in stored["rows"]]
    groups: dict[
        str, list[tuple[dict[str, Any], RunConfig]]
    ] = {}  # runs of one group share stacks, so they must train alike
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
    write("default", {**stored, "machine": machine()})


def _settings(changed: dict[str, Any]) -> dict[str, Any]:
    return {name: TIME_MODELS[value] if name == "time_model" else value for name, value in changed.items()}


if __name__ == "__main__":
    main()
