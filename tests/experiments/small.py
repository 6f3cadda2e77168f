"""Made-up events of a run, and results made of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from cdfl.run_events import Clusters, Event, Started, Uploaded
from cdfl.sim.event_builders import summarize
from experiments import theorem1
from experiments.harness import Results, RunKey, resolve
from experiments.harness.run_summary import summarize_run

UPLOAD = Uploaded(
    epoch=1, time=1.0, client=0, update=0, samples=10, staleness=1, outcome="applied", held=0.3, before=0.5, after=0.6,
    served=0.6, served_held=0.3, true_mixture=[0.5, 0.5], mixture=[0.4, 0.6], divergence=0.1, rates=[0.3, 0.0],
    bytes_up=10, bytes_down=10, client_flops=300, server_flops=5, trained=50,
)  # fmt: skip
HEADER: dict[str, Any] = {
    "device": "cpu", "precision": "float32",
    "machine": {"cpu": "c", "cores": 2, "gpu": None, "torch": "2", "date": "d"},
    "commit": "abc", "seconds": 8.0, "together": 2, "processes": 1, "smoke": False,
}  # fmt: skip


def events(num_clients: int, rounds: int, **values: Any) -> list[Event]:
    """Every client uploads once a round; accuracies rise by .01 from upload to upload."""
    metrics = [{"name": "accuracy", "higher_is_better": True}]
    started = Started("s", "cdfl", 0, num_clients, 2, num_clients * rounds, 10, metrics, ["a", "b"])
    told: list[Event] = [started, Clusters(0, [0.1, 0.3])]
    for epoch in range(1, num_clients * rounds + 1):
        place, client = divmod(epoch - 1, num_clients)
        gain = 0.01 * epoch
        upload = replace(UPLOAD, epoch=epoch, client=client, update=place, before=0.5 + gain, after=0.6 + gain)
        told.append(replace(upload, **values))
        if epoch % num_clients == 0:
            told.append(Clusters(epoch, [0.2 + gain, 0.4 + gain]))
    return [*told, summarize(told, num_clients)]


def keep(
    results: Results, key: RunKey, header: dict[str, Any] | None = None, *, rounds: int = 6, **values: Any
) -> None:
    """Add a run with made-up events."""
    header = header or HEADER
    kept = summarize_run(events(4, rounds, **values), 4, updates=True, mixtures=True)
    results.add([(key, resolve(key, "cpu", smoke=header["smoke"]), kept)], header)


def keep_theorem(results: Results, *rhos: str, smoke: bool = False) -> None:
    """Add made-up measurements of Theorem 1."""
    terms = {"start": 0.1, "steps": 0.2, "gradients": 0.3, "distances": 10.0}
    cluster = {"smoothness": 1.0, "updates": 8.0, "falls": [0.1, -0.2], "measured": 0.5, "terms": terms}
    cluster["curve"] = [8.0] * 10 + [100.0] * 20 + [6.0] * 10
    one = {
        "machine": HEADER["machine"], "commit": "abc", "seconds": 1.0, "v1": 2.0, "v2": 3.0, "clusters": [cluster] * 4,
        "largest_distance": 0.5, "limit": 1.0, "needed_at_largest": 9.0, "needed_at_median": 12.0, "at_start": 0.1,
        "aligned": 0.4, "least_alignment": -1.0,
    }  # fmt: skip
    results.add_measured("theorem1", theorem1.settings(smoke), rho=dict.fromkeys(rhos, one))


def table(text: str, place: int = 0) -> list[list[str]]:
    """Return the cells of a table in a report, its header first."""
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("| ")]
    lines = [line for line in tables[place] if not line.startswith("|---")]
    return [[cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")] for line in lines]


def empty(folder: Path) -> Results:
    return Results(folder)
