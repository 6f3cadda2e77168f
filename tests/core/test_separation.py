"""Which clusters are told apart, worked out by hand and on real data."""

import pytest
import torch

from cdfl.core.separation import separation
from cdfl.data import Table
from cdfl.problems import Problem, ProblemInstance

NAMES = ["a", "b", "c"]


def sets(means, spread=0.1, samples=50):
    """Losses of every model (row of `means`) on the samples of every set (column)."""
    noise = spread * torch.randn(samples, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    jitter = torch.linspace(-spread, spread, samples)
    return [
        torch.stack([row[place] + noise * (1 + 0.1 * number) + jitter * number for number, row in enumerate(means)])
        for place in range(len(means))
    ]


def test_clusters_that_differ_are_fine():
    found = separation(sets([[0.2, 1.0, 1.0], [1.0, 0.2, 1.0], [1.0, 1.0, 0.2]]))
    assert found.sentences(NAMES) == []
    assert found.losses.diagonal() == pytest.approx(torch.full((3,), 0.2), abs=0.05)


def test_two_that_are_alike_are_named():
    found = separation(sets([[0.2, 0.2, 1.0], [0.2, 0.2, 1.0], [1.0, 1.0, 0.2]]))
    assert found.alike() == [(0, 1)]
    (sentence,) = found.sentences(NAMES)
    assert sentence.startswith("these clusters cannot be told apart: 'a' and 'b' (on 'a' its own model has loss 0.")
    assert sentence.endswith("join them, give more data, or pre-train longer")


def test_a_model_that_is_better_everywhere_tells_nothing_apart():
    assert separation(sets([[0.5, 0.5], [0.2, 0.2]])).alike() == [(0, 1)]


def test_a_hard_cluster_is_taken_for_an_easy_one():
    losses = [[0.2, 2.0], [0.9, 1.5]]  # the model of b is better on the easy set a than on its own
    found = separation(sets(losses))
    assert found.mistaken() == [(1, 0)]
    (sentence,) = found.sentences(NAMES[:2])
    assert "will be mistaken: 'b' for 'a'" in sentence
    assert sentence.endswith("--set measures=relative")
    assert found.sentences(NAMES[:2], relative=True) == []  # that is the remedy


def test_a_difference_of_a_hair_is_no_warning():
    assert separation(sets([[0.30, 0.60], [0.301, 0.302]])).sentences(NAMES[:2]) == []


def test_hospitals_that_are_the_same():
    """The same patients behind three names: nothing can tell them apart."""
    table = Table("breast-cancer", "malignant", lambda columns: torch.arange(len(columns["malignant"])).numpy() % 3)
    instance = ProblemInstance.of(
        Problem(model="mlp", clusters=table, settings={"batch_size": 16, "separate_epochs": 2})
    )
    (sentence, *_) = instance.warnings(instance.separation(instance.pretrain()))
    assert sentence.startswith("these clusters cannot be told apart: ")
