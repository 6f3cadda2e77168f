"""Cells that are missing are run, those that are there are not."""

import os
import re
import signal
import threading
import time
import weakref
from multiprocessing import active_children

import pytest
import torch

from cdfl.data import DataError
from cdfl.report import progress_display
from experiments.harness import Results, RunKey
from experiments.harness import runner as running
from experiments.harness.runner import RunOptions, UnfinishedError, run_missing
from tests.experiments.small import empty, keep

pytestmark = pytest.mark.slow

SMOKE = RunOptions(device="cpu", smoke=True, commit="abc")


SMALL = {"num_clients": 4, "num_uploads": 4, "local_epochs": 1, "shared_epochs": 1}


def run_keys(*algorithms: str, preset: str = "default", **changes: object) -> list[RunKey]:
    return [RunKey("fashion-mnist-2", preset, algorithm, 0, changes) for algorithm in algorithms]


def test_what_is_there_is_not_run_again(tmp_path):
    told: list[str] = []
    run_missing(run_keys("local"), Results(tmp_path), SMOKE, told.append)
    assert told[0] == "1 runs, 0 of them stored already"
    results = Results(tmp_path)
    kept = results.find(run_keys("local")[0])
    assert kept.end["uploads"] == 6
    assert (kept.record["commit"], kept.record["smoke"], kept.record["device"]) == ("abc", True, "cpu")
    assert kept.record["machine"]["torch"]
    before = (tmp_path / "fashion-mnist-2.json").read_bytes()
    told.clear()
    run_missing(run_keys("local"), results, SMOKE, told.append)
    assert told == ["1 runs, 1 of them stored already"]
    assert (tmp_path / "fashion-mnist-2.json").read_bytes() == before


def test_a_run_of_other_settings_is_repeated(tmp_path):
    results = Results(tmp_path)
    run_missing(run_keys("local"), results, SMOKE, lambda line: None)
    settings = results.find(run_keys("local")[0]).record["config"]["settings"]
    told: list[str] = []
    settings["rates"]["base_rate"] = 0.123  # of a server: Local has none
    run_missing(run_keys("local"), results, SMOKE, told.append)
    assert told == ["1 runs, 1 of them stored already"]
    settings["training"]["weight_decay"] = 0.123
    run_missing(run_keys("local"), results, SMOKE, told.append)
    assert told[1] == "1 runs, 0 of them stored already"
    assert results.find(run_keys("local")[0]).record["config"]["settings"]["training"]["weight_decay"] != 0.123


@pytest.mark.parametrize(
    ("together", "told_last"),
    [
        (2, r"2 of 3 runs are stored, 1 are missing; .*--together 1 loses less"),
        (1, r"1 of 3 runs are stored, 2 are missing$"),
    ],
)
def test_interrupted_it_says_what_is_kept_and_how_to_lose_less(tmp_path, monkeypatch, together, told_last):
    compare, calls = running.compare_events, []

    def interrupted(*given, **options):
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return compare(*given, **options)

    monkeypatch.setattr(running, "compare_events", interrupted)
    asked = [RunKey("digits-4", "default", "local", seed, SMALL) for seed in range(3)]
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_missing(asked, empty(tmp_path), RunOptions("cpu", together=together, commit="abc"), told.append)
    assert re.match(told_last, told[-1])


def test_interrupted_it_keeps_the_groups_that_are_done(tmp_path, monkeypatch):
    asked = [*run_keys("local"), *run_keys("local", learning_rate=0.002)]  # train differently: two groups
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
    assert told[0] == "2 runs, 1 of them stored already"
    assert calls == [1, 1, 1]
    assert len(list(Results(tmp_path))) == 2


def test_groups_hold_what_can_share_stacks_in_the_order_of_the_question():
    asked = [*run_keys("cdfl", "ifca"), *run_keys("cdfl", learning_rate=0.002), *run_keys("cdfl", base_rate=0.1)]
    resolved = [(key, running.resolve(key, "cpu")) for key in asked]
    groups = [[key for key, _ in group] for group in running._groups(resolved, None)]
    assert groups == [[asked[0], asked[1], asked[3]], [asked[2]]]
    assert [len(group) for group in running._groups(resolved, 2)] == [2, 1, 1]


