"""Real images for a server and its clients: sources, clusters, mixtures and how they drift."""

from cdfl.data.clusters import Cluster, Clusters, Rotations
from cdfl.data.dataset import Dataset
from cdfl.data.drift import Drift, PaperDrift
from cdfl.data.errors import DataError
from cdfl.data.federation import Draw, Federation, Samples
from cdfl.data.pixels import to_input
from cdfl.data.sources import load_source
from cdfl.data.split import Sizes

__all__ = [
    "Cluster",
    "Clusters",
    "DataError",
    "Dataset",
    "Draw",
    "Drift",
    "Federation",
    "PaperDrift",
    "Rotations",
    "Samples",
    "Sizes",
    "load_source",
    "to_input",
]
