"""Tuning: six trials of every algorithm for each network, on validation samples.

Claim: ours. Every algorithm gets the same seed, trials and uploads, and is scored on validation samples that no table
uses.
Settings: `default` without weight decay, and the changes below; FashionMNIST in four rotations with 1,000 uploads, 8x8
digits with 600.
Cost: 5 minutes on one H200; for the digits, an hour on two CPU cores.

    cdfl paper tuning --rows digits-4
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness import Experiment, Results, RunKey
from experiments.harness.figure_style import LABELS
from experiments.harness.tables import number, provenance, table

SEED = 100
WEIGHT_DECAY: dict[str, Any] = {"weight_decay": 5e-4}


def _rates(*rates: float, **changes: Any) -> list[dict[str, Any]]:
    return [{"base_rate": rate, **changes} for rate in rates]


CLUSTERED = [
    *_rates(0.15, 0.3, shared_step=0.0),
    *_rates(0.15, 0.3, 0.5, shared_step=0.25),
    *_rates(0.3, shared_step=0.25, **WEIGHT_DECAY),
]
TRIALS: dict[str, list[dict[str, Any]]] = {
    "cdfl": CLUSTERED,
    "fedsoft": CLUSTERED,
    "ifca": CLUSTERED,
    "fedem": [*_rates(0.15, 0.3, 0.5, 0.8, 1.0), *_rates(0.5, **WEIGHT_DECAY)],
    "fedbuff": [*_rates(0.05, 0.1, 0.15, 0.2, 0.3), *_rates(0.15, **WEIGHT_DECAY)],
    "fedasync": [*_rates(0.1, 0.2, 0.3, 0.5, 0.7), *_rates(0.3, **WEIGHT_DECAY)],
    # Nothing is learned from clients: how long the server trains on its own samples.
    "frozen": [{"separate_epochs": count} for count in (2, 5, 10, 20, 40)] + [{"shared_epochs": 30}],
}
COMMON: dict[str, Any] = {"reply": "experts", "weight_decay": 0.0}
# network -> where it is tuned
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "small-cnn": ("digits-4", {}),
    "cnn": ("fashion-mnist-4", {"num_uploads": 1000}),
    "cnn-27k": ("fashion-mnist-4", {"num_uploads": 1000, "model": "cnn-27k"}),
    "cnn-4k": ("fashion-mnist-4", {"num_uploads": 1000, "model": "cnn-4k"}),
    "cnn-2m": ("fashion-mnist-4", {"num_uploads": 1000, "model": "cnn-2m"}),
    "cnn-108k": ("fashion-mnist-4", {"num_uploads": 1000, "model": "cnn-108k"}),
    "cnn-15k": ("fashion-mnist-4", {"num_uploads": 1000, "model": "cnn-15k"}),
    "gru": ("handbook-4", {}),
}
# Networks that only some algorithms are tuned for; one large model is as large as four experts together
ONLY = {
    "cnn-2m": ("fedbuff",),
    "cnn-108k": ("fedbuff",),
    "cnn-15k": ("fedbuff",),
    "gru": ("cdfl", "fedsoft", "ifca", "fedbuff"),
}
# What each algorithm is tuned for: the score of what a client predicts with.
SERVED: dict[str, tuple[str, ...]] = {
    "cdfl": ("served",),
    "fedsoft": ("after", "routed"),
    "ifca": ("after", "routed"),
    "fedem": ("after", "routed"),
    "fedbuff": ("after", "before"),
    "fedasync": ("after",),
    "frozen": ("after", "routed"),
}


def changes_of(algorithm: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of a run of an algorithm: those that all runs have, and its own."""
    quick = {"local_epochs": 1} if algorithm == "frozen" else {}  # the clients' training has no influence
    return {**COMMON, **quick, **changes}


def run_keys(trials: int) -> list[RunKey]:
    """Return all trials; there is one seed."""
    return [
        RunKey(scenario, "default", algorithm, SEED, changes_of(algorithm, {**where, "validation": True, **own}))
        for network, (scenario, where) in NETWORKS.items()
        for algorithm, tried in TRIALS.items()
        if algorithm in ONLY.get(network, TRIALS)
        for own in tried
    ]


def score(end: Mapping[str, Any], column: str) -> float:
    """Return a score of a finished run: "served", "after", "before", or "routed", the clusters behind the router."""
    return float(end["routed"]["soft"] if column == "routed" else end[column])


def tried(results: Results, network: str, algorithm: str, column: str) -> list[tuple[dict[str, Any], float]]:
    """Return the trials of an algorithm that are stored, and their scores."""
    scenario, where = NETWORKS[network]
    found = []
    for own in TRIALS[algorithm]:
        changes = changes_of(algorithm, {**where, "validation": True, **own})
        for kept in results.trials(scenario, "default", algorithm, changes):
            found.append((own, score(kept.end, column)))
    return found


def best(results: Results, network: str, algorithm: str, column: str) -> dict[str, Any] | None:
    """Return the changes of the best trial; None if not all are stored."""
    found = tried(results, network, algorithm, column)
    return max(found, key=lambda each: each[1])[0] if len(found) == len(TRIALS[algorithm]) else None


def report(results: Results) -> str:
    """Return every trial with its score."""
    rows, used = [], []
    for network, (scenario, _) in NETWORKS.items():
        for algorithm, columns in SERVED.items():
            for column in columns:
                for own, value in tried(results, network, algorithm, column):
                    rows.append([network, scenario, LABELS[algorithm], column, _named(own), number(value)])
    used = [kept for kept in results if kept.key.changes.get("validation")]
    return "\n".join(
        [table(["network", "row", "algorithm", "score", "changes", "on validation samples"], rows), provenance(used)]
    )


def _named(changes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in changes.items())


def draw(results: Results, folder: Path) -> Sequence[str]:
    """Draw nothing."""
    return []


EXPERIMENT = Experiment("tuning", __doc__ or "", report, draw, run_keys, smoke_rows=("digits-4",))
