"""Theorem 1: what is measured, stored and reported."""

import json

import pytest

from experiments import theorem1
from experiments.harness import Results
from experiments.harness.tables import NOT_RUN
from tests.experiments.small import empty, keep_theorem, table

pytestmark = pytest.mark.slow


@pytest.fixture
def small(monkeypatch):
    for name, value in {"UPLOADS": 60, "SEEDS": 1, "RHOS": (0.1, 1.0, 10.0)}.items():
        monkeypatch.setattr(theorem1, name, value)


@pytest.mark.usefixtures("small")
def test_interrupted_it_continues_with_the_next_rho(tmp_path, monkeypatch):
    run, told = theorem1.trace_run, []

    def interrupted(problem, steps, *others):
        if steps.rho == 1.0:
            raise KeyboardInterrupt
        return run(problem, steps, *others)

    with monkeypatch.context() as patch:
        patch.setattr(theorem1, "trace_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            theorem1.measure(Results(tmp_path), False, told.append)
    assert told[0] == "3 rho, 0 of them stored already"
    first = json.loads((tmp_path / "theorem1.json").read_text())["rho"]
    told.clear()
    theorem1.measure(Results(tmp_path), False, told.append)
    assert told[:2] == ["3 rho, 1 of them stored already", "  rho 1: 60 uploads with seed 0"]
    second = json.loads((tmp_path / "theorem1.json").read_text())["rho"]
    assert list(second) == ["0.1", "1.0", "10.0"]
    assert second["0.1"] == first["0.1"]
    told.clear()
    theorem1.measure(Results(tmp_path), False, told.append)
    assert told == ["3 rho, 3 of them stored already"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("PENALTY", 0.7), ("CLIENTS", 7), ("EPSILON", 0.5), ("DATA_SEED", 1), ("SCENARIO", "digits-4-sudden"),
     ("SETTINGS", theorem1.SETTINGS.replace(base_rate=0.3))],
)  # fmt: skip
def test_a_result_of_other_settings_does_not_count(tmp_path, monkeypatch, name, value):
    results = empty(tmp_path)
    keep_theorem(results, "0.1")
    assert list(theorem1.found(results, theorem1.settings(smoke=False))) == ["0.1"]
    assert theorem1.found(results, theorem1.settings(smoke=True)) == {}
    monkeypatch.setattr(theorem1, name, value)
    assert theorem1.found(results, theorem1.settings(smoke=False)) == {}
    assert theorem1.report(results) == NOT_RUN


def test_settings_survive_a_file(tmp_path):
    keep_theorem(empty(tmp_path), "0.1")
    assert theorem1.measured(Results(tmp_path))


def test_a_smoke_run_does_not_mix_with_the_result(tmp_path):
    keep_theorem(empty(tmp_path), "0.1", smoke=True)
    before = (tmp_path / "theorem1.json").read_bytes()
    with pytest.raises(ValueError, match="holds smoke runs"):
        keep_theorem(Results(tmp_path), "0.1")
    assert (tmp_path / "theorem1.json").read_bytes() == before


def test_the_tables_by_hand(tmp_path):
    results = empty(tmp_path)
    keep_theorem(results, "0.1", "10.0")
    text = theorem1.report(results)
    bounds, conditions, falls = (table(text, place)[1] for place in range(3))
    assert bounds == ["0.1", "8", "8", "6", "0.5", "2", "11", "0.1", "0.2", "0.3", "10", "5"]  # 10.6 / 2
    assert conditions == ["0.1", "0.5", "1", "9", "12", "10%", "40%", "-1.00"]
    assert falls == ["0.1", "-25%", "+0%", "-0.050", "4 of 8"]
