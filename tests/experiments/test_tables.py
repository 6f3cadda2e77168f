"""Numbers as Markdown; most of it is in doctests."""

import pytest

from cdfl.paper import Cell
from cdfl.paper.rows import Figure
from cdfl.paper.tables import distance, provenance, spread

from .small import HEADER, empty, keep


def test_distances_are_in_published_deviations():
    assert distance([0.78, 0.80], Figure(0.8, 0.005)) == pytest.approx(-2)
    assert distance([], Figure(0.8, 0.005)) is None
    assert distance([0.8], None) is None


def test_provenance_adds_up_seconds_machines_and_commits(tmp_path):
    results = empty(tmp_path)
    keep(results, Cell("fashion-mnist-4", "default"))
    keep(results, Cell("fashion-mnist-4", "default", seed=1))
    gpu = HEADER | {
        "device": "cuda", "precision": "tf32", "machine": HEADER["machine"] | {"gpu": "H200"}, "commit": "def",
        "seconds": 20.0, "together": 1, "processes": 4,
    }  # fmt: skip
    keep(results, Cell("fashion-mnist-2", "default"), gpu)
    # two of two cells in 8 s, and one in 20 s on a quarter of a GPU
    expected = "3 runs in about 13 s of the machine, up to 4 groups side by side (28 s added up); "
    expected += "2 cores of c (float32), torch 2, d; H200 (tf32), torch 2, d; commit abc, def. "
    assert provenance(results) == expected + "In tf32, not float32: fashion-mnist-2 with `default`.\n"
    keep(results, Cell("fashion-mnist-4", "default", seed=2))
    keep(results, Cell("fashion-mnist-4", "default", seed=3), gpu)
    assert "fashion-mnist-2 with `default`, fashion-mnist-4 with `default` (cdfl: 1 of 4 runs).\n" in provenance(
        results
    )
    one = results.trials("fashion-mnist-4", "default")[:1]  # its share of a group that was run together
    assert provenance(one * 2) == "1 run in 4 s; 2 cores of c (float32), torch 2, d; commit abc.\n"
    assert provenance([]) == "Nothing of it has been run yet.\n"


def test_spread_of_one_is_no_deviation():
    assert spread([0.25]) == ".250"
