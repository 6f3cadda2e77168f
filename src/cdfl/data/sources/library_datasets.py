"""Datasets that come with a library: nothing is downloaded."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from cdfl.data.sources.source import reading
from cdfl.data.tables import Columns


def breast_cancer(folder: Path) -> Columns:
    """Read scikit-learn's table of 569 breast tumours: 30 measures of cell nuclei; `malignant` is 1 or 0."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    columns = {str(name): found.data[:, place] for place, name in enumerate(found.feature_names)}
    return columns | {"malignant": 1 - found.target}


def wine(folder: Path) -> Columns:
    """Read scikit-learn's table of 178 wines: 13 measures, and the cultivar, 0 to 2."""
    from sklearn.datasets import load_wine

    found = load_wine()
    return {name: found.data[:, place] for place, name in enumerate(found.feature_names)} | {"cultivar": found.target}


def diabetes(folder: Path) -> Columns:
    """Read scikit-learn's table of 442 patients: 10 measures, and how far the disease progressed in a year."""
    from sklearn.datasets import load_diabetes

    found = load_diabetes(scaled=False)
    columns = {name: found.data[:, place] for place, name in enumerate(found.feature_names)}
    return columns | {"sex": columns["sex"].astype(np.int64), "progression": found.target}


def italy_power_demand(folder: Path) -> dict[str, np.ndarray]:
    """Read sktime's series of electric power in Italy: 24 hours of 1,096 days, October to March and April to September.

    Each day has mean 0 and deviation 1, as published. The file is read without importing sktime, which takes seconds.
    """
    found = find_spec("sktime")
    place = Path(str(found and found.origin)).parent / "datasets" / "data" / "ItalyPowerDemand"
    days: dict[str, list[np.ndarray]] = {"October to March": [], "April to September": []}
    for half in ("TRAIN", "TEST"):
        path = place / f"ItalyPowerDemand_{half}.ts"
        with reading(path, "install sktime again"):
            lines = path.read_text(encoding="utf-8").splitlines()
            for line in lines[1 + lines.index("@data") :]:
                values, _, label = line.partition(":")
                days[list(days)[int(label) - 1]].append(np.array(values.split(","), np.float32))
    return {name: np.stack(own) for name, own in days.items()}
