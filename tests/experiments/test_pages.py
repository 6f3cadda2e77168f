"""The README of the experiments, and how it is written."""

import pytest

from experiments.harness import Results, RunKey
from experiments.harness.table1_rows import FOLDER
from experiments.pages import readme, write_readme
from tests.experiments.small import HEADER, empty, keep, keep_theorem

pytestmark = pytest.mark.slow


def test_the_readme_is_that_of_the_results():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert text == readme(Results(FOLDER / "results")), "run `cdfl paper readme`"


def test_a_changed_number_changes_the_readme(tmp_path):
    results = empty(tmp_path)
    keep(results, RunKey("fashion-mnist-4", "paper-reading"), after=0.7)
    first = readme(results)
    keep(results, RunKey("fashion-mnist-4", "paper-reading"), after=0.701)
    assert readme(results) != first


def test_results_of_earlier_settings_are_in_the_readme(tmp_path):
    results = empty(tmp_path)
    keep(results, RunKey("fashion-mnist-4", "default", "fedsoft"))
    assert "earlier settings" not in readme(results)
    for kept in results:
        kept.record["config"]["settings"]["rates"]["staleness_grace"] = 7.0
    assert readme(results).count("| run with earlier settings |") == 2  # in Table 1 and estimation


@pytest.fixture
def folder(tmp_path):
    """A folder of experiments with one result."""
    keep(empty(tmp_path / "experiments" / "results"), RunKey("fashion-mnist-4", "paper-reading"))
    return tmp_path / "experiments"


def test_results_of_another_folder_are_added(folder):
    other = empty(folder.parent / "other")
    keep(other, RunKey("fashion-mnist-4", "paper-reading"))
    keep(other, RunKey("fashion-mnist-4", "paper-reading", seed=1))
    keep_theorem(other, "0.1", "1.0")
    told: list[str] = []
    write_readme(told.append, [other.folder], folder)
    assert told[0] == f"from {other.folder}: 2 runs of fashion-mnist-4; 1 of them replace runs that were here"
    results = Results(folder / "results")
    assert len(results.trials("fashion-mnist-4", "paper-reading")) == 2
    assert list(results.measured("theorem1")["rho"]) == ["0.1", "1.0"]
    assert (folder / "README.md").read_text(encoding="utf-8") == readme(results)


def test_smoke_runs_are_not_added(folder):
    other = empty(folder.parent / "other")
    keep(other, RunKey("fashion-mnist-4", "paper-reading"), HEADER | {"smoke": True})
    with pytest.raises(ValueError, match=r"other holds smoke runs .* results of full runs need another folder"):
        write_readme(lambda line: None, [other.folder], folder)
    assert not (folder / "README.md").exists()
    assert not Results(folder / "results").smoke
