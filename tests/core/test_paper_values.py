from dataclasses import asdict

import pytest
import torch

from cdfl.core import PAPER, Settings, paper, reading, staleness_factor

# The appendix's table, as printed:
# dataset (clusters) | c_1 | c_2 | A | l_bar | d_1bar | d_2bar | beta_1bar
TABLE = """
FashionMNIST (2) | 0.5 | 0.4  | 3      | 8   | 0   | 0   | ave
FashionMNIST (3) | 0.5 | 0.25 | 3      | 8   | 0   | 0   | ave
FashionMNIST (4) | 0.5 | 0.25 | 7      | 8   | 0   | 0   | ave
FashionMNIST (6) | 0.7 | 0.2  | 15     | 8   | 0   | 0   | ave
CIFAR-100 (2)    | 0.5 | 0.2  | 1      | 40  | 0   | 0   | ave
CIFAR-100 (3)    | 0.5 | 0.2  | 10     | min | min | min | ave
CIFAR-100 (4)    | 0.5 | 0.2  | 10     | min | min | min | ave
CIFAR-100 (6)    | 0.5 | 0.2  | 10     | min | min | min | ave
MiniImagenet (2) | 0.5 | 0.2  | 1      | 70  | 0   | 0   | ave
MiniImagenet (3) | 0.5 | 0.4  | 7      | min | min | min | ave
MiniImagenet (4) | 0.6 | 0.3  | 15     | min | min | min | ave
MiniImagenet (6) | 0.6 | 0.3  | 10, 10 | min | min | min | ave
DigitRecognition | 0.9 | 0    | 5      | min | min | min | ave
"""
OUR_NAMES = {
    "FashionMNIST": "fashion-mnist",
    "CIFAR-100": "cifar-100",
    "MiniImagenet": "mini-imagenet",
    "DigitRecognition": "digit-recognition",
}
ROWS = [[cell.strip() for cell in line.split("|")] for line in TABLE.strip().splitlines()]


def bar(cell):
    return cell if cell == "min" else float(cell)


def row_name(printed):
    dataset, _, clusters = printed.partition(" (")
    return OUR_NAMES[dataset] + (f"-{clusters[:-1]}" if clusters else "")


def test_there_are_the_paper_s_13_rows_and_no_more():
    assert list(PAPER) == [row_name(row[0]) for row in ROWS]
    assert len(PAPER) == 13


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_is_what_the_table_prints(row):
    printed, c1, c2, factors, l_bar, d1_bar, d2_bar, floor = row
    found = paper(row_name(printed))
    assert (found.loss_weight, found.gap_weight) == (float(c1), float(c2))
    assert found.sharpness == tuple(float(factor) for factor in factors.split(","))
    assert (found.loss_bar, found.gap_bar, found.distance_bar) == (bar(l_bar), bar(d1_bar), bar(d2_bar))
    assert floor == "ave"
    assert found.rate_floor == "mean"


@pytest.mark.parametrize("name", PAPER)
def test_what_all_rows_share(name):
    """Setup: beta_0 = .025, a = 10, b = 5, rho = .1, tau_0 = number of clients (20 a cluster; 100 for digits)."""
    row = paper(name)
    assert (row.base_rate, row.staleness_slope, row.staleness_grace, row.proximal_strength) == (0.025, 10, 5, 0.1)
    assert row.max_staleness == (100 if name == "digit-recognition" else 20 * int(name[-1]))
    assert row.batch_size == 128
    cnn = (row.optimizer, row.learning_rate, row.weight_decay, row.momentum) == ("adam", 0.01, 0.005, 0)
    resnet = (row.optimizer, row.learning_rate, row.weight_decay, row.momentum) == ("sgd", 0.1, 5e-4, 0.9)
    assert cnn if name.startswith(("fashion", "digit")) else resnet


@pytest.mark.parametrize("name", PAPER)
def test_the_paper_s_rows_read_its_algorithms_literally(name):
    row = paper(name)
    assert (row.staleness_hinge, row.cluster_epochs_set, row.reply_clusters) == ("paper", "before", "all")
    assert row.measures == reading(name).measures == "plain"


@pytest.mark.parametrize("name", PAPER)
def test_the_reading_changes_nothing_that_it_does_not_name(name):
    printed, read = asdict(paper(name)), asdict(reading(name))
    changed = {field for field, value in printed.items() if read[field] != value}
    assert changed == ({"learning_rate"} if printed["optimizer"] == "adam" else set()) | (
        {"loss_bar"} if printed["loss_bar"] != "min" else set()
    )
    assert read["loss_bar"] == {8: 0.5, 40: 2.5, 70: 4.375, "min": "min"}[printed["loss_bar"]]
    assert read["learning_rate"] == (1e-3 if printed["optimizer"] == "adam" else 0.1)


def test_a_row_that_is_not_there_is_refused_with_the_rows_that_are():
    with pytest.raises(ValueError, match=r"the paper has no row 'mnist'; it has fashion-mnist-2, .*digit-recognition"):
        paper("mnist")


def test_the_defaults_do_not_damp_updates_to_nothing():
    """What the paper's rows do under most time models: an upload 80 epochs old moves a cluster by .025 / 801."""
    defaults = Settings()
    assert defaults.max_staleness is None
    assert float(staleness_factor(torch.tensor(20), defaults)) == 1
    assert 800 * float(staleness_factor(torch.tensor(800), defaults)) == pytest.approx(20)  # rate times age is bounded
    assert defaults.shared_epochs > 0
    assert (defaults.loss_bar, defaults.gap_bar, defaults.distance_bar) == ("min", "min", "min")
