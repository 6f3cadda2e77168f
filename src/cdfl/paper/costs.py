"""What a model costs on its way and a sample in its network, measured on the network of a scenario without its data."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from cdfl.core import Layout
from cdfl.data.sources import SOURCES
from cdfl.models import build
from cdfl.sim.flops import Flops, count_flops
from cdfl.wire import ReplyHead, encode_model

SHAPES = {"fashion-mnist": (1, 28, 28), "cifar-10": (3, 32, 32), "digits": (1, 8, 8)}  # where a scenario fits to none


class Costs(NamedTuple):
    """Of one network."""

    weights: int  # P, numbers
    body: int  # bytes of a model, as client and server encode it
    flops: Flops  # of one sample


def costs(scenario: Mapping[str, Any]) -> Costs:
    """The costs of the network of a scenario, which is given as a result file stores it."""
    clusters = scenario["clusters"]
    names = clusters.get("sources") or [clusters["source"]]
    shape = clusters["shape"] or SHAPES[names[0]]
    num_classes = max(SOURCES[part].num_classes for name in names for part in name.split("+"))
    return _costs(scenario["model"], tuple(shape), num_classes)


def reply_bytes(costs: Costs, num_clusters: int) -> int:
    """A reply of CDFL: its model, and the headers that tell epoch, mixture, rates and staleness with all digits."""
    shares = (1 / 3,) * num_clusters
    headers = ReplyHead(1000, shares, shares, staleness=100, outcome="applied").to_headers()
    return costs.body + sum(len(f"{name}: {value}\r\n") for name, value in headers.items())


@lru_cache(maxsize=16)
def _costs(model: str, shape: tuple[int, int, int], num_classes: int) -> Costs:
    with torch.device("meta"):  # shapes without numbers: neither counts nor lengths depend on them
        network = build(model, shape, num_classes)
    layout = Layout.of(network)
    return Costs(layout.size, len(encode_model(torch.zeros(layout.size), layout)), count_flops(network, shape))
