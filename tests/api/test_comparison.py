"""Several algorithms and seeds: means, deviations, and who is better by how much."""

import io
import re
from statistics import fmean, stdev

import pytest
from matplotlib.figure import Figure

import cdfl
from cdfl.api.comparison import Difference

from .problems import QUICK, lines

SIZE = {"num_clients": 4, "num_uploads": 8, **QUICK}


@pytest.fixture(scope="module")
def comparison():
    return cdfl.compare(lines(), algorithms=["cdfl", "local"], seeds=3, **SIZE)


def test_every_algorithm_with_every_seed(comparison):
    assert (comparison.algorithms, comparison.seeds) == (["cdfl", "local"], [0, 1, 2])
    assert [(run.algorithm, run.seed) for run in comparison.runs][:2] == [("cdfl", 0), ("local", 0)]
    alone = cdfl.run(lines(), seed=2, **SIZE)
    together = next(run for run in comparison.runs if (run.algorithm, run.seed) == ("cdfl", 2))
    assert together.summary.after == pytest.approx(alone.summary.after, rel=1e-4)


def test_means_and_differences(comparison):
    values = [run.summary.after for run in comparison.runs if run.algorithm == "cdfl"]
    assert comparison.mean("cdfl") == pytest.approx(fmean(values))
    assert comparison.deviation("cdfl") == pytest.approx(stdev(values))
    difference = comparison.difference("cdfl", "local")
    assert difference.each[0] == comparison.values("local")[0] - comparison.values("cdfl")[0]  # lower is better
    assert difference.mean == pytest.approx(comparison.mean("local") - comparison.mean("cdfl"))
    assert comparison.difference("local", "cdfl").mean == -difference.mean
    assert comparison.best == ("cdfl" if difference.mean > 0 else "local")


def test_better_is_better_whichever_direction():
    assert Difference({0: 0.1, 1: 0.3}).wins == 2
    words = "by 0.200 ± 0.141 on average; better with"
    assert repr(Difference({0: 0.1, 1: 0.3})) == f"Difference(better {words} 2 of 2 seeds)"
    assert repr(Difference({0: -0.1, 1: -0.3})) == f"Difference(worse {words} 0 of 2 seeds)"
    accurate = cdfl.compare("breast-cancer-3", algorithms="local", seeds=[4], num_uploads=2, **QUICK)
    assert accurate.higher_is_better
    assert accurate.best == "local"
    assert accurate.deviation("local") == 0.0


def test_it_says_its_metric(comparison):
    first, header, *rows = repr(comparison).splitlines()
    assert first == "lines, 3 seeds: mean and deviation of held-out rmse (lower is better)"
    assert re.split("  +", header) == [
        "algorithm",
        "old model",
        "own training",
        "new model",
        "clusters",
        "KL",
    ]  # no experts are served
    assert [row.split()[0] for row in rows[:2]] == ["cdfl", "local"]
    assert rows[1].endswith("-")  # local estimates nothing
    assert rows[2] == "lines, 3 seeds: mean and deviation of held-out r2"
    assert re.split("  +", rows[3]) == ["algorithm", "old model", "own training", "new model", "clusters"]
    assert f"{comparison.mean('local', metric='r2'):.3f} ± {comparison.deviation('local', metric='r2'):.3f}" in rows[5]
    page = comparison._repr_html_()
    assert page.count("<caption>lines, 3 seeds") == 2
    assert "rmse (lower is better)</caption>" in page


def test_every_metric_can_be_asked_for(comparison):
    assert comparison.metrics == {"rmse": False, "r2": True}
    scores = {run.seed: run.summary.more["r2"]["after"] for run in comparison.runs if run.algorithm == "cdfl"}
    assert comparison.values("cdfl", metric="r2") == scores
    assert comparison.values("cdfl", metric="rmse") == comparison.values("cdfl")
    assert comparison.values("cdfl", "divergence", metric="r2") == comparison.values("cdfl", "divergence")
    higher = comparison.difference("cdfl", "local", metric="r2")
    assert higher.each[1] == scores[1] - comparison.values("local", metric="r2")[1]  # higher is better
    assert list(higher.each) == [0, 1, 2]
    labels = [axes.get_ylabel() for axes in (comparison.plot().axes[0], comparison.plot(metric="r2").axes[0])]
    assert labels == ["rmse (lower is better), held-out data", "r2, held-out data"]
    with pytest.raises(ValueError, match=r"there is no metric 'rsme'; there are rmse, r2; did you mean rmse"):
        comparison.mean("cdfl", metric="rsme")
    with pytest.raises(ValueError, match=r"there is no column 'befor'; there are held, .*; did you mean before\?"):
        comparison.mean("cdfl", "befor")


def test_runs_that_cannot_be_compared(comparison):
    runs = comparison.runs
    with pytest.raises(ValueError, match="there are 2 runs of cdfl with seed 0; expected one"):
        cdfl.Comparison([runs[0], runs[0]])
    other = cdfl.run(lines(name="other"), **SIZE)
    with pytest.raises(ValueError, match="the runs are of lines and other; expected one problem"):
        cdfl.Comparison([*runs, other])
    other = cdfl.run(lines(metrics=["mae"]), algorithm="fedasync", **SIZE)
    with pytest.raises(ValueError, match="the runs are scored by rmse, r2 and by mae; expected the same metrics"):
        cdfl.Comparison([*runs, other])


def test_frame_and_picture(comparison):
    frame = comparison.to_frame()
    assert len(frame) == 6
    assert {"algorithm", "seed", "after", "r2 after"} <= set(frame.columns)
    assert set(frame["metric"]) == {"rmse"}
    assert not any(isinstance(value, dict) for value in frame.iloc[0])
    figure = comparison.plot()
    assert isinstance(figure, Figure)
    assert {text.get_text() for text in figure.axes[0].texts} == {"cdfl", "local"}
    figure.savefig(io.BytesIO())


def test_saved_and_loaded(comparison, tmp_path):
    comparison.save(tmp_path / "all")
    again = cdfl.load(tmp_path / "all", model=lines())
    assert repr(again) == repr(comparison)
    assert list(again.runs[0].cluster_models) == ["up", "down"]
    with pytest.raises(FileExistsError, match="is not empty; name a new folder"):
        comparison.save(tmp_path / "all")
    made = cdfl.compare(lines(), algorithms=["cdfl"], seeds=1, out=tmp_path / "out", **SIZE)
    assert repr(cdfl.load(tmp_path / "out")) == repr(made)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithms": []}, r"algorithms are \[\] and seeds .*; expected at least one of each"),
        ({"algorithms": ["cdfll"]}, r"there is no algorithm 'cdfll'; .*; did you mean cdfl\?"),
        ({"seed": 3}, r"there is no option or setting 'seed'; did you mean seeds?\?"),
    ],
)
def test_mistakes(options, words):
    with pytest.raises(ValueError, match=words):
        cdfl.compare(lines(), **options)


def test_unknown_names(comparison):
    with pytest.raises(ValueError, match="there is no algorithm 'fedavg'; there are cdfl, local"):
        comparison.mean("fedavg")
