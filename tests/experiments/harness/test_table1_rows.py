"""The published figures are those that the paper prints."""

import re

import pytest

from cdfl.scenarios import load_scenario
from experiments.harness.table1_rows import COLUMNS, EVERY_ROW, Figure, row_keys

# Table 1 as printed: CDFL before, after, cluster | FedSoft-Async before, after, cluster | Local
TABLE = """
FashionMNIST (2) .799±.011 .834±.003 .838±.007 .798±.012 .836±.003 .833±.008 .781±.019
FashionMNIST (3) .783±.015 .823±.003 .835±.003 .780±.014 .818±.003 .823±.006 .746±.053
FashionMNIST (4) .765±.020 .800±.006 .829±.005 .759±.021 .786±.007 .800±.017 .694±.072
FashionMNIST (6) .768±.020 .788±.018 .818±.010 .760±.024 .761±.023 .769±.051 .697±.074
CIFAR-100 (2) .370±.022 .392±.007 .417±.015 .369±.025 .397±.004 .416±.011 .280±.029
CIFAR-100 (3) .284±.033 .303±.029 .362±.032 .274±.031 .295±.008 .348±.024 .208±.033
CIFAR-100 (4) .360±.029 .376±.012 .432±.019 .337±.037 .361±.015 .430±.022 .261±.034
CIFAR-100 (6) .293±.033 .304±.008 .376±.019 .267±.043 .392±.017 .371±.035 .214±.038
MiniImagenet (2) .342±.020 .369±.003 .385±.006 .340±.026 .374±.003 .388±.002 .225±.030
MiniImagenet (3) .291±.029 .314±.018 .359±.008 .276±.033 .308±.011 .353±.004 .180±.028
MiniImagenet (4) .351±.026 .376±.014 .411±.007 .328±.035 .371±.009 .407±.008 .219±.029
MiniImagenet (6) .309±.029 .334±.007 .386±.011 .280±.038 .323±.011 .380±.013 .192±.029
DigitRecognition .835±.077 .883±.056 .890±.130 .846±.070 .890±.052 .870±.102 .820±.083
"""
PRINTED = {
    line[: re.search(r" \.", line).start()]: [
        Figure(*map(float, pair.split("±"))) for pair in re.findall(r"\.\S+", line)
    ]
    for line in TABLE.strip().splitlines()
}


def test_there_are_the_13_rows_in_their_order():
    assert [row.printed for row in EVERY_ROW] == list(PRINTED)


@pytest.mark.parametrize("row", EVERY_ROW, ids=lambda row: row.key)
def test_a_row_is_what_the_table_prints(row):
    figures = PRINTED[row.printed]
    assert [row.published("cdfl", column) for column in COLUMNS] == figures[:3]
    assert [row.published("fedsoft", column) for column in COLUMNS] == figures[3:6]
    assert row.published("local", "before") == row.published("local", "after") == figures[6]
    assert row.published("local", "cluster") is None
    assert row.published("fedasync", "after") is None


@pytest.mark.parametrize("row", EVERY_ROW, ids=lambda row: row.key)
def test_what_is_run_takes_the_printed_values_of_its_row(row):
    scenario = load_scenario(row.scenario)
    assert scenario.paper_row == row.key
    assert (row.stand_in is None) == row.scenario.startswith("fashion-mnist")
    if row.stand_in:
        assert row.title.endswith("†")
        assert "CIFAR-100" not in row.title


def test_runs_of_rows():
    keys = row_keys({"paper": ["cdfl"], "default": ["cdfl", "local"]}, 2, EVERY_ROW[:1])
    found = [(key.preset, key.algorithm, key.seed) for key in keys]
    assert found == [("paper", "cdfl", 0), ("paper", "cdfl", 1), ("default", "cdfl", 0), ("default", "cdfl", 1),
                     ("default", "local", 0), ("default", "local", 1)]  # fmt: skip
