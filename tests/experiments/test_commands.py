"""What a command does around its runs: refuse, store, report."""

from pathlib import Path

import pytest

from experiments.commands import RunFilter, execute, keys_of, run_experiment
from experiments.harness import Results, RunKey
from experiments.harness import runner as running
from experiments.harness.runner import RunOptions, UnfinishedError
from experiments.registry import EXPERIMENTS, find_experiment
from tests.experiments.small import HEADER, empty, keep

pytestmark = pytest.mark.slow

SMOKE = RunOptions(device="cpu", smoke=True, commit="abc")


@pytest.mark.parametrize(
    ("options", "trials", "only", "option"),
    [
        (SMOKE, 2, RunFilter(), "--trials"),
        (SMOKE, None, RunFilter(rows=["fashion-mnist-4"]), "--rows"),
        (SMOKE, None, RunFilter(presets=["paper"], algorithms=["cdfl"]), "--presets, --algorithms"),
        (RunOptions("cpu", processes=2), None, RunFilter(), "--processes"),
        (RunOptions("cpu", together=2), None, RunFilter(), "--together"),
        (RunOptions("cuda"), None, RunFilter(), "--device"),
        (RunOptions(precision="bfloat16"), None, RunFilter(), "--precision"),
    ],
)
def test_options_that_an_experiment_without_runs_does_not_use_are_refused(tmp_path, options, trials, only, option):
    with pytest.raises(
        ValueError, match=f"theorem1 is one computation on the CPU, without .* trials .*; omit {option}"
    ):
        run_experiment("theorem1", options, tmp_path / "out", trials, only, print)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["overhead", "theorem1"])
@pytest.mark.parametrize("smoke", [True, False])
def test_smoke_runs_and_results_are_told_apart_before_anything_runs(tmp_path, name, smoke):
    results: Results = empty(tmp_path)
    keep(results, RunKey("fashion-mnist-4", "default"), HEADER | {"smoke": smoke})
    before = sorted(tmp_path.iterdir())
    told: list[str] = []
    with pytest.raises(ValueError, match=r"\(fashion-mnist-4.json\); .* need another folder: name one with --out$"):
        run_experiment(name, RunOptions("cpu", smoke=not smoke), tmp_path, tell=told.append)
    assert told == []
    assert sorted(tmp_path.iterdir()) == before


def test_a_name_must_fit_the_other_choices():
    keys = find_experiment("adaptation").run_keys(1)
    with pytest.raises(ValueError, match=r"in this experiment with --rows digits-4-sudden; there are default$"):
        RunFilter(["digits-4-sudden"], ["paper-reading"]).of(keys)
    assert RunFilter(["digits-4-sudden", "fashion-mnist-4-sudden"], ["paper-reading"]).of(keys)


def test_an_error_names_only_options_that_were_given(tmp_path):
    with pytest.raises(ValueError, match=r"there is no algorithm 'local' in this experiment; there are cdfl, fedsoft$"):
        run_experiment("overhead", RunOptions("cpu", smoke=True), tmp_path, only=RunFilter(algorithms=["local"]))


@pytest.mark.parametrize("smoke", [True, False])
def test_rows_on_request_run_only_if_they_are_named(smoke):
    table1 = find_experiment("table1")
    default = {key.scenario for key in keys_of(table1, RunOptions(smoke=smoke), 1, RunFilter())}
    assert default
    assert not default & set(table1.on_request)
    named = keys_of(table1, RunOptions(smoke=smoke), 1, RunFilter(["cifar-100-4"]))
    assert {key.scenario for key in named} == {"cifar-100-4"}


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
    only = RunFilter(algorithms=["fedsoft", "cdfl"])
    with pytest.raises((KeyboardInterrupt, UnfinishedError)):  # two rows: two groups
        run_experiment("overhead", SMOKE, tmp_path, only=only, tell=told.append)
    assert len(calls) == 2
    text = (tmp_path / "overhead.md").read_text()
    assert "FashionMNIST (2)" in text
    assert "FashionMNIST (6)" not in text
    assert (tmp_path / "overhead.png").exists()
    stopped = ["2 of 4 runs are stored, 2 are missing", "repeat the command to run what is missing"]
    assert [line for line in told if line in stopped] == (stopped if isinstance(error, KeyboardInterrupt) else [])


@pytest.mark.parametrize("name", ["list", "readme"])
@pytest.mark.parametrize(
    ("options", "out", "trials", "only", "option"),
    [
        (RunOptions(), None, None, RunFilter(rows=["foo"]), "--rows"),
        (RunOptions(), None, 1, RunFilter(presets=["paper"], algorithms=["cdfl"]), "--presets, --algorithms, --trials"),
        (RunOptions("cuda", "tf32", None, 2, 2, smoke=True), Path("x"), None, RunFilter(),
         "--together, --processes, --precision, --out, --smoke, --device"),
    ],
)  # fmt: skip
def test_what_has_no_rows_to_run_refuses_options_of_runs(name, options, out, trials, only, option):
    told: list[str] = []
    with pytest.raises(ValueError, match=rf"^{name} .*; omit {option}$"):
        execute(name, options, out, trials, only, [], told.append)
    assert told == []


def test_results_are_copied_for_the_pages_alone():
    for name in ("list", "table1"):
        with pytest.raises(ValueError, match="; omit --add"):
            execute(name, RunOptions(), None, None, RunFilter(), [Path("other")])


def test_nothing_is_reported_where_nothing_was_done(tmp_path, monkeypatch):
    def stopped(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "compare_events", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_experiment("overhead", SMOKE, tmp_path / "out", tell=lambda line: None)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [name for name, experiment in EXPERIMENTS.items() if experiment.run_keys(1)])
def test_any_part_of_an_experiment_can_be_reported(name, tmp_path):
    """As far as it came when it was stopped: its first run, and its last one alone."""
    experiment = find_experiment(name)
    for place in (0, -1):
        results: Results = empty(tmp_path / str(place))
        key: RunKey = experiment.run_keys(1)[place]
        keep(results, key)
        assert experiment.report(results)
        experiment.draw(results, results.folder)