def test_details_are_kept_where_an_experiment_looks_at_them(tmp_path):
    results = Results(tmp_path)
    asked = [RunKey("fashion-mnist-2", "default", seed=seed) for seed in (0, 1)]
    asked.append(RunKey("fashion-mnist-4-sudden", "default", "local"))
    run_missing(asked, results, SMOKE, lambda line: None)
    parts = [set(results.find(key).summary) & {"mixtures", "updates"} for key in asked]
    assert parts == [{"mixtures"}, set(), {"updates"}]


def test_literal_bars_are_run_without_a_warning(tmp_path):
    run_missing(
        run_keys("cdfl", preset="paper"), Results(tmp_path), SMOKE, lambda line: None
    )  # warnings are errors here
    assert len(list(Results(tmp_path))) == 1


def test_data_that_are_not_there_are_told_before_anything_runs(tmp_path):
    (tmp_path / "data" / "usps").mkdir(parents=True)
    (tmp_path / "data" / "usps" / "usps.bz2").touch()
    asked = [RunKey("digits-4", "default", changes=SMALL)]
    asked += [RunKey(scenario, "default") for scenario in ("fashion-mnist-2", "fashion-mnist-4", "digit-recognition")]
    told: list[str] = []
    with pytest.raises(DataError) as refused:
        run_missing(asked, Results(tmp_path / "out"), RunOptions("cpu", data_dir=tmp_path / "data"), told.append)
    lines = str(refused.value).splitlines()
    assert re.match(r"fashion-mnist is not in .*data; run `cdfl data fetch fashion-mnist --data-dir ", lines[0])
    assert lines[0].endswith("(needed by fashion-mnist-2, fashion-mnist-4)")
    assert [line.split()[0] for line in lines[1:4]] == ["mnist", "svhn", "ccpd"]  # usps is there
    assert lines[4:] == ["to run only the other rows: --rows digits-4"]  # --data-dir was given
    assert told == []
    assert not (tmp_path / "out").exists()


