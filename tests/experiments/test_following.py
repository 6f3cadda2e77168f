from statistics import fmean

import pytest

from experiments import following, tuning
from experiments.following import LINES, ROWS, TUNED, Served, interval
from experiments.harness import Results
from experiments.harness.table1_rows import FOLDER


@pytest.fixture(scope="module")
def results():
    return Results(FOLDER / "results")


@pytest.mark.parametrize(("network", "algorithm", "column"), [(n, *what) for n, own in TUNED.items() for what in own])
def test_each_algorithm_has_the_best_of_its_trials(results, network, algorithm, column):
    assert tuning.best(results, network, algorithm, column) == TUNED[network][algorithm, column]


def test_no_row_is_scored_on_the_trials():
    keys = following.run_keys(5)
    assert not any(key.changes.get("validation") or key.seed == tuning.SEED for key in keys)
    assert all(key.changes["validation"] and key.seed == tuning.SEED for key in tuning.run_keys(1))


def test_every_line_of_a_row_is_scored_on_the_same_seeds(results):
    row = ROWS[0]
    assert all(following.values(results, row, line).keys() == set(range(5)) for line in LINES)


def test_an_interval_is_wider_with_more_comparisons():
    mean, alone = interval([0.01, 0.02, 0.03], 1)
    assert mean == pytest.approx(0.02)
    assert alone == pytest.approx(4.303 * 0.01 / 3**0.5, rel=1e-3)  # Student's t with two degrees of freedom
    assert interval([0.01, 0.02, 0.03], 7)[1] > alone
    assert interval([0.01, 0.02], 7) is None


def test_an_algorithm_that_was_not_tuned_for_a_network_has_no_run():
    other = Served("fedem", "after", "a mixture")
    assert following.key_of(next(row for row in ROWS if row.network == "cnn-4k"), other, 0) is None


def test_the_report_names_the_best_rival_of_each_row(results):
    page = following.lead(results)
    assert "| 8x8 digits (4) |" in page
    rivals = following.against_rivals(results, ROWS[0])
    best = max(mean for _, mean, _ in rivals)
    assert f"{best:.3f}" in page


def test_what_the_readme_says_in_words(results):
    """The sentences below the table of what clients are served."""
    rows = {row.title: row for row in ROWS}
    sudden = rows["FashionMNIST (4), sudden changes"]
    ends = [results.find(following.key_of(sudden, LINES[0], seed)).end for seed in range(5)]
    assert (
        f"{sum(end['served_held'] for end in ends) / 5:.3f}"
        == f"{sum(end['served'] for end in ends) / 5:.3f}"
        == "0.899"
    )
    routed = next(line for line in LINES if (line.algorithm, line.column) == ("fedsoft", "routed"))
    behind = {
        title: 100 * (fmean(following.values(results, row, LINES[0]).values()) - fmean(found.values()))
        for title, row in rows.items()
        if routed in row.lines and (found := following.values(results, row, routed))
    }
    assert abs(behind.pop("FashionMNIST (4), 4,000 parameters")) < 0.1
    assert all(0.35 < points < 1.05 for points in behind.values())
