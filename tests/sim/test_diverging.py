"""Trainings that come to nothing: told, refused, and nobody else's business."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from cdfl.algorithms import ALGORITHMS
from cdfl.record import Clusters, Diverged, Uploaded, only
from cdfl.sim import reference
from cdfl.sim.engine import Engines
from cdfl.sim.engine_choice import make_engines

from .world import SETTINGS, assert_same, make_task, run_fast, run_plain

UNLUCKY = 3
HUGE = 1e200


class Ruined:
    """A trainer that lets one client start from numbers that no training survives."""

    def __init__(self, trainer, task):
        self.trainer = trainer
        self.seeds = {task.noise_seed(UNLUCKY, turn) for turn in range(100)}

    def train(self, trainings):
        return self.trainer.train(
            [
                replace(training, start=training.start * HUGE) if training.noise_seed in self.seeds else training
                for training in trainings
            ]
        )


def ruined_plain(monkeypatch, task, name):
    noise, update, now = task.noise, reference.client_update, []

    @contextmanager
    def watched(client, turn):
        now.append(client)
        with noise(client, turn):
            yield

    def ruined(model, start, *given):
        return update(model, start * (HUGE if now[-1] == UNLUCKY else 1.0), *given)

    monkeypatch.setattr(task, "noise", watched)
    monkeypatch.setattr(reference, "client_update", ruined)
    return run_plain(task, name)


@pytest.mark.parametrize("name", ["cdfl", "fedsoft", "ifca", "local", "fedbuff"])
def test_one_client_that_always_diverges(name, monkeypatch):
    task = make_task(model="normed")
    engines = make_engines(task, width=64)
    engines = Engines(Ruined(engines.trainer, task), engines.pretrainer, engines.evaluator)
    result = run_fast(task, name, engines=engines)
    diverged, uploads = only(result.events, Diverged), only(result.events, Uploaded)
    assert {event.client for event in diverged} == {UNLUCKY}
    assert len(diverged) > 1  # it goes on from the model it had, and tries again
    assert UNLUCKY not in {event.client for event in uploads}
    assert len(diverged) + len(uploads) == 40
    assert [event.epoch for event in uploads] == list(range(1, len(uploads) + 1))  # what is refused is no epoch
    assert (result.events[-1].uploads, result.events[-1].diverged) == (len(uploads), len(diverged))
    assert torch.isfinite(result.models).all()
    assert_same(result, ruined_plain(monkeypatch, task, name))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_learning_rate_that_ruins_everybody(name):
    """Some local models are finite and have no finite loss; some clusters would not, either."""
    settings = SETTINGS.replace(optimizer="sgd", learning_rate=1e40, shared_epochs=0, separate_epochs=0, local_epochs=3)
    task = make_task(settings)
    results = run_fast(task, name), run_plain(task, name)
    kinds = [[type(event).__name__ for event in result.events] for result in results]
    clients = [[event.client for event in only(result.events, Uploaded | Diverged)] for result in results]
    assert kinds[0] == kinds[1]
    assert clients[0] == clients[1]
    assert only(results[0].events, Diverged)
    for result in results:
        assert result.models is None or torch.isfinite(result.models).all()
        assert all(0 <= share <= 1 for event in only(result.events, Clusters) for share in event.accuracies)
