"""The report: one file that needs nothing else, and what it says is odd."""

import csv
import re
from dataclasses import replace
from pathlib import Path

from cdfl.report import write_report
from cdfl.report.run_warnings import findings
from cdfl.run_events import Clusters, Separated, Uploaded
from cdfl.run_folder import RunFolder
from cdfl.run_series import RunSeries

from ..made_up import RMSE, clusters, diverged, events, finished, scored_twice, started, uploaded, write_run


def report(tmp_path: Path, **runs):
    folders = {name: RunFolder(write_run(tmp_path / name, made)) for name, made in runs.items()}
    read = [RunSeries.of(name, folder.events()) for name, folder in folders.items()]
    write_report(folders, read, tmp_path / "out")
    return tmp_path / "out"


def test_the_file_needs_nothing_else(tmp_path):
    out = report(tmp_path, one=events(), two=events(start={"seed": 1}))
    page = (out / "report.html").read_text()
    assert re.findall(r"(?:src|href)=\"(?!data:)", page) == []
    assert "http" not in re.sub(r"base64,[^\"]*", "", page)
    assert page.count('src="data:image/svg+xml;base64,') == 5
    for name in ("story", "mixtures", "adaptation", "clusters", "uploads"):
        assert (out / f"{name}.png").stat().st_size > 5000
        assert (out / f"{name}.svg").read_text().startswith("<?xml")


def test_scores_with_their_spread(tmp_path):
    out = report(tmp_path, one=events(), two=events(start={"seed": 1}, upload={"after": 0.9}))
    head, row = csv.reader((out / "scores.csv").read_text().splitlines())
    found = dict(zip(head, row, strict=True))
    assert (found["algorithm"], found["metric"], found["seeds"], found["MB up"]) == ("cdfl", "accuracy", "2", "0.0")
    assert found["after"] == "0.855 ± 0.064"  # .81 and .9
    assert "0.855 ± 0.064" in (out / "report.html").read_text()


def test_every_metric_is_there_with_its_name(tmp_path):
    out = report(tmp_path, one=scored_twice(), two=scored_twice(seed=1), alone=scored_twice(algorithm="local"))
    head, *rows = csv.reader((out / "scores.csv").read_text().splitlines())
    found = [dict(zip(head, row, strict=True)) for row in rows]
    assert [(row["algorithm"], row["metric"], row["after"]) for row in found] == [
        ("cdfl", "accuracy", "0.810 ± 0.000"),
        ("local", "accuracy", "0.810"),
        ("cdfl", "rmse (lower is better)", "1.900 ± 0.000"),
        ("local", "rmse (lower is better)", "1.900"),
    ]
    page = (out / "report.html").read_text()
    assert "rmse (lower is better)</td>" in page
    assert "1.900 ± 0.000</td>" in page


def test_where_lower_is_better_rising_scores_are_odd():
    rising = events(start={"metrics": [RMSE]})  # after > before > held, and clusters rise
    assert "New models are worse than own training" in said(rising)
    assert "upright is worse at the end (0.820) than at the start (0.700)" in said(rising)
    falling = [
        replace(event, held=0.9, before=0.8, after=0.7, served=0.7)
        if isinstance(event, Uploaded)
        else replace(event, scores=[0.9 - 0.01 * event.epoch] * 2)
        if isinstance(event, Clusters)
        else event
        for event in rising
    ]
    assert findings([RunSeries.of("run", falling)]) == []


def test_words_of_users_are_text(tmp_path):
    page = (report(tmp_path, one=events(start={"scenario": "<script>alert(1)</script>"})) / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def said(made):
    return " ".join(findings([RunSeries.of("run", made)]))


def test_nothing_odd():
    assert findings([RunSeries.of("run", events())]) == []


def test_what_is_odd():
    assert "not finished: 12 of 12 uploads" in said(events()[:-1])
    assert "1 trainings diverged" in said([*events(), diverged()])
    assert "100% of the uploads were too stale" in said(events(upload={"outcome": "deprecated"}))
    assert "rejected by the defence" in said(events(upload={"outcome": "rejected"}))
    assert "New models are worse than own training" in said(events(upload={"after": 0.1}))
    assert "New models are worse than old ones" in said(events(upload={"after": 0.9, "held": 0.95}))
    assert "7 of 12 uploads were made" in said(events(shortfall="7 of 12 uploads were made: all clients have left"))
    assert "a note on the data" in said(events(start={"notes": "a note on the data"}))


def with_clusters(**changes):
    return [started(), clusters(0), *(uploaded(epoch) for epoch in range(1, 13)), clusters(12, **changes), finished()]


def test_clusters_that_are_odd():
    assert "upright is worse at the end (0.100) than at the start (0.700)" in said(with_clusters(scores=[0.1, 0.9]))
    alike = Separated([[0.3, 0.3], [0.31, 0.32]], ["upright and turned can hardly be told apart"])
    assert "upright and turned can hardly be told apart" in said([*events(), alike])


def test_a_seed_that_is_far_from_the_others():
    runs = [
        RunSeries.of(f"run-{seed}", events(start={"seed": seed}, upload={"after": after, "before": 0.1, "held": 0.1}))
        for seed, after in enumerate((0.9, 0.901, 0.902, 0.5))
    ]
    assert findings(runs) == ["cdfl: seed 3 is far from the other seeds (0.500)."]
