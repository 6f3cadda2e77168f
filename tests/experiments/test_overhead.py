"""Bytes that are encoded, FLOPs that are counted, and runs of before put right."""

from types import SimpleNamespace

import pytest
import torch

from cdfl.core import Layout
from cdfl.models import build
from cdfl.paper import EVERY_ROW, Cell, Results
from cdfl.paper.costs import costs, reply_bytes
from cdfl.paper.experiment import load_experiment
from cdfl.paper.folder import experiments_folder
from cdfl.scenarios import load_scenario
from cdfl.sim.flops import count_flops
from cdfl.wire import ReplyHead, decode_model, encode_model

from .small import empty, keep

RESULTS = Results(experiments_folder() / "results")
FASHION = load_scenario("fashion-mnist-4").to_dict()


def test_the_costs_of_the_papers_cnn_by_hand():
    found = costs(FASHION)
    assert found.weights == 582_026
    first, second = 25 * 32 * 24**2, 25 * 32 * 64 * 8**2  # weights times places
    hidden, last = 1024 * 512, 512 * 10
    forward = 2 * (first + second + hidden + last)
    assert found.flops == (forward, 3 * forward - 2 * first)  # nobody asks for the gradient of an image


@pytest.mark.parametrize("model", ["cnn", "resnet18", "small-cnn"])
def test_shapes_alone_count_as_much_as_numbers(model):
    network = build(model, (3, 32, 32), 10)
    assert count_flops(network, (3, 32, 32)) == count_flops(network.to("meta"), (3, 32, 32))


def test_bytes_are_those_of_what_is_sent():
    found = costs(FASHION)
    network = build("cnn", (1, 28, 28), 10)
    layout = Layout.of(network)
    body = encode_model(torch.randn(layout.size), layout)
    assert len(body) == found.body
    assert decode_model(body, layout).numel() == found.weights
    assert 0 < found.body - 4 * found.weights < 1000  # names and shapes
    shares = (0.1234567890123456, 0.2, 0.3, 0.4)
    head = ReplyHead(7, shares, shares, 3, "applied").to_headers()
    sent = len(body) + len("".join(f"{name}: {value}\r\n" for name, value in head.items()))
    assert sent <= reply_bytes(found, 4) < sent + 200


@pytest.mark.parametrize("row", EVERY_ROW, ids=lambda row: row.scenario)
def test_what_runs_counted_is_what_is_encoded_less_its_names(row):
    for name, models in (("cdfl", 1), ("fedsoft", load_scenario(row.scenario).num_clusters)):
        for kept in RESULTS.trials(row.scenario, "paper-reading", name):
            found, uploads = costs(kept.record["config"]["scenario"]), kept.end["uploads"]
            assert kept.end["bytes_up"] == uploads * 4 * found.weights
            assert kept.end["bytes_down"] == uploads * 4 * found.weights * models
            assert found.body / (4 * found.weights) < 1.001


def keep_pair(results: Results, ours: dict[str, int], theirs: dict[str, int], seed: int = 0) -> None:
    cells = [Cell("fashion-mnist-4", "paper-reading", name, seed) for name in ("cdfl", "fedsoft")]
    for cell in cells:
        keep(results, cell)
    for cell, values in zip(cells, (ours, theirs), strict=True):
        end = results.find(cell).digest["end"]
        end.pop("trained", None)
        end.update(uploads=10, server_flops=0, **values)


@pytest.fixture
def experiment() -> SimpleNamespace:
    found = load_experiment("overhead")
    return SimpleNamespace(report=found.report, overheads=found.report.__globals__["overheads"])


def test_earlier_runs_are_put_right(experiment, tmp_path):
    """1,000 samples trained and 400 tried, counted by both rules."""
    forward, training = costs(FASHION).flops
    before, now = empty(tmp_path / "before"), empty(tmp_path / "now")
    keep_pair(before, {"client_flops": 3000 * forward}, {"client_flops": 3400 * forward})
    ours = {"client_flops": 1000 * training, "trained": 1000}
    theirs = {"client_flops": 1000 * training + 400 * forward, "trained": 1000}
    keep_pair(now, ours, theirs)
    mixed = empty(tmp_path / "mixed")
    keep_pair(mixed, ours, {"client_flops": 3400 * forward})
    for results in (before, now, mixed):
        (found,) = experiment.overheads(results)
        assert found.flops == 100 * training
        assert found.rival_flops == 100 * training + 40 * forward
        assert found.download == pytest.approx(4, abs=0.001)
    told = ["counted each as three forward passes" in experiment.report(results) for results in (before, now, mixed)]
    assert told == [True, False, True]


def test_only_seeds_of_both_are_compared(experiment, tmp_path):
    results = empty(tmp_path)
    keep_pair(results, {"client_flops": 3}, {"client_flops": 4}, seed=0)
    keep_pair(results, {"client_flops": 3}, {"client_flops": 4}, seed=1)
    keep(results, Cell("fashion-mnist-4", "paper-reading", "cdfl", 2))
    (found,) = experiment.overheads(results)
    assert [(kept.cell.algorithm, kept.cell.seed) for kept in found.used] == [
        ("cdfl", 0), ("fedsoft", 0), ("cdfl", 1), ("fedsoft", 1),
    ]  # fmt: skip
    text = experiment.report(results)
    assert "| FashionMNIST (4) | 2 |" in text
    assert "\n4 runs in " in text
