"""Numbers as Markdown; most of it is in doctests."""

import pytest

from experiments.harness import RunKey
from experiments.harness.table1_rows import EVERY_ROW, Figure
from experiments.harness.tables import NOT_RUN, counts_table, distance, earlier, provenance, spread, stand_ins
from tests.experiments.small import HEADER, empty, keep, table


def test_distances_are_in_published_deviations():
    assert distance([0.78, 0.80], Figure(0.8, 0.005)) == pytest.approx(-2)
    assert distance([], Figure(0.8, 0.005)) is None
    assert distance([0.8], None) is None


def test_provenance_has_a_row_for_each_machine_and_precision(tmp_path):
    results = empty(tmp_path)
    keep(results, RunKey("fashion-mnist-4", "default"))
    keep(results, RunKey("fashion-mnist-4", "default", seed=1))
    gpu = HEADER | {
        "device": "cuda", "precision": "tf32", "machine": HEADER["machine"] | {"gpu": "H200"}, "commit": "def",
        "seconds": 20.0, "together": 1, "processes": 4,
    }  # fmt: skip
    keep(results, RunKey("fashion-mnist-2", "default"), gpu)
    _, cpu, other = table(provenance(results))
    assert cpu == ["2 cores of c", "2", "float32", "2", "d", "abc", "8", "fashion-mnist-4"]  # two runs in 8 s
    assert other == ["H200", "1", "tf32", "2", "d", "def", "5", "fashion-mnist-2"]  # 20 s on a quarter of the GPU
    one = results.trials("fashion-mnist-4", "default")[:1]
    assert table(provenance(one * 2))[1][1] == "1"
    assert provenance([]) == NOT_RUN


def test_stand_ins_are_those_of_the_rows():
    rows = {row.scenario: row for row in EVERY_ROW}
    assert stand_ins([rows["fashion-mnist-2"]]) == []
    (digits,) = stand_ins([rows["fashion-mnist-2"], rows["digit-recognition"]])
    assert [line[0] for line in table(digits)[1:]] == ["DigitRecognition"]
    (images,) = stand_ins([rows["cifar-10-2"], rows["cifar-10-4"], rows["mini-imagenet-32px-2"]])
    assert [line[0] for line in table(images)[1:]] == ["CIFAR-100", "MiniImageNet"]


def test_counts_leave_out_what_was_not_compared():
    text = counts_table("claim", "above", {"first": {"a (2)": "above", "a (3)": None}, "second": {"a (2)": None}})
    assert table(text) == [["claim", "above", "of", "others"], ["first", "1", "1", ""]]


def test_results_of_earlier_settings_are_listed(tmp_path):
    results = empty(tmp_path)
    keep(results, RunKey("fashion-mnist-4", "default", "fedsoft"))
    keep(results, RunKey("fashion-mnist-4", "default", "local"))
    assert earlier(results) == []
    for kept in results:
        kept.record["config"]["settings"]["rates"]["staleness_grace"] = 7.0
    (text,) = earlier(results)  # Local has no server
    assert table(text)[1:] == [["fashion-mnist-4", "default", "FedSoft-Async", "staleness_grace", "7.0", "20.0"]]


def test_spread_of_one_is_no_deviation():
    assert spread([0.25]) == ".250"
