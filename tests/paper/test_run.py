"""Cells that are missing are run, those that are there are not."""

import pytest

from cdfl.paper import Cell, Results
from cdfl.paper import run as running
from cdfl.paper.run import How, run_missing

SMOKE = How(device="cpu", smoke=True, commit="abc")


def cells(*algorithms: str, preset: str = "default", **changes: object) -> list[Cell]:
    return [Cell("fashion-mnist-2", preset, algorithm, 0, changes) for algorithm in algorithms]


def test_what_is_there_is_not_run_again(tmp_path):
    told: list[str] = []
    run_missing(cells("local"), Results(tmp_path), SMOKE, told.append)
    assert told[0] == "1 cells, 0 of them are there"
    results = Results(tmp_path)
    kept = results.find(cells("local")[0])
    assert kept.end["uploads"] == 6
    assert (kept.record["commit"], kept.record["smoke"], kept.record["device"]) == ("abc", True, "cpu")
    assert kept.record["machine"]["torch"]
    before = (tmp_path / "fashion-mnist-2.json").read_bytes()
    told.clear()
    run_missing(cells("local"), results, SMOKE, told.append)
    assert told == ["1 cells, 1 of them are there"]
    assert (tmp_path / "fashion-mnist-2.json").read_bytes() == before


def test_a_cell_of_other_settings_is_run_again(tmp_path):
    results = Results(tmp_path)
    run_missing(cells("local"), results, SMOKE, lambda line: None)
    settings = results.find(cells("local")[0]).record["config"]["hyperparams"]
    told: list[str] = []
    settings["base_rate"] = 0.123  # of a server, which it has not
    run_missing(cells("local"), results, SMOKE, told.append)
    assert told == ["1 cells, 1 of them are there"]
    settings["weight_decay"] = 0.123
    run_missing(cells("local"), results, SMOKE, told.append)
    assert told[1] == "1 cells, 0 of them are there"
    assert results.find(cells("local")[0]).record["config"]["hyperparams"]["weight_decay"] != 0.123


def test_interrupted_it_keeps_the_groups_that_are_done(tmp_path, monkeypatch):
    asked = [*cells("local"), *cells("local", learning_rate=0.002)]  # train differently: two groups
    compare, calls = running.compare_events, []

    def interrupted(*given, **options):
        calls.append(len(given[0]))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return compare(*given, **options)

    monkeypatch.setattr(running, "compare_events", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_missing(asked, Results(tmp_path), SMOKE, lambda line: None)
    assert len(list(Results(tmp_path))) == 1
    told: list[str] = []
    run_missing(asked, Results(tmp_path), SMOKE, told.append)
    assert told[0] == "2 cells, 1 of them are there"
    assert calls == [1, 1, 1]
    assert len(list(Results(tmp_path))) == 2


def test_groups_hold_what_can_share_stacks_in_the_order_of_the_question():
    asked = [*cells("cdfl", "ifca"), *cells("cdfl", learning_rate=0.002), *cells("cdfl", base_rate=0.1)]
    resolved = [(cell, running.resolve(cell, "cpu")) for cell in asked]
    groups = [[cell for cell, _ in group] for group in running._groups(resolved, None)]
    assert groups == [[asked[0], asked[1], asked[3]], [asked[2]]]
    assert [len(group) for group in running._groups(resolved, 2)] == [2, 1, 1]


def test_details_are_kept_where_an_experiment_looks_at_them(tmp_path):
    results = Results(tmp_path)
    asked = [Cell("fashion-mnist-2", "default", seed=seed) for seed in (0, 1)]
    asked.append(Cell("fashion-mnist-4-sudden", "default", "local"))
    run_missing(asked, results, SMOKE, lambda line: None)
    parts = [set(results.find(cell).digest) & {"mixtures", "updates"} for cell in asked]
    assert parts == [{"mixtures"}, set(), {"updates"}]


def test_literal_bars_are_run_without_a_warning(tmp_path):
    run_missing(cells("cdfl", preset="paper"), Results(tmp_path), SMOKE, lambda line: None)  # warnings are errors here
    assert len(list(Results(tmp_path))) == 1


def test_processes_side_by_side_give_the_same(tmp_path):
    asked = [*cells("local"), *cells("local", learning_rate=0.002)]
    run_missing(asked, Results(tmp_path / "one"), SMOKE, lambda line: None)
    two = How(device="cpu", smoke=True, commit="abc", processes=2)
    run_missing(asked, Results(tmp_path / "two"), two, lambda line: None)
    one, other = Results(tmp_path / "one"), Results(tmp_path / "two")
    for cell in asked:
        assert one.find(cell).end == other.find(cell).end
