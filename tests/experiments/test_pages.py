"""Pages say what the result files say, and result files name settings that exist."""

from pathlib import Path

import pytest

from cdfl.paper import Cell, Results, resolve
from cdfl.paper.experiment import list_experiments
from cdfl.paper.figures import LABELS
from cdfl.paper.folder import experiments_folder
from cdfl.paper.pages import BLOCK, readme, with_blocks, write_pages

from .small import HEADER, empty, keep, keep_theorem

FOLDER = experiments_folder()
ROOT = FOLDER.parent
RESULTS = Results(FOLDER / "results")


def test_the_readme_of_the_experiments_is_that_of_their_results():
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == readme(RESULTS), "run `cdfl paper readme`"


def test_the_numbers_of_the_page_are_those_of_the_results():
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    assert with_blocks(page, RESULTS) == page, "run `cdfl paper readme`"


def test_the_page_has_a_block_for_every_experiment():
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    blocks = [name for _, name, _ in BLOCK.findall(page)]
    assert sorted(blocks) == sorted(experiment.name for experiment in list_experiments())


CELL_FILES = [path for path in sorted((FOLDER / "results").glob("*.json")) if RESULTS.measured(path.stem) is None]


@pytest.mark.parametrize("path", CELL_FILES, ids=lambda path: path.stem)
def test_a_result_file_names_settings_that_load(path: Path):
    found = [kept for kept in RESULTS if kept.cell.scenario == path.stem]
    assert found
    for kept in found:
        resolve(kept.cell, "cpu")
        assert not kept.record["smoke"]
        assert kept.record["machine"]["torch"]
        assert kept.record["commit"]


def test_every_result_is_of_some_experiment():
    asked = {cell.key for experiment in list_experiments() for cell in experiment.cells(experiment.trials)}
    assert [kept.cell for kept in RESULTS if kept.cell.key not in asked] == []


def test_every_result_of_earlier_settings_is_named_in_the_readme():
    lines = [line for line in readme(RESULTS).splitlines() if line.startswith("Run with earlier settings")]
    for kept in RESULTS:
        names = (f"`{kept.cell.preset}`", LABELS[kept.cell.algorithm], kept.cell.scenario)
        named = any(all(name in line for name in names) for line in lines)
        assert named or not kept.changes_since(), f"{kept.cell}: run it again"


def test_what_was_run_with_earlier_settings_is_named(tmp_path):
    results = empty(tmp_path)
    keep(results, Cell("fashion-mnist-4", "default", "fedsoft"))
    keep(results, Cell("fashion-mnist-4", "default", "local"))
    assert "earlier settings" not in readme(results)
    for kept in results:
        kept.record["config"]["settings"]["staleness_grace"] = 7.0
    words = (
        "earlier settings (staleness_grace 7.0, now 20.0), to be run again: `default`, FedSoft-Async (fashion-mnist-4)."
    )
    assert readme(results).count(words) == 2  # in Table 1 and estimation; whoever has no server is not asked again


def test_results_stay_small():
    sizes = [path.stat().st_size for path in (FOLDER / "results").iterdir()]
    assert sum(sizes) < 5_000_000


def test_a_changed_number_changes_the_readme(tmp_path):
    results = empty(tmp_path)
    keep(results, Cell("fashion-mnist-4", "paper-reading"), after=0.7)
    first = readme(results)
    keep(results, Cell("fashion-mnist-4", "paper-reading"), after=0.701)
    assert readme(results) != first


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of its own, with a result and a page."""
    folder = tmp_path / "experiments"
    monkeypatch.setattr("cdfl.paper.pages.experiments_folder", lambda: folder)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "paper.md").write_text("Words.\n")
    keep(empty(folder / "results"), Cell("fashion-mnist-4", "paper-reading"))
    return tmp_path


def test_all_results_of_a_folder_are_added(checkout):
    other = empty(checkout / "other")
    keep(other, Cell("fashion-mnist-4", "paper-reading"))
    keep(other, Cell("fashion-mnist-4", "paper-reading", seed=1))
    keep_theorem(other, "0.1", "1.0")
    told: list[str] = []
    write_pages(told.append, [other.folder])
    assert told[0] == f"from {other.folder}: 2 runs of fashion-mnist-4, in place of 1 that were here"
    results = Results(checkout / "experiments" / "results")
    assert len(results.trials("fashion-mnist-4", "paper-reading")) == 2
    assert list(results.measured("theorem1")["rho"]) == ["0.1", "1.0"]
    assert "The bound is vacuous" in (checkout / "experiments" / "README.md").read_text()


def test_smoke_runs_are_not_added(checkout):
    other = empty(checkout / "other")
    keep(other, Cell("fashion-mnist-4", "paper-reading"), HEADER | {"smoke": True})
    with pytest.raises(ValueError, match=r"other holds smoke runs .* not mixed with results of full runs"):
        write_pages(lambda line: None, [other.folder])
    assert not (checkout / "experiments" / "README.md").exists()
    assert not Results(checkout / "experiments" / "results").smoke


def test_blocks_are_written_and_the_rest_is_left(tmp_path):
    page = "Words 1.\n<!-- overhead: written by `cdfl paper readme` -->\nold\n<!-- overhead: end -->\nWords 2.\n"
    text = with_blocks(page, empty(tmp_path))
    assert "Overheads have not been measured yet.\n<!-- overhead: end -->\nWords 2." in text
    assert "old" not in text