def test_where_data_may_be_is_told_to_who_did_not_say_it(tmp_path, monkeypatch):
    monkeypatch.setenv("CDFL_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError) as refused:
        run_missing(
            [RunKey("fashion-mnist-2", "default")], Results(tmp_path / "out"), RunOptions("cpu"), lambda line: None
        )
    first, second = str(refused.value).splitlines()
    assert "nowhere, and there is no such folder; run `cdfl data fetch fashion-mnist`, or fill" in first
    assert second == "if the data are in another folder, name it with --data-dir"


def test_the_commit_is_that_of_the_code_that_was_loaded(tmp_path, monkeypatch):
    told = iter(["first", "later", "later"])
    monkeypatch.setattr(running, "commit", lambda: next(told))
    asked = [RunKey("digits-4", "default", "local", changes=SMALL | {"learning_rate": rate}) for rate in (0.001, 0.002)]
    results = Results(tmp_path)
    run_missing(asked, results, RunOptions("cpu"), lambda line: None)
    assert [kept.record["commit"] for kept in results] == ["first", "first"]


def test_lines_come_by_the_clock_and_name_what_is_run(tmp_path, monkeypatch):
    monkeypatch.setattr(progress_display, "SECONDS_BETWEEN_LINES", 0.01)
    told: list[str] = []
    key = RunKey("digits-4", "default", "local", changes=SMALL | {"drift": {"kind": "paper", "rest": "uneven"}})
    run_missing([key], Results(tmp_path), RunOptions("cpu"), told.append)
    changed = " ".join(f"{name}={value}" for name, value in SMALL.items())
    assert told[1] == f'next: digits-4 default local {changed} drift={{"kind": "paper", "rest": "uneven"}} (1 run)'
    assert re.fullmatch(r"  reading data, \d+ s so far", told[2])
    assert any(re.fullmatch(rf"  \d+ of {SMALL['num_uploads']} uploads.*, \d+ s so far", line) for line in told)
    assert re.fullmatch(r"1 of 1: digits-4 default local .* \(1 run\), \d+ s", told[-1])


def test_data_of_what_is_there_already_are_not_asked_for(tmp_path):
    results = empty(tmp_path)
    keep(results, run_keys("local")[0])
    run_missing(run_keys("local"), results, RunOptions("cpu", data_dir=tmp_path / "nothing"), lambda line: None)
    with pytest.raises(DataError, match="fashion-mnist is not in"):
        run_missing(run_keys("ifca"), results, RunOptions("cpu", data_dir=tmp_path / "nothing"), lambda line: None)


def test_a_group_that_fails_costs_no_other_in_one_process_or_two(tmp_path):
    """A broken file, which only reading it can show."""
    (tmp_path / "data" / "fashion-mnist").mkdir(parents=True)
    (tmp_path / "data" / "fashion-mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"no images")
    broken = RunKey("fashion-mnist-2", "default", "local")
    good = [RunKey("digits-4", "default", "local", changes=SMALL | {"learning_rate": rate}) for rate in (0.001, 0.002)]
    ends = []
    for processes in (1, 2):
        told: list[str] = []
        results = Results(tmp_path / str(processes))
        options = RunOptions("cpu", data_dir=tmp_path / "data", processes=processes)
        with pytest.raises(UnfinishedError) as failed:
            run_missing([broken, *good], results, options, told.append)
        first, second = str(failed.value).splitlines()
        assert first.startswith("1 of 3 groups failed")
        assert re.match(r"  fashion-mnist-2 default local \(1 run\): DataError: .*idx3-ubyte.gz is truncated", second)
        assert sum("fashion-mnist-2 default local (1 run) failed" in line for line in told) == 1
        assert results.find(broken) is None
        ends.append([results.find(key).end for key in good])
    assert ends[0] == ends[1]
    with pytest.raises(UnfinishedError, match="1 of 1 groups failed"):  # the rest is not run again
        run_missing([broken, *good], results, RunOptions("cpu", data_dir=tmp_path / "data"), told.append)


@pytest.mark.parametrize(
    ("error", "hint", "trace"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True, False),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), True, False),
        (MemoryError(), True, False),
        (KeyError("a mistake of ours"), False, True),
        (ModuleNotFoundError("No module named 'sklearn'", name="sklearn"), False, False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_told_of_a_failure(tmp_path, monkeypatch, error, hint, trace):
    def failing(*given, **options):
        raise error

    monkeypatch.setattr(running, "compare_events", failing)
    told: list[str] = []
    with pytest.raises(UnfinishedError, match=type(error).__name__) as failed:
        run_missing(run_keys("local"), Results(tmp_path), SMOKE, told.append)
    assert ("use a smaller --together or --processes" in str(failed.value)) is hint
    assert ("Traceback" in told[-1]) is trace
    assert "Traceback" not in str(failed.value)
    assert ("pip install" in str(failed.value)) is isinstance(error, ModuleNotFoundError)


def test_nothing_of_a_failed_group_stays_in_memory(tmp_path, monkeypatch):
    held = []

    def failing(*given, **options):
        models = torch.zeros(4)
        models.itself = models
        held.append(weakref.ref(models))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(running, "compare_events", failing)
    with pytest.raises(UnfinishedError):
        run_missing(run_keys("local"), Results(tmp_path), SMOKE, lambda line: None)
    assert held[0]() is None


def test_a_process_that_the_system_ends(tmp_path):
    def kill() -> None:
        while len(found := active_children()) < 2:
            time.sleep(0.01)
        time.sleep(0.3)  # the pool knows them all now, and none of them is done
        os.kill(found[0].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    asked = [*run_keys("local"), *run_keys("local", learning_rate=0.002)]
    with pytest.raises(
        UnfinishedError, match=r"[12] of 2 groups failed(?s:.*)BrokenProcessPool(?s:.*)smaller --together"
    ):
        run_missing(asked, Results(tmp_path), RunOptions("cpu", smoke=True, processes=2), lambda line: None)
    killer.join()
