"""Every experiment runs, in seconds, from its question to its pictures."""

import pytest

from cdfl.paper import Cell
from cdfl.paper.cells import resolve
from cdfl.paper.command import Only, perform
from cdfl.paper.experiment import list_experiments, load_experiment
from cdfl.paper.run import How

from .small import empty

SMOKE = How(device="cpu", smoke=True, commit="abc")
NAMES = [experiment.name for experiment in list_experiments()]


def test_there_is_one_for_every_result():
    expected = ["reading", "table1", "over_time", "estimation", "overhead", "ablations", "theorem1", "adaptation"]
    assert expected == NAMES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Shared, as results are: what one experiment has run, another need not."""
    return tmp_path_factory.mktemp("smoke")


@pytest.mark.parametrize("name", NAMES)
def test_smoke(name, folder):
    told: list[str] = []
    assert perform(name, SMOKE, folder, tell=told.append) == folder
    text = (folder / f"{name}.md").read_text()
    assert text.startswith("**Smoke runs, on 8x8 digits")  # says first that it is no result
    assert "| " in text
    drawn = [line.split()[1] for line in told if line.endswith(".png and .svg")]
    assert drawn
    for picture in drawn:
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (folder / picture).with_suffix(".svg").read_text()
    again: list[str] = []
    perform(name, SMOKE, folder, tell=again.append)
    assert not any(line.startswith("next") for line in again)  # all of it was there


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_says_what_it_claims_and_costs(name):
    experiment = load_experiment(name)
    for part in ("Claim: ", "Settings: ", "Machine: ", "Cost: ", f"cdfl paper {name}"):
        assert part in experiment.about
    for cell in experiment.cells(1):
        assert cell.preset in ("paper", "paper-reading", "default")


@pytest.mark.parametrize("name", NAMES)
def test_without_results_an_experiment_says_so(name, tmp_path):
    experiment, results = load_experiment(name), empty(tmp_path)
    assert "Nothing of it has been run yet" in experiment.report(results)
    assert experiment.verdict(results).endswith("\n")
    experiment.draw(results, tmp_path)


def test_the_reading_that_was_taken_is_the_preset():
    reading = load_experiment("reading").cells.__globals__
    taken = resolve(Cell("fashion-mnist-4", "paper", changes=reading["CANDIDATES"][reading["TAKEN"]]), "cpu")
    preset = resolve(Cell("fashion-mnist-4", "paper-reading"), "cpu")
    assert (taken.settings, taken.time_model) == (preset.settings, preset.time_model)


def test_only_some_cells():
    cells = load_experiment("table1").cells(2)
    some = Only(["fashion-mnist-2"], ["default"], ["cdfl", "local"]).of(cells)
    assert [(cell.algorithm, cell.seed) for cell in some] == [("cdfl", 0), ("cdfl", 1), ("local", 0), ("local", 1)]
    with pytest.raises(ValueError, match="there is no scenario 'mnist' in this experiment; there are fashion-mnist-2"):
        Only(["mnist"]).of(cells)
    with pytest.raises(ValueError, match="there is no preset 'best' in this experiment"):
        Only(presets=["best"]).of(cells)
    with pytest.raises(ValueError, match="there is no experiment 'table9'; there are reading, table1"):
        load_experiment("table9")
