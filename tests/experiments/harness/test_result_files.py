"""A file holds the settings of its first run, and how those of the others differ."""

import json

from experiments.harness import Results, RunKey
from experiments.harness.result_files import differences, with_differences
from tests.experiments.small import empty, keep

BASE = {"settings": {"rates": {"a": 1, "b": 2}}, "drift": {"kind": "static"}, "model": "cnn"}


def test_settings_are_the_same_after_the_way_there_and_back():
    for other in (
        BASE,
        {**BASE, "model": None},
        {**BASE, "settings": {"rates": {"a": 1, "b": 3}}},
        {**BASE, "drift": {"kind": "sudden", "every": 9}},  # other fields: stored as a whole
        {"model": "cnn"},  # an older run, with fewer fields
    ):
        assert with_differences(BASE, differences(BASE, other)) == other
    assert BASE["settings"] == {"rates": {"a": 1, "b": 2}}  # the base is not changed


def test_trials_have_a_file_of_their_own(tmp_path):
    results = empty(tmp_path)
    table, trial = (RunKey("digits-4", "default", changes=changes) for changes in ({}, {"validation": True}))
    keep(results, table)
    keep(results, trial)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["digits-4-tuning.json", "digits-4.json"]
    again = Results(tmp_path)
    assert again.find(table) is not None
    assert again.find(trial) is not None
    other = Results(tmp_path / "other")
    other.take(again)
    assert sorted(path.name for path in other.folder.glob("*.json")) == ["digits-4-tuning.json", "digits-4.json"]


def test_a_second_run_is_stored_by_its_differences(tmp_path):
    results = empty(tmp_path)
    keep(results, RunKey("digits-4", "default"))
    keep(results, RunKey("digits-4", "default", changes={"base_rate": 0.5}))
    content = json.loads((tmp_path / "digits-4.json").read_text())
    assert [run["config"] for run in content["runs"]] == [{}, {"settings.rates.base_rate": 0.5}]
