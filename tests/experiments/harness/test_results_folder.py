"""A folder of results: what is found again, and what is not."""

import json
import re
import threading

import pytest

from experiments.harness import Results, RunKey, resolve
from experiments.harness.result_files import locked
from tests.experiments.small import HEADER, empty, keep, keep_theorem

RUN_KEY = RunKey("fashion-mnist-4", "default")


def test_what_was_kept_is_found_again(tmp_path):
    results = empty(tmp_path)
    for seed in (1, 0):
        keep(results, RunKey("fashion-mnist-4", "default", seed=seed), after=0.5 + seed / 10)
    keep(results, RunKey("fashion-mnist-4", "default", changes={"proxy": 500}), after=0.9)
    keep(results, RunKey("fashion-mnist-4", "paper"), after=0.8)
    again = Results(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.json*")) == ["fashion-mnist-4.json"]
    assert again.values("after", "fashion-mnist-4", "default") == [0.5, 0.6]  # in the order of the seeds
    assert again.values("after", "fashion-mnist-4", "default", changes={"proxy": 500}) == [0.9]
    assert again.values("after", "fashion-mnist-4", "paper") == [0.8]
    assert again.values("after", "fashion-mnist-4", "default", "ifca") == []
    found = again.find(RUN_KEY)
    assert found is not None
    assert found.record["commit"] == "abc"
    assert found.summary == results.find(RUN_KEY).summary
    assert again.find(RunKey("fashion-mnist-4", "default", seed=2)) is None


def test_who_does_not_estimate_may_be_told_to_estimate_otherwise(tmp_path):
    results = empty(tmp_path)
    for algorithm, same in (("cdfl", False), ("ifca", True)):
        keep(results, RunKey("fashion-mnist-4", "default", algorithm))
        kept = results.find(RunKey("fashion-mnist-4", "default", algorithm))
        sharper = RunKey("fashion-mnist-4", "default", algorithm, changes={"sharpness": 3.0})
        assert kept.is_of(resolve(sharper, "cpu")) is same


def test_what_an_algorithm_settles_itself_may_be_told_otherwise(tmp_path):
    results = empty(tmp_path)
    for algorithm, same in (("cdfl", False), ("oracle", False), ("fedasync", True)):
        keep(results, RunKey("fashion-mnist-4", "default", algorithm))
        kept = results.find(RunKey("fashion-mnist-4", "default", algorithm))
        towards = RunKey("fashion-mnist-4", "default", algorithm, changes={"cluster_step": "towards"})
        assert kept.is_of(resolve(towards, "cpu")) is same
        faster = RunKey("fashion-mnist-4", "default", algorithm, changes={"base_rate": 0.3})
        assert not kept.is_of(resolve(faster, "cpu"))


def test_runs_of_a_group_share_what_is_true_of_all(tmp_path):
    results = empty(tmp_path)
    keep(results, RUN_KEY)
    keep(results, RunKey("fashion-mnist-4", "default", "ifca"))
    keep(results, RunKey("fashion-mnist-4", "default", "oracle"), HEADER | {"commit": "def"})
    runs = json.loads((tmp_path / "fashion-mnist-4.json").read_text())["runs"]
    assert [len(run["cells"]) for run in runs] == [2, 1]
    assert [run["commit"] for run in runs] == ["abc", "def"]


def test_a_repeated_run_takes_the_place_of_the_old_one(tmp_path):
    results = empty(tmp_path)
    keep(results, RUN_KEY, after=0.1)
    keep(results, RUN_KEY, HEADER | {"commit": "def"}, after=0.2)
    assert Results(tmp_path).values("after", "fashion-mnist-4", "default") == [0.2]
    assert len(json.loads((tmp_path / "fashion-mnist-4.json").read_text())["runs"]) == 1


def test_results_of_another_machine_are_added_and_take_the_place_of_old_ones(tmp_path):
    here, there = empty(tmp_path / "here"), empty(tmp_path / "there")
    keep(here, RUN_KEY, after=0.1)
    keep(here, RunKey("fashion-mnist-4", "default", seed=1), after=0.3)
    keep(there, RUN_KEY, HEADER | {"commit": "def"}, after=0.2)
    keep(there, RunKey("digits-4", "default"), after=0.4)
    here.take(there)
    for results in (here, Results(tmp_path / "here")):
        assert results.values("after", "fashion-mnist-4", "default") == [0.2, 0.3]
        assert results.values("after", "digits-4", "default") == [0.4]


def test_what_was_measured_on_another_machine_is_added_too(tmp_path):
    here, there = empty(tmp_path / "here"), empty(tmp_path / "there")
    keep_theorem(there, "0.1", "1.0")
    here.take(there)
    assert Results(tmp_path / "here").measured("theorem1") == Results(tmp_path / "there").measured("theorem1")
    keep_theorem(there, "10.0")  # of the same settings: beside the others
    part = empty(tmp_path / "part")
    keep_theorem(part, "0.01")
    for other in (there, part):
        here.take(other)
    assert list(Results(tmp_path / "here").measured("theorem1")["rho"]) == ["0.1", "1.0", "10.0", "0.01"]
    part.add_measured("theorem1", {"smoke": False, "clients": 7}, rho={"0.5": {}})  # of others: in their place
    here.take(part)
    assert list(Results(tmp_path / "here").measured("theorem1")["rho"]) == ["0.5"]


def add_a_run(results: Results, smoke: bool) -> None:
    keep(results, RUN_KEY, HEADER | {"smoke": smoke}, after=0.9)


def add_a_measurement(results: Results, smoke: bool) -> None:
    keep_theorem(results, "0.1", smoke=smoke)


def take_a_run(results: Results, smoke: bool) -> None:
    other = empty(results.folder / "other")
    add_a_run(other, smoke)
    results.take(other)


def take_a_measurement(results: Results, smoke: bool) -> None:
    other = empty(results.folder / "other")
    add_a_measurement(other, smoke)
    results.take(other)


@pytest.mark.parametrize("smoke", [True, False])
@pytest.mark.parametrize("begin", [add_a_run, add_a_measurement])
@pytest.mark.parametrize("change", [add_a_run, add_a_measurement, take_a_run, take_a_measurement])
def test_smoke_runs_and_results_are_not_mixed(tmp_path, begin, change, smoke):
    results = empty(tmp_path)
    begin(results, smoke)
    assert results.smoke is smoke
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.json")}
    kinds = ["smoke runs", "results of full runs"] if smoke else ["results of full runs", "smoke runs"]
    named = f"{tmp_path} holds {kinds[0]} ({', '.join(before)}); {kinds[1]} need another folder"
    with pytest.raises(ValueError, match=re.escape(named)):
        change(results, not smoke)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.json")} == before


def test_two_commands_with_one_folder_keep_what_the_other_adds(tmp_path):
    one, other = empty(tmp_path), empty(tmp_path)
    keep(one, RUN_KEY, after=0.1)
    keep(other, RunKey("fashion-mnist-4", "default", seed=1), after=0.2)
    keep_theorem(one, "0.1")
    keep_theorem(other, "1.0")
    keep(one, RunKey("fashion-mnist-4", "default", seed=2), after=0.3)
    for results in (one, Results(tmp_path)):
        assert results.values("after", "fashion-mnist-4", "default") == [0.1, 0.2, 0.3]
        assert list(results.measured("theorem1")["rho"]) == ["0.1", "1.0"]


def test_who_adds_waits_for_who_is_adding(tmp_path):
    adding = threading.Thread(target=keep, args=(empty(tmp_path), RUN_KEY))
    with locked(tmp_path):
        adding.start()
        adding.join(timeout=1)
        assert adding.is_alive()
        assert not list(tmp_path.glob("*.json*"))
    adding.join()
    assert Results(tmp_path).find(RUN_KEY) is not None


def test_a_run_is_of_its_own_settings(tmp_path):
    results = empty(tmp_path)
    keep(results, RUN_KEY)
    kept = results.find(RUN_KEY)
    assert kept.is_of(resolve(RUN_KEY, "cpu"))
    assert kept.is_of(resolve(RunKey("fashion-mnist-4", "default", seed=5), "cpu"))
    assert not kept.is_of(resolve(RunKey("fashion-mnist-4", "default", changes={"base_rate": 0.1}), "cpu"))
    assert not kept.is_of(resolve(RunKey("fashion-mnist-4", "default", changes={"time_model": "sessions"}), "cpu"))
    assert not kept.is_of(resolve(RUN_KEY, "cpu", smoke=True))


def test_files_of_other_results_are_left_alone(tmp_path):
    keep_theorem(empty(tmp_path), "0.1")
    before = (tmp_path / "theorem1.json").read_bytes()
    results = empty(tmp_path)
    keep(results, RUN_KEY)
    assert len(list(Results(tmp_path))) == 1
    assert (tmp_path / "theorem1.json").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"scenario": "fashion-mnist-4", "ru', "is not JSON (Unterminated string"),
        ("\x00\x01", "is not JSON"),
        ('{"version": 1, "runs": []}', "holds no results of an experiment: expected scenario, found version, runs"),
        ("[1, 2]", "holds no results of an experiment: expected runs, scenario, found list"),
        ('{"scenario": "fashion-mnist-4", "runs": [{"preset": "paper"}]}', "expected cells, changes, commit, config"),
        ('{"scenario": "digits-4", "runs": []}', "holds results of digits-4; name it digits-4.json"),
        ('{"experiment": "fashion-mnist-4"}', "expected settings, found experiment"),
        ('{"experiment": "theorem1", "settings": {}}', "holds results of theorem1; name it theorem1.json"),
    ],
)
def test_files_that_hold_something_else_are_refused_with_their_path(tmp_path, text, problem):
    path = tmp_path / "fashion-mnist-4.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"move it away, or name another folder$") as refused:
        Results(tmp_path)
    assert str(refused.value).startswith(f"{path} ")
    assert problem in str(refused.value)
    assert path.read_text() == text


def test_a_run_without_its_end_is_refused(tmp_path):
    keep(empty(tmp_path), RUN_KEY)
    path = tmp_path / "fashion-mnist-4.json"
    path.write_text(path.read_text().replace('"end":', '"ende":'))
    with pytest.raises(ValueError, match=r"holds no results of an experiment: expected end, found"):
        Results(tmp_path)


def test_an_interrupted_write_loses_nothing(tmp_path, monkeypatch):
    results = empty(tmp_path)
    keep(results, RUN_KEY, after=0.1)
    monkeypatch.setattr("pathlib.Path.replace", lambda self, target: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        keep(results, RunKey("fashion-mnist-4", "default", "ifca"))
    assert Results(tmp_path).values("after", "fashion-mnist-4", "default") == [0.1]
