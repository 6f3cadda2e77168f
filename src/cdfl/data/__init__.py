"""Real images for a server and its clients: sources, clusters, mixtures and how they drift."""

from cdfl.data.clusters import Cluster
from cdfl.data.dataset import Dataset
from cdfl.data.drift import Drift, PaperDrift
from cdfl.data.drifts import DRIFTS, Dirichlet, Gradual, Newcomer, Seasons, Static, Sudden
from cdfl.data.errors import DataError
from cdfl.data.federation import Draw, Federation, Samples
from cdfl.data.pixels import to_input
from cdfl.data.recipes import Clusters, Datasets, Domains, LabelPermutations, Rotations, Shifts
from cdfl.data.rotate import rotate
from cdfl.data.sources import SOURCES, data_folder, load_source
from cdfl.data.split import Sizes

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
    "data_folder",
    "load_source",
    "rotate",
    "to_input",
]
