"""What the examples find there: for client.md a server on this machine, a network, some data."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from cdfl.algorithms import ALGORITHMS
from cdfl.core import Settings
from tests.client.site import Site
from tests.client.test_flower import Digits
from tests.client.toy import ToyServer, make_data, make_model


@pytest.fixture(autouse=True)
def _client_page(request, doctest_namespace, tmp_path):
    if "client.md" not in request.node.nodeid:
        yield
        return
    site = Site(ToyServer(Settings(base_rate=1.0, rate_floor=0.0, sharpness=0.001)))
    torch.manual_seed(0)
    doctest_namespace |= {
        "url": site.url,
        "net": make_model(),
        "loader": DataLoader(TensorDataset(*make_data()), batch_size=8),
        "stream": [make_data(seed=look, turned=look >= 4) for look in range(6)],
        "MyNumPyClient": Digits,
        "folder": tmp_path,
        "switch": lambda what: setattr(site, "is_off", what == "off"),
    }
    yield
    site.close()


@pytest.fixture(autouse=True)
def _extend_page(request, doctest_namespace, tmp_path, monkeypatch):
    if "extend.md" in request.node.nodeid:
        doctest_namespace["folder"] = tmp_path
        monkeypatch.setattr("cdfl.algorithms.ALGORITHMS", dict(ALGORITHMS))  # what the page registers is its own
