"""Named experiments: which clusters, how mixtures drift, which model, how many clients and uploads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cdfl.data import Clusters, Drift, Federation, PaperDrift, Rotations, Sizes, load_source


@dataclass(frozen=True)
class Scenario:
    """One experiment on one federation; a run adds an algorithm and a seed."""

    name: str
    summary: str
    clusters: Clusters
    model: str
    num_clients: int
    num_uploads: int  # of all clients together
    drift: Drift = field(default_factory=PaperDrift)
    sizes: Sizes = field(default_factory=Sizes)
    paper_row: str | None = None  # key of the paper's parameter table
    hyperparams: Mapping[str, object] = field(default_factory=dict)  # overrides on the default preset

    def federation(self, seed: int = 0, data_dir: Path | None = None) -> Federation:
        """Read the data and split them."""
        clusters = self.clusters.build(lambda source: load_source(source, data_dir))
        return Federation(clusters, self.drift, self.sizes, seed)


SCENARIOS = {
    scenario.name: scenario
    for scenario in [
        Scenario(
            name="digits-4",
            summary="8x8 digits that come with scikit-learn, four right angles; runs anywhere, no download",
            clusters=Rotations("digits", 4),
            model="small-cnn",
            num_clients=40,
            num_uploads=600,
            sizes=Sizes(low=20, high=80, test=100, pretraining=100, proxy=200),
            hyperparams={"batch_size": 16},
        )
    ]
}


def load_scenario(name_or_path: str) -> Scenario:
    """Find a scenario by its name."""
    return SCENARIOS[name_or_path]


def list_scenarios() -> list[Scenario]:
    """List all scenarios that have a name."""
    return list(SCENARIOS.values())
