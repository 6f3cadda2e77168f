"""Run all algorithms on digits-4 with five seeds.

Claim: the reply is some points better than what a client reaches alone.

Writes benchmarks/results/digits-4.json. Takes minutes on two cores.
"""

import argparse
from statistics import fmean, stdev

from benchmarks.result_files import machine, read, write
from cdfl.algorithms import ALGORITHMS
from cdfl.run_events import Finished
from cdfl.sim.runner import compare_events, configure

SEEDS = 5
SHOWN = ("held", "before", "after", "cluster", "divergence")
COLUMNS = (*SHOWN, "bytes_down", "client_flops", "server_flops")
MEANING = {
    "cdfl": "soft clusters, one model down, the server estimates",
    "fedsoft": "soft clusters, K models down, the client estimates",
    "fedasync": "one model for all",
    "fedem": "a mixture of K models, K models up and down",
    "fedbuff": "one model for all, moved by changes, ten at a time",
    "ifca": "hard clusters, K models down",
    "local": "no server; every client starts anew (the paper's Local)",
    "local-keep": "no server; every client keeps its model",
    "frozen": "the common start, never trained again",
    "oracle": "CDFL with the true mixture",
}


def main() -> None:
    """Run every algorithm with every seed, in common stacks."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    configs = [configure("digits-4", algorithm=name, seed=seed) for seed in range(SEEDS) for name in ALGORITHMS]
    scores: dict[str, dict[str, list[float]]] = {name: {} for name in ALGORITHMS}
    for which, event in compare_events(configs):
        name = configs[which].algorithm
        if isinstance(event, Finished):
            for column in COLUMNS:
                scores[name].setdefault(column, []).append(getattr(event, column))
            print(name, configs[which].seed, f"after {event.after:.3f}", flush=True)
    write("digits-4", {"machine": machine(), "seeds": SEEDS, "scores": scores})


def table() -> str:
    """Return accuracy and traffic of every algorithm."""
    results = read("digits-4")
    rows = [
        "| algorithm | | old model | own training | new model | clusters | mixture error (KL) | MB down |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, columns in results["scores"].items():
        cells = [_spread(columns[column]) for column in SHOWN]
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
