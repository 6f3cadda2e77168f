import re

import numpy as np
import pytest

from cdfl.run_events import Uploaded, only
from cdfl.run_series import RunSeries, Scalars, adaptation, groups

from .made_up import RMSE, clusters, diverged, events, finished, scored_twice, started, uploaded


def series(name="run", **changes):
    return RunSeries.of(name, events(**changes))


def test_the_series_of_a_run():
    run = series()
    assert (run.metric, run.higher_is_better, run.clusters) == ("accuracy", True, ["upright", "turned"])
    assert run.num_uploads == 12
    assert list(run.scores) == ["held", "before", "after"]
    assert run.scores["after"][0] == pytest.approx(0.71)
    assert run.true_mixtures.shape == run.mixtures.shape == (12, 2)
    assert run.cluster_losses.shape == run.cluster_distances.shape == (5, 2, 2)
    assert run.last(run.reply) == pytest.approx(np.mean([0.8, 0.81, 0.82]))  # the last upload of each of 3 clients
    assert run.bytes_up.sum() == 12000


def test_what_a_client_is_served_is_its_reply():
    one_model = RunSeries.of("run", events(upload={"after": 0.5}))
    assert one_model.reply is one_model.scores["after"]
    experts = RunSeries.of("run", events(upload={"after": 0.5, "served": 0.6}))
    assert experts.reply is experts.scores["served"]


def test_lower_may_be_better():
    run = series(start={"metrics": [RMSE]})
    assert run.metric_label == "rmse (lower is better)"


def test_every_metric_has_its_series():
    run = RunSeries.of("run", scored_twice())
    assert run.metrics == {"accuracy": True, "rmse": False}
    other = run.by("rmse")
    assert (other.metric, other.higher_is_better) == ("rmse", False)
    assert other.scores["after"] == pytest.approx(10 * (1 - run.scores["after"]))
    assert other.reply is other.scores["after"]
    assert other.cluster_scores == pytest.approx(10 * (1 - run.cluster_scores))
    assert other.by(None).scores is run.by("accuracy").scores is run.scores
    with pytest.raises(ValueError, match=r"run has no metric 'acuracy'; there are accuracy, rmse; did you mean accura"):
        run.by("acuracy")


def test_an_algorithm_without_estimates():
    assert series(upload={"mixture": None, "divergence": None}).mixtures is None


def test_a_run_without_uploads():
    with pytest.raises(ValueError, match=r"young has no uploads yet; let the run make some first"):
        RunSeries.of("young", [started(), clusters(0)])


def test_a_run_that_is_not_finished():
    run = RunSeries.of("run", [*events()[:-1], diverged()])
    assert (run.finished, run.num_diverged) == (None, 1)


def test_moves_and_adaptation_worked_by_hand():
    """Each client uploads four times; its main cluster changes at its third upload."""
    run = series()
    assert run.moves() == [(0, 6), (1, 7), (2, 8)]
    found = adaptation(run)
    assert found["held"][0] == pytest.approx(np.mean([0.57, 0.58, 0.59]))
    assert found["held"][1] == pytest.approx(np.mean([0.60, 0.61, 0.62]))
    assert np.isnan(found["held"][2])
    assert adaptation(series(upload={"true_mixture": [1.0, 0.0]})) == {}


def test_the_telling_client_has_many_uploads_and_moves():
    made = events(upload={})
    still = [uploaded(13 + place, client=1, true_mixture=[1.0, 0.0]) for place in range(2)]
    moving = [uploaded(15 + place, client=2, true_mixture=[place % 2, 1 - place % 2]) for place in range(3)]
    assert RunSeries.of("run", [*made[:-1], *still, *moving]).telling_client() == 2


def test_runs_are_grouped_by_what_makes_them_differ():
    one, two = series("a-0"), series("a-1", start={"seed": 1})
    other = series("b-0", start={"algorithm": "local"})
    assert {name: [run.name for run in runs] for name, runs in groups([one, two, other]).items()} == {
        "cdfl": ["a-0", "a-1"],
        "local": ["b-0"],
    }
    elsewhere = series("c", start={"scenario": "other"})
    assert list(groups([one, elsewhere])) == ["cdfl on toy", "cdfl on other"]


def test_what_trackers_record():
    scalars = Scalars()
    assert scalars.of(started()) is None
    epoch, values = scalars.of(uploaded(7, more={"log loss": {"held": 1.0, "before": 0.5, "after": 0.4}}))
    assert epoch == 7
    assert values["accuracy_upload/after"] == values["accuracy/after"] == pytest.approx(0.77)
    assert values["log_loss/held"] == 1.0
    assert (values["upload/staleness"], values["upload/applied"]) == (3, 1)
    assert (values["mixture/KL"], values["mixture/0_upright"]) == (0.05, 0.2)
    assert scalars.of(clusters(3)) == (
        3,
        {
            "accuracy_clusters/0_upright": 0.73,
            "accuracy_clusters/1_turned": 0.63,
            "cluster_loss/0_upright": 0.2,
            "cluster_loss/1_turned": 0.3,
        },
    )
    epoch, values = scalars.of(finished(before=None))
    assert epoch == 12
    assert values["final/accuracy_held"] == 0.6
    assert values["final/accuracy_clusters"] == 0.75
    assert values["final/megabytes_up"] == 0.012
    assert "final/accuracy_before" not in values


def test_trackers_get_means_over_the_last_upload_of_every_client():
    scalars = Scalars()
    scalars.of(started())
    steps = [scalars.of(event)[1] for event in only(events(), Uploaded)]
    assert [step["accuracy_upload/after"] for step in steps[:4]] == pytest.approx([0.71, 0.72, 0.73, 0.74])
    assert [step["accuracy/after"] for step in steps[:4]] == pytest.approx([0.71, 0.715, 0.72, 0.73])
    run = series("a-0")
    assert steps[-1]["accuracy/after"] == pytest.approx(run.last(run.scores["after"]))
    _, values = scalars.of(uploaded(13, held=float("nan")))
    assert values["accuracy/held"] == steps[-1]["accuracy/held"]  # one that is not finite leaves the mean as it was


def test_names_for_trackers_are_plain():
    """W&B and MLflow refuse or mangle others."""
    scalars = Scalars()
    run = events(start={"clusters": ["0°", "night (Körner & Söhne)"]})
    names = {name for event in run if (found := scalars.of(event)) for name in found[1]}
    assert all(re.fullmatch(r"[A-Za-z0-9_]+/[A-Za-z0-9_]+", name) for name in names), names
    assert {"mixture/0_0deg", "mixture/1_night_Korner_Sohne"} <= names
