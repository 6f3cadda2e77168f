"""The load benchmark, with few clients: it runs, and what it reports adds up."""

import json

import pytest
import torch

from benchmarks import load
from benchmarks.result_files import ROOT
from cdfl.problems import ProblemInstance
from cdfl.scenarios import load_problem

pytestmark = pytest.mark.slow

QUICK = ("--set", "shared_epochs=1", "--set", "separate_epochs=1", "--set", "reply=model", "--device", "cpu")


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_a_few_clients_and_a_few_strangers():
    with load.serving(load.EXAMPLE, 3, *load.UNHURRIED, *QUICK, "--max-connections", "30") as server:
        found = load.measure(server, clients=3, updates=12, warm_up=3, idle=40)
        assert server.metrics()["cdfl_epoch"] == 15
    json.dumps(found)  # it can be stored
    assert (found["updates"], sum(found["outcomes"].values())) == (12, 12)
    assert (found["errors"], found["busy"], found["cut"]) == ({}, 0, 0)
    assert found["idle_closed"] >= 10  # 3 clients and 40 strangers want 30 places
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["max_ms"] <= 1e3 * found["seconds"]
    mean = sum(found["stages_ms"].values())
    assert found["p50_ms"] / 4 < mean <= found["max_ms"]
    assert found["stages_ms"]["evaluate"] > 0
    assert all(50 < memory < 5000 for memory in found["rss_mb"])


def test_a_server_with_nothing_to_evaluate_still_tells_clusters_apart():
    instance = ProblemInstance.of(load_problem(str(ROOT / "benchmarks" / "fleet" / "blind_setup.py")))
    state = instance.initial_state()
    assert state.cluster_models.shape == (4, 582026)
    losses = instance.evaluator().of_each(list(state.cluster_models))
    assert torch.equal(losses.argmin(dim=1), torch.arange(4))
