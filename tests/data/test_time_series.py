"""Windows of series: what is seen, what is predicted, and what stays together."""

import numpy as np
import pytest
import torch

from cdfl.data import DataError, Windows
from cdfl.json_values import jsonable

LONG = np.arange(320.0)
MANY = np.arange(240.0).reshape(10, 24)


def build(values, **changes):
    (cluster,) = Windows({"a": values}, **{"length": 4, **changes}).build(lambda source: None)
    return cluster.dataset


def everything(data):
    return torch.cat([data.train_inputs, data.test_inputs]), torch.cat([data.train_targets, data.test_targets])


@pytest.mark.parametrize("values", [LONG, MANY], ids=["one", "many"])
def test_a_target_follows_its_window(values):
    inputs, targets = everything(build(values, horizon=2))
    assert (inputs.shape[1], targets.shape[1], inputs.dtype) == (4, 2, torch.float32)
    assert torch.equal(inputs[:, 3] + 1, targets[:, 0])
    assert torch.equal(targets[:, 0] + 1, targets[:, 1])


def test_windows_do_not_cross_series_and_series_are_not_divided():
    data = build(MANY)
    inputs, _ = everything(data)
    assert len(inputs) == 10 * (24 - 5 + 1)
    days = [set((half[:, 0] // 24).tolist()) for half in (data.train_inputs, data.test_inputs)]
    assert not days[0] & days[1]
    assert all(int(row[0]) // 24 == int(row[3]) // 24 for row in inputs)


def test_no_step_of_a_long_series_is_seen_on_both_sides():
    data = build(LONG)
    seen = [
        set(torch.cat([inputs, targets], dim=1).flatten().tolist())
        for inputs, targets in (data.half("train"), data.half("test"))
    ]
    assert not seen[0] & seen[1]


def test_a_stride():
    assert len(everything(build(MANY, stride=5))[0]) == 10 * 4


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.zeros((2, 3, 4)), r"series 'a' has shape \[2, 3, 4\]; expected \(T,\), or \(N, T\) for several"),
        (np.array([1.0, np.nan] * 100), r"series 'a': value \[1\] is nan, as are 100 of 200 values; fill or drop them"),
        (np.zeros(40), r"'a' has 40 steps; expected at least 80, 16 parts of length \+ horizon = 5"),
        ([], r"series 'a' has 0 steps; expected at least 80"),
        (np.zeros((0, 9)), r"series 'a' has rows of 9 steps"),
        (np.zeros((9, 3)), r"series 'a' has rows of 3 steps; expected at least"),
        (["x"] * 40, "series 'a' does not hold numbers alone, or its rows have different lengths; expected numbers"),
        ([[1.0, 2.0], [1.0]], "series 'a' does not hold numbers alone"),
        (np.zeros((2, 30)), "cluster 'a' has 2 groups of samples; expected at least 4 to divide"),
    ],
)
def test_what_is_refused(values, words):
    with pytest.raises(DataError, match=words):
        build(values)


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="stride is 0; expected at least 1 step"):
        Windows({}, 3, stride=0)
    with pytest.raises(DataError, match="series are empty; expected for each cluster its series, by name"):
        Windows({}, 3).build(lambda source: None)


def test_a_run_with_nonsense_says_what_was_expected():
    """Before it reads data, a run counts the clusters and stores what they are made of."""
    with pytest.raises(DataError, match="series are of type list; expected for each cluster its series, by name"):
        _ = Windows([LONG, -LONG], 3).num_clusters
    with pytest.raises(DataError, match="series 'a' does not hold numbers alone, or its rows have different lengths"):
        jsonable(Windows({"a": [[1.0, 2.0], [1.0]]}, 3))


def test_what_is_stored():
    assert jsonable(Windows("power", 3)) == {
        "kind": "Windows", "series": "power", "length": 3, "horizon": 1, "stride": 1,
    }  # fmt: skip
    assert jsonable(Windows({"a": LONG}, 3))["series"] == {"a": [320]}


def test_italy(tmp_path):
    pytest.importorskip("sktime")
    from cdfl.data import load_source

    series = load_source("italy-power-demand")
    assert {name: values.shape for name, values in series.items()} == {
        "October to March": (547, 24), "April to September": (549, 24),
    }  # fmt: skip
    assert Windows("italy-power-demand", length=12).num_clusters == 2
