"""A problem for `cdfl serve`: the paper's CNN (2.3 MB), FashionMNIST in four rotations, 1,000 proxy samples each."""

from dataclasses import replace

from cdfl.data import Sizes
from cdfl.scenarios import load_scenario

PRETRAINING = 512  # images of a cluster: how good the clusters are changes no time

problem = replace(
    load_scenario("fashion-mnist-4"),  # from the folder that CDFL_DATA names
    sizes=Sizes(pretraining=PRETRAINING),
    settings={"shared_epochs": 1, "separate_epochs": 1},
)
