"""Every experiment runs, in seconds, from its question to its pictures."""

import pytest

from experiments.commands import RunFilter, keys_of, run_experiment
from experiments.harness import Results
from experiments.harness.runner import RunOptions, run_missing
from experiments.harness.tables import NOT_RUN
from experiments.registry import EXPERIMENTS, find_experiment
from tests.experiments.small import empty

pytestmark = pytest.mark.slow

SMOKE = RunOptions(device="cpu", smoke=True, commit="abc")
QUICK = ("table1", "served")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Shared, as results are: what one experiment has run, another need not."""
    return tmp_path_factory.mktemp("smoke")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in EXPERIMENTS]
)
def test_smoke(name, folder):
    told: list[str] = []
    assert run_experiment(name, SMOKE, folder, tell=told.append) == folder
    text = (folder / f"{name}.md").read_text()
    assert text.startswith("**Smoke runs on 8x8 digits")  # says first that it is no result
    assert "| " in text
    drawn = [line.split()[1] for line in told if line.endswith(".png and .svg")]
    assert drawn or name in ("tuning", "network-sizes")  # its table says it all; it draws trials of `tuning`
    for picture in drawn:
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (folder / picture).with_suffix(".svg").read_text()
    experiment = find_experiment(name)
    if experiment.measure is None:
        again: list[str] = []
        run_missing(keys_of(experiment, SMOKE, None, RunFilter()), Results(folder), SMOKE, again.append)
        assert len(again) == 1  # "N runs, N of them stored already": nothing is run again


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_says_what_it_claims_and_costs(name):
    experiment = find_experiment(name)
    for part in ("Claim: ", "Settings: ", "Cost: ", f"cdfl paper {name}"):
        assert part in experiment.about
    for key in experiment.run_keys(1):
        assert key.preset in ("paper", "paper-reading", "default")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_without_results_an_experiment_says_so(name, tmp_path):
    experiment, results = find_experiment(name), empty(tmp_path)
    assert NOT_RUN in experiment.report(results)
    experiment.draw(results, tmp_path)


def test_only_some_runs():
    keys = find_experiment("table1").run_keys(2)
    some = RunFilter(["fashion-mnist-2"], ["default"], ["cdfl", "local-keep"]).of(keys)
    assert [(key.algorithm, key.seed) for key in some] == [
        ("cdfl", 0),
        ("cdfl", 1),
        ("local-keep", 0),
        ("local-keep", 1),
    ]
    with pytest.raises(ValueError, match="there is no scenario 'mnist' in this experiment; there are fashion-mnist-2"):
        RunFilter(["mnist"]).of(keys)
    with pytest.raises(ValueError, match="there is no preset 'best' in this experiment"):
        RunFilter(presets=["best"]).of(keys)
    with pytest.raises(ValueError, match="there is no experiment 'table9'; there are preset-search, table1"):
        find_experiment("table9")
