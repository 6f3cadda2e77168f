from statistics import fmean

import pytest

from experiments import served, tuning
from experiments.harness import Results
from experiments.harness.table1_rows import FOLDER
from experiments.served import LINES, ROWS, TUNED, Served, interval


@pytest.fixture(scope="module")
def results():
    return Results(FOLDER / "results")


@pytest.mark.parametrize(("network", "algorithm", "column"), [(n, *what) for n, own in TUNED.items() for what in own])
def test_each_algorithm_has_the_best_of_its_trials(results, network, algorithm, column):
    assert tuning.best(results, network, algorithm, column) == TUNED[network][algorithm, column]


def test_no_row_is_scored_on_the_trials():
    keys = served.run_keys(5)
    assert not any(key.changes.get("validation") or key.seed == tuning.SEED for key in keys)
    assert all(key.changes["validation"] and key.seed == tuning.SEED for key in tuning.run_keys(1))


def test_every_line_of_a_row_is_scored_on_the_same_seeds(results):
    row = ROWS[0]
    assert all(served.values(results, row, line).keys() == set(range(5)) for line in LINES)


def test_an_interval_is_wider_with_more_comparisons():
    mean, alone = interval([0.01, 0.02, 0.03], 1)
    assert mean == pytest.approx(0.02)
    assert alone == pytest.approx(4.303 * 0.01 / 3**0.5, rel=1e-3)  # Student's t with two degrees of freedom
    assert interval([0.01, 0.02, 0.03], 7)[1] > alone
    assert interval([0.01, 0.02], 7) is None


def test_an_algorithm_that_was_not_tuned_for_a_network_has_no_run():
    other = Served("fedem", "after", "a mixture")
    assert served.key_of(next(row for row in ROWS if row.network == "cnn-4k"), other, 0) is None


def test_the_report_names_the_best_rival_of_each_row(results):
    page = served.lead(results)
    assert "| 8x8 digits (4) |" in page
    rivals = served.against_rivals(results, ROWS[0])
    best = max(mean for _, mean, _ in rivals)
    assert f"{best:.3f}" in page


def mean_of(results, row, line):
    return fmean(served.values(results, row, line).values())


def line_of(algorithm, column):
    return next(line for line in LINES if (line.algorithm, line.column) == (algorithm, column) and not line.changes)


def test_what_the_readme_says_in_words(results):
    """The sentences below the table of what clients are served."""
    rows = {row.title: row for row in ROWS}
    sudden = rows["FashionMNIST (4), sudden changes"]
    ends = [results.find(served.key_of(sudden, LINES[0], seed)).end for seed in range(5)]
    assert (
        f"{sum(end['served_held'] for end in ends) / 5:.3f}"
        == f"{sum(end['served'] for end in ends) / 5:.3f}"
        == "0.899"
    )
    routed = line_of("fedsoft", "routed")
    behind = {
        title: 100 * (mean_of(results, row, LINES[0]) - mean_of(results, row, routed))
        for title, row in rows.items()
        if routed in row.lines and served.values(results, row, routed)
    }
    assert abs(behind.pop("FashionMNIST (4), 4,000 parameters")) < 0.1
    assert all(0.35 < points < 1.05 for points in behind.values())


def test_what_the_readme_says_about_gains(results):
    found = {row.title: (best, seeds, shares) for row, best, seeds, shares in served.uploads_shares(results)}
    no_gain = {"Digit recognition", "FashionMNIST (4), dark, bright and blurred"}
    for title in no_gain:
        row = next(row for row in ROWS if row.title == title)
        best, _, (above, half) = max(served.against_rivals(results, row), key=lambda each: each[1])
        assert best.algorithm == "fedbuff"
        assert abs(above) < half
    shares = [own[0] for title, (_, seeds, (own, _)) in found.items() if seeds == 5 and title not in no_gain]
    assert len(shares) == 7
    assert (round(min(shares), 2), round(max(shares), 2)) == (0.15, 0.58)


def test_without_the_router_the_one_model_is_level(results):
    for row in ROWS[:6]:
        ours, theirs = (mean_of(results, row, line_of(name, "after")) for name in ("cdfl", "fedsoft"))
        assert abs(ours - theirs) < 0.005


def test_what_the_readme_says_about_text(results):
    row = next(row for row in ROWS if row.scenario == "handbook-4")
    behind = 100 * (mean_of(results, row, LINES[0]) - mean_of(results, row, line_of("ifca", "routed")))
    assert f"{behind:.1f}" == "0.3"
