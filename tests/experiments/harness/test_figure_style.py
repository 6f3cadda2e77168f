"""Pictures: means and rows on axes, notes below, two formats, the same file every time."""

import re

import pytest
from matplotlib import pyplot

from experiments.harness import EVERY_ROW
from experiments.harness.fedbuff_int8 import FedBuffInt8
from experiments.harness.figure_style import COLORS, GREY, LABELS, PALE, SMOKE, STAND_IN, figure, means, rows_below


@pytest.fixture
def axes():
    drawn, axes = pyplot.subplots(ncols=3)
    yield axes
    pyplot.close(drawn)


def texts(svg):
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg.read_text())


def test_a_colour_means_one_algorithm():
    assert len({*COLORS.values(), GREY, PALE}) == len(COLORS) + 2
    assert list(COLORS) == [name for name in LABELS if name != FedBuffInt8.name]  # it is in no picture


def test_means_have_deviations_where_there_are_trials(axes):
    means(axes[0], [0, 1, 2], [[0.5, 0.7], [], [0.9]])
    line, _, (bars,) = axes[0].containers[0]
    assert line.get_xdata().tolist() == [0, 2]
    assert line.get_ydata().tolist() == [0.6, 0.9]
    assert [round(bar[1, 1] - bar[0, 1], 3) for bar in bars.get_segments()] == [0.283, 0.0]  # twice sqrt(.02)


def test_places_of_means_can_be_along_the_other_axis(axes):
    means(axes[0], [3], [[0.5, 0.7]], across=True)
    line, _, (bars,) = axes[0].containers[0]
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([0.6], [3])
    assert bars.get_segments()[0][:, 1].tolist() == [3, 3]


def test_all_rows_fit_below_an_axis(axes):
    rows_below(axes[0], EVERY_ROW)
    numbers, names = ([label.get_text() for label in axes[0].get_xticklabels(minor=minor)] for minor in (False, True))
    assert numbers == ["(2)", "(3)", "(4)", "(6)"] * 3 + [""]
    assert names == ["FashionMNIST", "CIFAR-10 †", "MiniImageNet\n32x32 †", "digits\nwith fewer\nplates †"]


@pytest.mark.parametrize("place", ["title", "ylabel", "suptitle", "tick"])
def test_a_stand_in_is_explained_below(place, tmp_path):
    for mark in ("", " †"):
        with figure(tmp_path, f"picture{mark}", 2, 2) as axes:
            match place:
                case "title" | "ylabel":
                    axes.set(**{place: f"data{mark}"})
                case "suptitle":
                    axes.figure.suptitle(f"data{mark}")
                case "tick":
                    axes.set_xticks([0.4], [f"data{mark}"], minor=True)
    assert STAND_IN not in texts(tmp_path / "picture.svg")
    assert texts(tmp_path / "picture †.svg").count(STAND_IN) == 1


def test_a_picture_is_stored_in_two_formats(tmp_path):
    with figure(tmp_path, "empty", 2, 2) as axes:
        axes.set_title("nothing")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.png", "empty.svg"]
    assert "nothing" in (tmp_path / "empty.svg").read_text()


@pytest.mark.parametrize("smoke", [True, False])
def test_a_picture_of_a_smoke_run_says_so(tmp_path, smoke):
    with figure(tmp_path, "picture", 2, 2, smoke=smoke) as axes:
        axes.plot([1, 2])
    assert (SMOKE in texts(tmp_path / "picture.svg")) is smoke


def test_the_same_picture_is_the_same_file(tmp_path):
    for name in ("first", "again"):
        with figure(tmp_path, name, 2, 2) as axes:
            axes.plot([1, 2])
    for ending in ("png", "svg"):
        assert (tmp_path / f"first.{ending}").read_bytes() == (tmp_path / f"again.{ending}").read_bytes()
