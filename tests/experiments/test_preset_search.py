"""The search for the preset `paper-reading`."""

from experiments import preset_search
from experiments.harness import RunKey, resolve
from tests.experiments.small import HEADER, empty, keep, table


def test_the_reading_that_was_taken_is_the_preset():
    taken = resolve(RunKey("fashion-mnist-4", "paper", changes=preset_search.CANDIDATES[preset_search.TAKEN]), "cpu")
    preset = resolve(RunKey("fashion-mnist-4", "paper-reading"), "cpu")
    assert (taken.settings, taken.time_model) == (preset.settings, preset.time_model)


def test_candidates_are_sorted_by_their_worst_distance(tmp_path):
    results = empty(tmp_path)
    first, second = preset_search.run_keys(1)[:2]
    keep(results, first, before=0.765, after=0.1)
    keep(results, second, before=0.765, after=0.8)
    worst = [one.worst for one in preset_search.tried(results)]
    assert worst == sorted(worst)
    assert [one.name for one in preset_search.tried(results)] == ["as printed, sessions", "as printed, uniform uploads"]


def test_smoke_runs_have_no_distances(tmp_path):
    results = empty(tmp_path)
    keep(results, preset_search.run_keys(1)[0], HEADER | {"smoke": True})
    (_, line) = table(preset_search.report(results))
    assert line[3] == line[-1] == "-"
