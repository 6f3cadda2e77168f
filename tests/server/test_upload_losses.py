"""What is evaluated before the turn of an upload comes."""

import pytest
import torch

from cdfl.core import defence_of
from cdfl.server.engine import Engine
from cdfl.server.metrics import Metrics
from cdfl.server.store import Store
from cdfl.server.store_records import Retention
from cdfl.server.submission import Submission
from cdfl.server.upload_losses import Evaluation, Evaluators, Foreseen
from cdfl.server.verify import verify

from .guarded import GUARDED, Clients, Gate
from .scheduled import Proxy
from .toy import LAYOUT, TARGETS, evaluate, first_state


def test_an_upload_is_evaluated_although_its_base_is_not_known_yet():
    """What stands for the base must not make the defence refuse it."""
    evaluation = Evaluation(None, GUARDED, defence_of(GUARDED), Proxy(), Metrics())
    model = TARGETS[1] + torch.linspace(-0.1, 0.1, LAYOUT.size)
    submission = Submission("car-7", "key", 0, "", model, "", None)
    evaluation.run([submission], first_state())
    assert submission.losses is not None


class Broken(Gate):
    """Cannot evaluate anything ahead."""

    def of_each(self, vectors):
        raise RuntimeError("no memory")


def entries_of(folder, early_trial):
    """Return the decisions about the same uploads, and how many models the guard tried in its turn."""
    tried = []

    def trial(models, clusters):
        tried.extend(models)
        return evaluate(models, clusters)

    with Store.open(folder, retention=Retention(keep_snapshots=100, keep_uploads=True)) as store:
        store.begin(first_state(), LAYOUT, GUARDED)
        engine = Engine(first_state(), LAYOUT, GUARDED, store, Evaluators(Gate(), evaluate, early_trial, trial))
        try:
            clients = Clients(engine, store)
            for number in range(30):
                clients.upload(f"car-{number % 6}")
            store.snapshot(engine.state)
        finally:
            engine.close()
        assert verify(store).findings == []
        return [entry.decision for entry in store.entries(0)], len(tried)


@pytest.mark.parametrize("early_trial", [Gate(), Broken()], ids=["ahead", "ahead fails"])
def test_steps_that_were_tried_ahead_lead_to_the_same_decisions(tmp_path, early_trial):
    usual, in_turn = entries_of(tmp_path / "usual", None)
    found, left = entries_of(tmp_path / "ahead", early_trial)
    assert found == usual
    assert left == in_turn if isinstance(early_trial, Broken) else left <= 0.6 * in_turn


def test_losses_of_unknown_models_are_evaluated():
    known, other = torch.ones(2, 3), torch.zeros(3)
    asked = []

    def evaluate(models, clusters):
        asked.append((models.tolist(), clusters.tolist()))
        return torch.full((len(models),), 9.0)

    foreseen = Foreseen(evaluate, known, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    losses = foreseen(torch.stack([known[0], known[0], other, other]), torch.tensor([1, 0, 0, 1]))
    assert losses.tolist() == [2.0, 1.0, 9.0, 9.0]
    assert asked == [([[0.0] * 3] * 2, [0, 1])]
