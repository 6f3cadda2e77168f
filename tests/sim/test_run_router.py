"""The router of a run: trained in stacks, its evidence and its mixtures."""

import pytest
import torch
from torch import nn

from cdfl.core import TrainingSettings
from cdfl.core.experts import mixture_of
from cdfl.core.router import train_one_by_one, train_router
from cdfl.models.routers import build_router, router_spec
from cdfl.sim.run_router import train_together

from .world import SETTINGS, make_instance

EXPERTS = SETTINGS.replace(reply="experts")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    "inputs",
    [
        [torch.randn(12, 1, 16, 16, generator=seeded(k)).double() + k for k in range(3)],
        [torch.randn(9 + 2 * k, 5, generator=seeded(k)).double() + k for k in range(2)],
        [torch.randint(0, 9, (10, 7), generator=seeded(k)) for k in range(2)],
    ],
    ids=["pictures", "numbers", "tokens"],
)
def test_routers_in_a_stack_are_those_that_are_trained_alone(inputs):
    torch.manual_seed(0)
    module = build_router(router_spec(torch.cat(inputs), len(inputs), 1000)).double()
    settings = TrainingSettings(batch_size=8, local_epochs=2)
    alone, together = (
        train_router(module, inputs, seeded(), settings, train) for train in (train_one_by_one, train_together)
    )
    assert (alone.model - together.model).abs().max() < 1e-9
    assert alone.temperature == pytest.approx(together.temperature, rel=1e-6)


def test_evidence_of_many_turns_is_that_of_each_alone():
    instance, other = (make_instance(EXPERTS) for _ in range(2))
    turns = [(client, turn) for client in range(3) for turn in range(2)]
    together = instance.routing.of([instance.turn_data(*each) for each in turns])
    for each, found in zip(turns, together, strict=True):
        [alone] = other.routing.of([other.turn_data(*each)])
        assert found.train == pytest.approx(alone.train, abs=1e-9)
        assert found.test == pytest.approx(alone.test, abs=1e-9)
        assert found.mixture == pytest.approx(alone.mixture, abs=1e-9)
        assert found.strange == alone.strange
        assert found.mixture == pytest.approx(mixture_of(found.train, strength=2.0, iterations=40), abs=1e-9)


def test_what_is_known_of_a_turn_is_not_computed_again():
    instance = make_instance(EXPERTS)
    turn = instance.turn_data(0, 0)
    [first], [second] = instance.routing.of([turn]), instance.routing.of([turn])
    assert first is second


def test_targets_decide_where_the_router_is_blind():
    instance = make_instance(EXPERTS)
    instance.start = instance.pretrain()
    routing = instance.routing
    [found] = routing.of([instance.turn_data(0, 0)])
    blind = type(found)(torch.zeros_like(found.train), found.test, found.mixture, 0.0)
    prior = torch.tensor([0.1, 0.2, 0.3, 0.4]).double()

    def losses(places):
        return torch.tensor([0.0, 50.0, 50.0, 50.0]).expand(len(places), -1)

    routing.__dict__["loss_scale"] = 1.0
    routing.router = type(routing.router)(**{**vars(routing.router), "confusion": torch.full((4, 4), 0.25).double()})
    assert not routing.is_sure
    assert routing.own_mixture(blind, prior, losses)[0] > 0.6  # of 4 to 12 samples, and a prior of two
    nothing = routing.own_mixture(blind, prior, lambda places: torch.zeros(len(places), 4))
    assert nothing == pytest.approx(prior, abs=0.01)


def test_a_module_that_cannot_be_stacked_is_trained_alone():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, inputs):
            return self.linear(inputs) * (2 if bool(inputs.sum() > 0) else 1)

    inputs = [torch.randn(8, 3, generator=seeded(k)) for k in range(2)]
    router = train_router(Branching(), inputs, seeded(), TrainingSettings(local_epochs=1), train_together)
    assert router.num_clusters == 2
