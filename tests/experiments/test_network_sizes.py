import pytest

from experiments import network_sizes
from experiments.harness import Results
from experiments.harness.table1_rows import FOLDER
from tests.experiments.small import empty


@pytest.fixture(scope="module")
def found():
    return network_sizes.by_size(Results(FOLDER / "results"))


def test_the_smaller_the_network_the_more_experts_gain_over_one_of_the_same_size(found):
    assert [size.parameters for size in found] == [3_898, 26_970, 582_026]
    gains = [size.trials[0] for size in found]
    assert gains == sorted(gains, reverse=True)


def test_what_the_readme_says_about_a_larger_model(found):
    smallest, *others = found
    above, half = smallest.tests[2]
    assert f"{100 * above:.1f}" == "-0.6"
    assert above + half < 0
    assert [f"{100 * size.trials[1]:.1f}" for size in others] == ["0.2", "0.8"]


def test_without_runs_there_is_no_picture(tmp_path):
    results = empty(tmp_path)
    assert network_sizes.by_size(results) == []
    assert network_sizes.draw(results, tmp_path) == []


def test_the_title_says_what_is_found(found):
    assert network_sizes.finding(found) == (
        "Experts beat one model of their size;\nlarger experts also one of four times the size"
    )
    assert network_sizes.finding(found[:1]) == "Experts beat one model of their size;\nnot one of four times the size"
