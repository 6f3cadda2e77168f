"""Samples for a server and its clients: sources, clusters, mixtures and drifts."""

from cdfl.data.clusters import Cluster, Clusters, Datasets, Domains, LabelPermutations, Rotations, Shifts
from cdfl.data.dataset import Dataset
from cdfl.data.drift import (
    DRIFTS,
    Dirichlet,
    Drift,
    Gradual,
    Newcomer,
    PaperDrift,
    Seasons,
    Static,
    Sudden,
)
from cdfl.data.errors import DataError
from cdfl.data.federation import Draw, Federation, Samples
from cdfl.data.sources import SOURCES, data_folder, load_source
from cdfl.data.split import Sizes
from cdfl.data.tables import Table
from cdfl.data.texts import Texts
from cdfl.data.time_series import Windows
from cdfl.data.transforms import rotate, to_input

__all__ = [
    "DRIFTS",
    "SOURCES",
    "Cluster",
    "Clusters",
    "DataError",
    "Dataset",
    "Datasets",
    "Dirichlet",
    "Domains",
    "Draw",
    "Drift",
    "Federation",
    "Gradual",
    "LabelPermutations",
    "Newcomer",
    "PaperDrift",
    "Rotations",
    "Samples",
    "Seasons",
    "Shifts",
    "Sizes",
    "Static",
    "Sudden",
    "Table",
    "Texts",
    "Windows",
    "data_folder",
    "load_source",
    "rotate",
    "to_input",
]
