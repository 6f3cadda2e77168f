"""Overhead: bytes that are encoded, FLOPs that are counted."""

import pytest
import torch

from cdfl.core import Layout
from cdfl.models import build
from cdfl.scenarios import load_scenario
from cdfl.sim.flops import count_flops
from cdfl.wire import ReplyHead, decode_model, encode_model
from experiments import overhead
from experiments.harness import Results, RunKey
from tests.experiments.small import empty, keep, table

FASHION = load_scenario("fashion-mnist-4").to_dict()


def test_the_costs_of_the_papers_cnn_by_hand():
    found = overhead.costs(FASHION)
    assert found.weights == 582_026
    first, second = 25 * 32 * 24**2, 25 * 32 * 64 * 8**2  # weights times places
    hidden, last = 1024 * 512, 512 * 10
    forward = 2 * (first + second + hidden + last)
    assert found.flops == (forward, 3 * forward - 2 * first)  # the gradient of an image is not needed


@pytest.mark.parametrize("model", ["cnn", "resnet18", "small-cnn"])
def test_shapes_alone_count_as_much_as_numbers(model):
    network = build(model, (3, 32, 32), 10)
    images = torch.zeros(2, 3, 32, 32)
    assert count_flops(network, images) == count_flops(network.to("meta"), images.to("meta"))


def test_bytes_are_those_of_what_is_sent():
    found = overhead.costs(FASHION)
    network = build("cnn", (1, 28, 28), 10)
    layout = Layout.of(network)
    body = encode_model(torch.randn(layout.size), layout)
    assert len(body) == found.body
    assert decode_model(body, layout).numel() == found.weights
    assert 0 < found.body - 4 * found.weights < 1000  # names and shapes
    shares = (0.1234567890123456, 0.2, 0.3, 0.4)
    head = ReplyHead(7, shares, shares, 3, "applied").to_headers()
    sent = len(body) + len("".join(f"{name}: {value}\r\n" for name, value in head.items()))
    assert sent <= overhead.reply_bytes(found, 4) < sent + 200


def keep_pair(results: Results, ours: int, theirs: int, seed: int = 0) -> None:
    for name, flops in (("cdfl", ours), ("fedsoft", theirs)):
        keep(results, RunKey("fashion-mnist-4", "paper-reading", name, seed), client_flops=flops)


def test_ratios_by_hand(tmp_path):
    results = empty(tmp_path)
    keep_pair(results, 200, 300)
    (found,) = overhead.overheads(results)
    assert (found.flops, found.rival_flops, found.computation) == (200, 300, 1.5)
    assert found.download == pytest.approx(4, abs=0.001)


def test_only_seeds_of_both_are_compared(tmp_path):
    results = empty(tmp_path)
    keep_pair(results, 3, 4, seed=0)
    keep_pair(results, 3, 4, seed=1)
    keep(results, RunKey("fashion-mnist-4", "paper-reading", "cdfl", 2))
    (found,) = overhead.overheads(results)
    assert [(kept.key.algorithm, kept.key.seed) for kept in found.used] == [
        ("cdfl", 0), ("fedsoft", 0), ("cdfl", 1), ("fedsoft", 1),
    ]  # fmt: skip
    assert table(overhead.report(results))[1][:2] == ["FashionMNIST (4)", "2"]
