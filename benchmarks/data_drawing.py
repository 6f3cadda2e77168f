"""Time how long a client's data take to draw.

Claim: one core draws the data of one upload (train and test, uint8) from FashionMNIST (4) in memory in under 3 ms.

Writes benchmarks/results/draw.json.
"""

import argparse
import time
from pathlib import Path
from statistics import median, quantiles

import torch

from benchmarks.result_files import machine, read, write
from cdfl.scenarios import load_scenario

UPDATES = 1000


def measure(num_clusters: int, data_dir: Path | None) -> dict[str, float]:
    """Time many different updates, after a few to warm up."""
    started = time.perf_counter()
    federation = load_scenario(f"fashion-mnist-{num_clusters}").federation(data_dir=data_dir)
    loaded = time.perf_counter() - started
    times = []
    for update in range(UPDATES + 20):
        started = time.perf_counter()
        draw = federation.draw(client=update % 80, update=update)
        federation.fetch(draw.train)
        federation.fetch(draw.test)
        times.append(1e3 * (time.perf_counter() - started))
    times = times[20:]
    return {
        "clusters": num_clusters,
        "median_ms": round(median(times), 3),
        "p95_ms": round(quantiles(times, n=20)[-1], 3),
        "image_bytes": federation.num_bytes,
        "load_s": round(loaded, 2),
    }


def table() -> str:
    """Return the times for each number of clusters."""
    results = read("draw")
    on = results["machine"]
    rows = [
        f"| {row['clusters']} | {row['median_ms']:.2f} ms | {row['p95_ms']:.2f} ms "
        f"| {row['image_bytes'] / 1e6:.1f} MB |"
        for row in results["rows"]
    ]
    return "\n".join(
        [
            f"{UPDATES:,} updates of FashionMNIST on one core of {on['cpu']}, Python {on['python']}, "
            f"torch {on['torch']}:\n",
            "| clusters | median | 95 % below | images in memory |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder of the datasets; default: $CDFL_DATA")
    data_dir = parser.parse_args().data_dir
    torch.set_num_threads(1)
    rows = [measure(num_clusters, data_dir) for num_clusters in (2, 3, 4, 6)]
    write("draw", {"machine": machine(), "updates": UPDATES, "rows": rows})
    print(table())


if __name__ == "__main__":
    main()
