"""Pictures show what their results say, say what they show, and are the same files every time."""

import re
from itertools import chain, combinations

import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.text import Text

from cdfl.paper import EVERY_ROW, Cell, Results
from cdfl.paper.experiment import list_experiments, load_experiment
from cdfl.paper.figures import COLORS, GREY, LABELS, PALE, SMOKE, STAND_IN, figure, legend, means, rows_below
from cdfl.paper.folder import experiments_folder
from cdfl.paper.staleness import staleness
from cdfl.sim.metrics import staleness_histogram

from .small import HEADER, empty, keep, keep_theorem

ADAPTATION = load_experiment("adaptation").draw.__globals__
ABLATIONS = load_experiment("ablations").draw.__globals__
OVER_TIME = load_experiment("over_time").draw.__globals__
READING = load_experiment("reading").draw.__globals__
TABLE1 = load_experiment("table1").draw.__globals__
RESULTS = Results(experiments_folder() / "results")
EXPERIMENTS = [experiment.name for experiment in list_experiments()]


@pytest.fixture
def axes():
    drawn, axes = pyplot.subplots(ncols=3)
    yield axes
    pyplot.close(drawn)


def texts(svg):
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg.read_text())


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


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_texts_are_whole_and_apart(name, tmp_path, monkeypatch):
    """In the pictures of the results that are there."""
    pictures = []

    def look(drawn, path, **_):
        shown = {}
        with monkeypatch.context() as patch:
            patch.setattr(Text, "draw", lambda text, _: shown.setdefault(id(text), text))
            drawn.draw_without_rendering()
        boxes = {
            text: text.get_window_extent().padded(-1)
            for text in shown.values()
            if text.get_visible() and text.get_text()
        }
        edges = drawn.bbox
        pictures.append(path.name)
        for text, box in boxes.items():
            assert edges.x0 < box.x0 < box.x1 < edges.x1, (path.name, text)
            assert edges.y0 < box.y0 < box.y1 < edges.y1, (path.name, text)
        straight = [text for text in boxes if text.get_rotation() in (0, 90)]  # the box of others is larger than they
        for one, other in combinations(straight, 2):
            assert not boxes[one].overlaps(boxes[other]), (path.name, one, other)

    monkeypatch.setattr(Figure, "savefig", look)
    assert load_experiment(name).draw(RESULTS, tmp_path)
    assert pictures


@pytest.mark.parametrize("place", ["title", "ylabel", "suptitle", "tick", "legend"])
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
                case "legend":
                    axes.plot([1], label=f"data{mark}")
                    legend(axes, ncols=1)
    assert STAND_IN not in texts(tmp_path / "picture.svg")
    assert texts(tmp_path / "picture †.svg").count(STAND_IN) == 1


def test_curves_have_a_preset_and_a_deviation_only_if_there_are_trials(tmp_path):
    for trials in (1, 2):
        results = empty(tmp_path / str(trials))
        for seed in range(trials):
            keep(results, Cell("fashion-mnist-4", "paper-reading", seed=seed), rounds=8)
        load_experiment("over_time").draw(results, results.folder)
        shown = texts(results.folder / "over_time-fashion-mnist.svg")
        assert f"paper-reading, trials: {trials}" in shown
        assert ("± SD" in shown) is (trials > 1)


def test_curves_begin_with_the_first_session(axes):
    row = next(row for row in EVERY_ROW if row.scenario == "fashion-mnist-6")
    OVER_TIME["_panels"](axes, RESULTS, row)
    after = OVER_TIME["curve"](RESULTS.trials(row.scenario, "paper-reading"), "sessions", "after")
    low, high = axes[0].get_ylim()
    assert low < after[0] < after[-1] < high


def test_distances_of_the_theorem_are_those_that_occur(tmp_path, monkeypatch):
    largest = [one["largest_distance"] for one in RESULTS.measured("theorem1")["rho"].values()]
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda own, *_, **__: drawn.append(own.axes[2].dataLim.x1))
    load_experiment("theorem1").draw(RESULTS, tmp_path)
    assert drawn == [max(largest)] * 2


def test_adaptation_shows_every_algorithm_that_was_run(axes):
    for own, preset in zip(axes, ADAPTATION["PRESETS"], strict=False):
        ADAPTATION["_panel"](own, RESULTS, "fashion-mnist-4-sudden", preset)
        points = [found.lines[0] for found in own.containers if len(found.lines[0].get_xdata())]
        run = [name for name in LABELS if RESULTS.trials("fashion-mnist-4-sudden", preset, name)]
        assert len(points) == 4 * len(run)
        assert {line.get_color() for line in points} == {COLORS[name] for name in run}


def test_names_of_values_are_turned_only_if_there_is_no_room(axes):
    for own, room in zip(axes, (45, 18), strict=False):
        ABLATIONS["_name_values"](own, ["500", "1000", "2000", "4000"], room)
    assert [own.get_xticklabels()[0].get_rotation() for own in axes[:2]] == [0, 45]


def test_table_1_shows_both_algorithms_in_both_presets(tmp_path):
    load_experiment("table1").draw(RESULTS, tmp_path)
    shown = texts(tmp_path / "table1.svg")
    for name in ("CDFL", "FedSoft-Async"):
        assert {f"{name}, paper-reading", f"{name}, default"} <= set(shown)


def test_rivals_of_any_row_are_drawn_seed_by_seed(tmp_path):
    results = empty(tmp_path)
    for seed, after in enumerate((0.5, 0.9)):
        keep(results, Cell("digit-recognition", "default", seed=seed), after=after)
    assert load_experiment("table1").draw(results, tmp_path) == []  # nobody to compare it with
    keep(results, Cell("digit-recognition", "default", "oracle", 1), after=0.8)
    assert load_experiment("table1").draw(results, tmp_path) == ["table1-rivals"]
    shown = texts(tmp_path / "table1-rivals.svg")
    assert "Oracle, default" in shown
    assert STAND_IN in shown
    row = next(row for row in EVERY_ROW if row.scenario == "digit-recognition")
    assert TABLE1["_gaps"](results, row, "default", "oracle") == pytest.approx([-0.1])


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
    shown = texts(tmp_path / "ablations-fashion-mnist-4.svg")
    assert shown.count("paper-reading") == 9
    assert shown.count("default") == 1  # of time models, beside those of the other preset
    assert shown[shown.index("default") - 1] == "time model,"
    assert shown.count("FashionMNIST") == 2


def test_staleness_asked_again_is_that_of_the_runs():
    there = [kept for kept in RESULTS if kept.cell.scenario in ABLATIONS["SCENARIOS"]]
    assert there
    for kept in there:
        width = kept.record["config"]["scenario"]["num_clients"] // 8
        assert staleness_histogram(staleness(kept), width) == kept.end["staleness"], kept.cell


@pytest.mark.parametrize("name", EXPERIMENTS)
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
