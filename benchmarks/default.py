"""Claim: none of these changes to the preset `default` gives better replies and a better estimate on FashionMNIST (4).

python benchmarks/default.py --device cuda --data-dir FOLDER     run all (about 12 s each on an H200), one seed each
Writes benchmarks/results/default.json; a setting that is already there is not run again. The rows that are there now
were typed in from printed output (see `provenance` in the file): delete it to measure them with this command.
"""

import argparse
import json
from pathlib import Path

from machine import machine

from cdfl.sim.run import run

RESULTS = Path(__file__).resolve().parent / "results" / "default.json"
SETTINGS: list[dict[str, object]] = [
    {},
    {"sharpness": 7.0},
    {"sharpness": 20.0},
    {"loss_weight": 0.8, "gap_weight": 0.1},
    {"sharpness": 7.0, "base_rate": 0.1},
    {"sharpness": 7.0, "weight_decay": 0.005},
]


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    for changed in SETTINGS:
        if any(row["changed"] == changed for row in rows):
            continue
        end = run("fashion-mnist-4", seed=0, device=args.device, data_dir=args.data_dir, **changed).summary
        scores = {name: round(getattr(end, name), 3) for name in ("before", "after", "cluster", "divergence")}
        rows.append({"changed": changed, "seed": 0} | scores)
        print(rows[-1], flush=True)
        args.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
