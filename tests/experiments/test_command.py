"""What a command does around its runs: refuse, store, report."""

from pathlib import Path

import pytest

from experiments.command import Only, cells_of, execute, run_experiment
from experiments.harness import Cell, Results
from experiments.harness import runner as running
from experiments.harness.failures import UnfinishedError
from experiments.harness.runner import How
from experiments.registry import EXPERIMENTS, find_experiment
from tests.experiments.small import HEADER, empty, keep

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
def test_options_that_an_experiment_without_cells_does_not_use_are_refused(tmp_path, how, trials, only, option):
    with pytest.raises(
        ValueError, match=f"theorem1 is one computation on the CPU, without .* trials .*; omit {option}"
    ):
        run_experiment("theorem1", how, tmp_path / "out", trials, only, print)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["overhead", "theorem1"])
@pytest.mark.parametrize("smoke", [True, False])
def test_smoke_runs_and_results_are_told_apart_before_anything_runs(tmp_path, name, smoke):
    results: Results = empty(tmp_path)
    keep(results, Cell("fashion-mnist-4", "default"), HEADER | {"smoke": smoke})
    before = sorted(tmp_path.iterdir())
    told: list[str] = []
    with pytest.raises(ValueError, match=r"\(fashion-mnist-4.json\); .* need another folder: name one with --out$"):
        run_experiment(name, How("cpu", smoke=not smoke), tmp_path, tell=told.append)
    assert told == []
    assert sorted(tmp_path.iterdir()) == before


def test_a_name_must_fit_the_other_choices():
    cells = find_experiment("adaptation").cells(1)
    with pytest.raises(ValueError, match=r"in this experiment with --rows digits-4-sudden; there are default$"):
        Only(["digits-4-sudden"], ["paper-reading"]).of(cells)
    assert Only(["digits-4-sudden", "fashion-mnist-4-sudden"], ["paper-reading"]).of(cells)


def test_an_error_names_only_options_that_were_given(tmp_path):
    with pytest.raises(ValueError, match=r"there is no algorithm 'local' in this experiment; there are cdfl, fedsoft$"):
        run_experiment("overhead", How("cpu", smoke=True), tmp_path, only=Only(algorithms=["local"]))


@pytest.mark.parametrize("smoke", [True, False])
def test_rows_on_request_run_only_if_they_are_named(smoke):
    table1 = find_experiment("table1")
    default = {cell.scenario for cell in cells_of(table1, How(smoke=smoke), 1, Only())}
    assert default
    assert not default & set(table1.on_request)
    named = cells_of(table1, How(smoke=smoke), 1, Only(["cifar-100-4"]))
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
        run_experiment("overhead", SMOKE, tmp_path, only=only, tell=told.append)
    assert len(calls) == 2
    text = (tmp_path / "overhead.md").read_text()
    assert "FashionMNIST (2)" in text
    assert "FashionMNIST (6)" not in text
    assert (tmp_path / "overhead.png").exists()
    stopped = ["2 of 4 cells are stored, 2 are missing", "repeat the command to run what is missing"]
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
    with pytest.raises(ValueError, match=rf"^{name} .*; omit {option}$"):
        execute(name, how, out, trials, only, [], told.append)
    assert told == []


def test_results_are_copied_for_the_pages_alone():
    for name in ("list", "table1"):
        with pytest.raises(ValueError, match="; omit --add"):
            execute(name, How(), None, None, Only(), [Path("other")])


def test_nothing_is_reported_where_nothing_was_done(tmp_path, monkeypatch):
    def stopped(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "compare_events", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_experiment("overhead", SMOKE, tmp_path / "out", tell=lambda line: None)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [name for name, experiment in EXPERIMENTS.items() if experiment.cells(1)])
def test_any_part_of_an_experiment_can_be_reported(name, tmp_path):
    """As far as it came when it was stopped: its first cell, and its last one alone."""
    experiment = find_experiment(name)
    for place in (0, -1):
        results: Results = empty(tmp_path / str(place))
        cell: Cell = experiment.cells(1)[place]
        keep(results, cell)
        assert experiment.report(results)
        experiment.draw(results, results.folder)
