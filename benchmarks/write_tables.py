"""Write the tables that benchmarks measured into README.md and docs.

A page holds a table between two comments that name it: `<!-- speed-cpu: generated -->` and `<!-- speed-cpu: end -->`.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import (
    before,
    data_drawing,
    digits_accuracy,
    evaluation_share,
    expert_costs,
    gpu_first_run,
    interleavings,
    kinds,
    load_table,
    mixtures,
    page,
    peers_table,
    poison_table,
    populations,
    ray_engine,
    sequences,
    siege,
    speed_table,
    ten_million,
    two_servers,
    unit_costs,
    watchers,
)
from benchmarks.crash import table as crash_table
from benchmarks.result_files import ROOT, read
from experiments import served
from experiments.harness import Results

TABLES: dict[str, Callable[[], str]] = {
    "digits-4": digits_accuracy.table,
    "served": lambda: served.lead(Results(ROOT / "experiments" / "results")),
    "draw": data_drawing.table,
    "before": before.table,
    "experts": expert_costs.table,
    "kinds": kinds.table,
    "mixtures": mixtures.table,
    "sequences": sequences.table,
    "ray": ray_engine.table,
    "speed-h200": partial(speed_table.speed, "speed-h200"),
    "speed-cpu": partial(speed_table.speed, "speed-cpu"),
    "profile": speed_table.profile,
    "floor": speed_table.floor,
    "populations": populations.table,
    "first-run": gpu_first_run.table,
    "unit-costs": unit_costs.table,
    "ten-million": ten_million.table,
    "evaluation-share": evaluation_share.table,
    "peers": lambda: peers_table.table(read("peers")),
    "load, fleet": load_table.fleet,
    "load, paper": load_table.paper,
    "load, exchanges": load_table.exchanges,
    "page": page.table,
    "watchers": watchers.table,
    "siege": siege.table,
    "interleavings": interleavings.table,
    "crash": crash_table.table,
    "servers": two_servers.table,
    "poison": partial(poison_table.attack_table, "digits-4"),
    "poison-fast": partial(poison_table.attack_table, "digits-4-fast"),
    "false-alarms": poison_table.drift_table,
}
BLOCK = re.compile(rf"(<!-- ({'|'.join(TABLES)}): generated -->\n).*?(<!-- \2: end -->)", re.DOTALL)


def rendered(page: str) -> str:
    """Return a page with its tables generated again."""
    return BLOCK.sub(lambda block: block[1] + TABLES[block[2]]() + block[3], page)


def pages() -> list[Path]:
    """Return the pages that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> None:
    """Write the tables of all pages."""
    for place in pages():
        place.write_text(rendered(place.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
