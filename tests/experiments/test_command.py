"""What a command does around its runs: refuse, keep, report."""

from pathlib import Path

import pytest

from cdfl.paper import Cell, Results
from cdfl.paper import run as running
from cdfl.paper.command import Only, _cells, obey, perform
from cdfl.paper.experiment import list_experiments, load_experiment
from cdfl.paper.failure import UnfinishedError
from cdfl.paper.run import How

from .small import HEADER, empty, keep

SMOKE = How(device="cpu", smoke=True, commit="abc")


@pytest.mark.parametrize(
    ("how", "trials", "only", "option"),
    [
        (SMOKE, 2, Only(), "--trials"),
        (SMOKE, None, Only(rows=["fashion-mnist-4"]), "--rows"),
        (SMOKE, None, Only(presets=["paper"], algorithms=["cdfl"]), "--presets, --algorithms"),
        (How("cpu", processes=2), None, Only(), "--processes"),
        (How("cpu", together=2), None, Only(), "--together"),
        (How("cuda"), None, Only(), "--device"),
        (How(precision="bfloat16"), None, Only(), "--precision"),
    ],
)
def test_what_an_experiment_without_cells_would_not_look_at_is_refused_first(tmp_path, how, trials, only, option):
    with pytest.raises(
        ValueError, match=f"theorem1 is one computation on the CPU, without .* trials .*; leave {option} away"
    ):
        perform("theorem1", how, tmp_path / "out", trials, only, print)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["overhead", "theorem1"])
@pytest.mark.parametrize("smoke", [True, False])
def test_smoke_runs_and_results_are_told_apart_before_anything_runs(tmp_path, name, smoke):
    results: Results = empty(tmp_path)
    keep(results, Cell("fashion-mnist-4", "default"), HEADER | {"smoke": smoke})
    before = sorted(tmp_path.iterdir())
    told: list[str] = []
    with pytest.raises(ValueError, match=r"\(fashion-mnist-4.json\), which are not mixed.*; name another folder$"):
        perform(name, How("cpu", smoke=not smoke), tmp_path, tell=told.append)
    assert told == []
    assert sorted(tmp_path.iterdir()) == before


def test_names_are_looked_for_in_what_the_others_leave():
    cells = load_experiment("adaptation").cells(1)
    with pytest.raises(ValueError, match=r"in this experiment with --rows digits-4-sudden; there are default$"):
        Only(["digits-4-sudden"], ["paper-reading"]).of(cells)
    assert Only(["digits-4-sudden", "fashion-mnist-4-sudden"], ["paper-reading"]).of(cells)


def test_rows_that_smoke_leaves_away_are_no_option_that_was_given(tmp_path):
    with pytest.raises(ValueError, match=r"there is no algorithm 'local' in this experiment; there are cdfl, fedsoft$"):
        perform("overhead", How("cpu", smoke=True), tmp_path, only=Only(algorithms=["local"]))


@pytest.mark.parametrize("smoke", [True, False])
def test_rows_on_request_are_run_for_who_names_them_alone(smoke):
    table1 = load_experiment("table1")
    default = {cell.scenario for cell in _cells(table1, How(smoke=smoke), 1, Only())}
    assert default
    assert not default & set(table1.on_request)
    named = _cells(table1, How(smoke=smoke), 1, Only(["cifar-100-4"]))
    assert {cell.scenario for cell in named} == {"cifar-100-4"}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()], ids=["stopped", "failed"])
def test_what_is_done_is_reported_however_it_ends(tmp_path, monkeypatch, error):
    compare, calls = running.compare_events, []

    def ended(*given, **options):
        calls.append(given)
        if len(calls) == 2:
            raise error
        return compare(*given, **options)

    monkeypatch.setattr(running, "compare_events", ended)
    told: list[str] = []
    only = Only(algorithms=["fedsoft", "cdfl"])
    with pytest.raises((KeyboardInterrupt, UnfinishedError)):  # two rows: two groups
        perform("overhead", SMOKE, tmp_path, only=only, tell=told.append)
    assert len(calls) == 2
    text = (tmp_path / "overhead.md").read_text()
    assert "FashionMNIST (2)" in text
    assert "FashionMNIST (6)" not in text
    assert (tmp_path / "overhead.png").exists()
    stopped = ["2 of 4 cells are kept, 2 are missing", "the same command runs what is missing"]
    assert [line for line in told if line in stopped] == (stopped if isinstance(error, KeyboardInterrupt) else [])


@pytest.mark.parametrize("name", ["list", "readme"])
@pytest.mark.parametrize(
    ("how", "out", "trials", "only", "option"),
    [
        (How(), None, None, Only(rows=["foo"]), "--rows"),
        (How(), None, 1, Only(presets=["paper"], algorithms=["cdfl"]), "--presets, --algorithms, --trials"),
        (How("cuda", "tf32", None, 2, 2, smoke=True), Path("x"), None, Only(),
         "--together, --processes, --precision, --out, --smoke, --device"),
    ],
)  # fmt: skip
def test_what_has_no_rows_to_run_refuses_options_of_runs(name, how, out, trials, only, option):
    told: list[str] = []
    with pytest.raises(ValueError, match=rf"^{name} .*; leave {option} away$"):
        obey(name, how, out, trials, only, [], told.append)
    assert told == []


def test_results_are_copied_for_the_pages_alone():
    for name in ("list", "table1"):
        with pytest.raises(ValueError, match="; leave --add away"):
            obey(name, How(), None, None, Only(), [Path("other")])


def test_nothing_is_reported_where_nothing_was_done(tmp_path, monkeypatch):
    def stopped(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "compare_events", stopped)
    with pytest.raises(KeyboardInterrupt):
        perform("overhead", SMOKE, tmp_path / "out", tell=lambda line: None)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [experiment.name for experiment in list_experiments() if experiment.cells(1)])
def test_any_part_of_an_experiment_can_be_reported(name, tmp_path):
    """As far as it came when it was stopped: its first cell, and its last one alone."""
    experiment = load_experiment(name)
    for place in (0, -1):
        results: Results = empty(tmp_path / str(place))
        cell: Cell = experiment.cells(1)[place]
        keep(results, cell)
        assert experiment.report(results)
        assert experiment.verdict(results)
        experiment.draw(results, results.folder)
