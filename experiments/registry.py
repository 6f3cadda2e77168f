"""All experiments, in the order of the README."""

from experiments import (
    ablations,
    adaptation,
    estimation,
    network_sizes,
    over_time,
    overhead,
    preset_search,
    served,
    table1,
    theorem1,
    tuning,
)
from experiments.harness import Experiment

MODULES = (
    preset_search,
    table1,
    over_time,
    estimation,
    overhead,
    ablations,
    theorem1,
    adaptation,
    tuning,
    served,
    network_sizes,
)
EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in MODULES}


def find_experiment(name: str) -> Experiment:
    """Return an experiment by its name.

    >>> find_experiment("table1").title
    'Table 1: accuracy of clients and clusters in 13 rows'
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
