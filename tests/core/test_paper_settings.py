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


def test_the_rows_are_the_paper_s_13():
    assert list(PAPER) == [row_name(row[0]) for row in ROWS]
    assert len(PAPER) == 13


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_is_what_the_table_prints(row):
    printed, c1, c2, factors, l_bar, d1_bar, d2_bar, floor = row
    found = paper(row_name(printed)).estimate
    assert (found.loss_weight, found.gap_weight) == (float(c1), float(c2))
    assert found.sharpness == tuple(float(factor) for factor in factors.split(","))
    assert (found.loss_bar, found.gap_bar, found.distance_bar) == (bar(l_bar), bar(d1_bar), bar(d2_bar))
    assert floor == "ave"
    assert paper(row_name(printed)).rates.rate_floor == "mean"


@pytest.mark.parametrize("name", PAPER)
def test_values_of_the_setup(name):
    """Setup: beta_0 = .025, a = 10, b = 5, rho = .1, tau_0 = number of clients (20 a cluster; 100 for digits)."""
    rates, training = paper(name).rates, paper(name).training
    assert (rates.base_rate, rates.staleness_slope, rates.staleness_grace) == (0.025, 10, 5)
    assert training.proximal_strength == 0.1
    assert rates.max_staleness == (100 if name == "digit-recognition" else 20 * int(name[-1]))
    assert training.batch_size == 128
    optimizer = (training.optimizer, training.learning_rate, training.weight_decay, training.momentum)
    cnn, resnet = ("adam", 0.01, 0.005, 0), ("sgd", 0.1, 5e-4, 0.9)
    assert optimizer == (cnn if name.startswith(("fashion", "digit")) else resnet)


@pytest.mark.parametrize("name", PAPER)
def test_the_paper_s_rows_follow_its_algorithms_as_printed(name):
    rates = paper(name).rates
    assert (rates.staleness_hinge, rates.cluster_epochs_set, rates.reply_clusters) == ("paper", "before", "all")
    assert rates.cluster_step == "towards"
    assert paper(name).estimate.measures == reading(name).estimate.measures == "plain"
    assert paper(name).max_harm is None


@pytest.mark.parametrize("name", PAPER)
def test_the_reading_changes_the_loss_bar_and_adam_s_learning_rate_only(name):
    printed, read = paper(name).leaves(), reading(name).leaves()
    changed = {leaf for leaf, value in printed.items() if read[leaf] != value}
    assert changed == ({"learning_rate"} if printed["optimizer"] == "adam" else set()) | (
        {"loss_bar"} if printed["loss_bar"] != "min" else set()
    )
    assert read["loss_bar"] == {8: 0.5, 40: 2.5, 70: 4.375, "min": "min"}[printed["loss_bar"]]
    assert read["learning_rate"] == (1e-3 if printed["optimizer"] == "adam" else 0.1)


def test_an_unknown_row_is_refused_with_a_list_of_rows():
    with pytest.raises(ValueError, match=r"the paper has no row 'mnist'; it has fashion-mnist-2, .*digit-recognition"):
        paper("mnist")


def test_the_defaults_keep_old_uploads_effective():
    """Unlike the paper's rows, where an upload 80 epochs old moves a cluster by .025 / 801 of the way."""
    defaults = Settings()
    assert defaults.rates.max_staleness is None
    assert float(staleness_factor(torch.tensor(20), defaults.rates)) == 1
    assert 800 * float(staleness_factor(torch.tensor(800), defaults.rates)) == pytest.approx(
        20
    )  # rate times age is bounded
    assert defaults.pretraining.shared_epochs > 0
    estimate = defaults.estimate
    assert (estimate.loss_bar, estimate.gap_bar, estimate.distance_bar) == ("min", "min", "min")
