"""Pictures show what their results say, say what they show, and are the same files every time."""

import re
from itertools import chain

import pytest
from matplotlib import pyplot

from cdfl.paper import EVERY_ROW, Cell, Results
from cdfl.paper.experiment import list_experiments, load_experiment
from cdfl.paper.figures import COLORS, GREY, PALE, SMOKE, figure, legend, means, rows_below
from cdfl.paper.folder import experiments_folder
from cdfl.paper.staleness import staleness
from cdfl.sim.metrics import staleness_histogram

from .small import HEADER, empty, keep, keep_theorem

ABLATIONS = load_experiment("ablations").draw.__globals__
READING = load_experiment("reading").draw.__globals__
RESULTS = Results(experiments_folder() / "results")


@pytest.fixture
def axes():
    drawn, axes = pyplot.subplots(ncols=2)
    yield axes
    pyplot.close(drawn)


def test_a_colour_means_one_algorithm():
    assert len({*COLORS.values(), GREY, PALE}) == len(COLORS) + 2


def test_a_legend_has_the_labels_of_all_axes_once(axes):
    axes[0].plot([1], [1], label="CDFL")
    axes[1].plot([1], [1], label="CDFL")
    axes[1].plot([1], [1], label="Local")
    legend(axes[0], ncols=2)
    assert [text.get_text() for text in axes[0].figure.legends[0].get_texts()] == ["CDFL", "Local"]


def test_means_have_deviations_where_there_are_trials(axes):
    means(axes[0], [0, 1, 2], [[0.5, 0.7], [], [0.9]])
    line, _, (bars,) = axes[0].containers[0]
    assert line.get_xdata().tolist() == [0, 2]
    assert line.get_ydata().tolist() == [0.6, 0.9]
    assert [round(bar[1, 1] - bar[0, 1], 3) for bar in bars.get_segments()] == [0.283, 0.0]  # twice sqrt(.02)


def test_all_rows_fit_below_an_axis(axes):
    rows_below(axes[0], EVERY_ROW)
    numbers, names = ([label.get_text() for label in axes[0].get_xticklabels(minor=minor)] for minor in (False, True))
    assert numbers == ["(2)", "(3)", "(4)", "(6)"] * 3 + [""]
    assert names == ["FashionMNIST", "CIFAR-10 †", "MiniImageNet\n32x32 †", "digits\nwith fewer plates †"]


def test_the_axis_of_the_reading_cuts_nothing(axes):
    READING["_show_distances"](axes[0], [-110.0, 6.0])
    low, high = axes[0].get_xlim()
    assert low < -110
    assert 6 < high < 100


def test_every_question_of_the_ablations_has_its_panel():
    for scenario in ABLATIONS["SCENARIOS"]:
        assert {line[0] for line in ABLATIONS["_lines"](scenario)} == set(chain(*ABLATIONS["PANELS"]))


def test_every_panel_of_the_ablations_names_its_preset(tmp_path):
    results = empty(tmp_path)
    for cell in load_experiment("ablations").cells(1):
        keep(results, cell)
    load_experiment("ablations").draw(results, tmp_path)
    shown = re.findall(r"<text [^>]*>([^<]*)</text>", (tmp_path / "ablations-fashion-mnist-4.svg").read_text())
    assert shown.count("paper-reading") == 9
    assert shown.count("default") == 1  # of time models, beside those of the other preset
    assert shown[shown.index("default") - 1] == "time model,"
    assert shown.count("accuracy, FashionMNIST") == 2


def test_staleness_asked_again_is_that_of_the_runs():
    there = [kept for kept in RESULTS if kept.cell.scenario in ABLATIONS["SCENARIOS"]]
    assert there
    for kept in there:
        width = kept.record["config"]["scenario"]["num_clients"] // 8
        assert staleness_histogram(staleness(kept), width) == kept.end["staleness"], kept.cell


@pytest.mark.parametrize("name", [experiment.name for experiment in list_experiments()])
def test_pictures_of_smoke_runs_say_so(name, tmp_path):
    experiment = load_experiment(name)
    told = []
    for smoke in (True, False):
        folder = tmp_path / str(smoke)
        results = empty(folder)
        if experiment.measure is not None:
            keep_theorem(results, "0.01", "0.1", smoke=smoke)
        for cell in experiment.cells(1):
            if cell.scenario in (experiment.smoke_rows or [cell.scenario]) and cell.algorithm in ("cdfl", "fedsoft"):
                keep(results, cell, HEADER | {"smoke": smoke}, rounds=20 if name == "adaptation" else 6)
        drawn = experiment.draw(results, folder)
        told.append([SMOKE in (folder / f"{picture}.svg").read_text() for picture in drawn])
    assert told[0]
    assert all(told[0])
    assert not any(told[1])


def test_the_same_picture_is_the_same_file(tmp_path):
    for place in ("first", "again"):
        results = empty(tmp_path / place)
        keep(results, Cell("fashion-mnist-4", "paper-reading"))
        keep(results, Cell("fashion-mnist-4", "paper-reading", "fedsoft"))
        load_experiment("over_time").draw(results, results.folder)
    for ending in ("png", "svg"):
        first, again = (tmp_path / place / f"over_time-fashion-mnist.{ending}" for place in ("first", "again"))
        assert first.read_bytes() == again.read_bytes()


def test_a_picture_is_stored_in_two_formats(tmp_path):
    with figure(tmp_path, "empty", 2, 2) as axes:
        axes.set_title("nothing")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.png", "empty.svg"]
    assert "nothing" in (tmp_path / "empty.svg").read_text()
