"""A set-up for `cdfl serve`: the paper's CNN (2.3 MB), FashionMNIST in four rotations, 1,000 proxy samples each."""

import torch
from torch.nn.functional import cross_entropy

from cdfl.core import Hyperparams
from cdfl.data import to_input
from cdfl.models import build
from cdfl.scenarios import load_scenario

PRETRAINING = 512  # images of a cluster: how good the clusters are changes no time

torch.manual_seed(0)
scenario = load_scenario("fashion-mnist-4")
federation = scenario.federation(seed=0)  # from the folder that CDFL_DATA names

model = build(scenario.model, federation.input_shape, federation.num_classes)
loss = cross_entropy
proxy_sets = [(to_input(images), labels) for images, labels in map(federation.proxy, range(scenario.num_clusters))]
pretraining_sets = [
    (to_input(images[:PRETRAINING]), labels[:PRETRAINING])
    for images, labels in map(federation.pretraining, range(scenario.num_clusters))
]
hyperparams = Hyperparams(shared_epochs=1, separate_epochs=1)
