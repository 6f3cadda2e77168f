"""Claim: on digits-4 the reply beats what a client reaches alone, by points, over seeds.

python benchmarks/digits.py            run all algorithms with 5 seeds (minutes on two cores), draw the picture
python benchmarks/digits.py --readme   write the table in README.md from benchmarks/results/digits-4.json
"""

import argparse
import json
from pathlib import Path
from statistics import fmean, stdev

from machine import machine

from cdfl.algorithms import ALGORITHMS
from cdfl.record import Finished
from cdfl.report import plot_run
from cdfl.sim.runner import compare_events, configure

ROOT = Path(__file__).resolve().parent.parent
RESULTS, README = ROOT / "benchmarks" / "results" / "digits-4.json", ROOT / "README.md"
BEGIN, END = "<!-- digits-4: written by benchmarks/digits.py --readme -->\n", "<!-- digits-4: end -->"
SEEDS = 5
MEANING = {
    "cdfl": "soft clusters, one model down, estimated by the server",
    "fedsoft": "soft clusters, K models down, estimated by the client",
    "fedasync": "one model for all",
    "fedbuff": "one model for all, moved by changes, ten at a time",
    "ifca": "hard clusters, K models down",
    "local": "no server; every client keeps its model",
    "local-restart": "no server; every client starts anew",
    "oracle": "CDFL, told the true mixture",
}


def main() -> None:
    """Run, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readme", action="store_true")
    if not parser.parse_args().readme:
        measure()
    text = README.read_text(encoding="utf-8")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    README.write_text(head + BEGIN + table(json.loads(RESULTS.read_text())) + END + tail, encoding="utf-8")


def measure() -> None:
    """Run every algorithm with every seed, in common stacks."""
    configs = [configure("digits-4", algorithm=name, seed=seed) for seed in range(SEEDS) for name in ALGORITHMS]
    scores: dict[str, dict[str, list[float]]] = {name: {} for name in ALGORITHMS}
    drawn: dict[str, list] = {"cdfl": [], "local": []}
    for which, event in compare_events(configs):
        name = configs[which].algorithm
        if configs[which].seed == 0 and name in drawn:
            drawn[name].append(event)
        if isinstance(event, Finished):
            for column in ("before", "after", "cluster", "divergence", "bytes_down", "client_flops", "server_flops"):
                scores[name].setdefault(column, []).append(getattr(event, column))
            print(name, configs[which].seed, f"after {event.after:.3f}", flush=True)
    RESULTS.write_text(json.dumps({"machine": machine(), "seeds": SEEDS, "scores": scores}, indent=1) + "\n")
    plot_run(drawn["cdfl"], ROOT / "docs" / "pictures" / "digits-4-run.png", {"alone": drawn["local"]})


def table(results: dict) -> str:
    """The table of the README."""
    rows = [
        "| algorithm | | before | after | clusters | KL | MB down |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, columns in results["scores"].items():
        cells = [_spread(columns[column]) for column in ("before", "after", "cluster", "divergence")]
        name_shown = f"**{name}**" if name == "cdfl" else name
        rows.append(
            f"| {name_shown} | {MEANING[name]} | {' | '.join(cells)} | {fmean(columns['bytes_down']) / 1e6:.1f} |"
        )
    return "\n".join(rows) + "\n"


def _spread(values: list[float | None]) -> str:
    found = [value for value in values if value is not None]
    return f"{fmean(found):.3f} ± {stdev(found):.3f}" if found else "-"


if __name__ == "__main__":
    main()
