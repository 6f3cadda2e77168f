"""Runs are recorded and replayed: `Replay` gives the same states and replies, bit by bit, without proxy sets."""

import json
from collections import Counter
from dataclasses import fields

import pytest
import torch
from torch import Tensor

from cdfl.core import (
    GIVEN,
    NEWCOMER,
    UNMEASURED,
    ClientMemory,
    Measures,
    Replay,
    Settings,
    Upload,
    Verdict,
    defence_of,
    estimator_of,
    initial_state,
    server_update,
)

from .toy import Careful, Proxy, bits, forbidden

CLUSTERS, SIZE, CLIENTS = 3, 5, 4


def start() -> Tensor:
    return torch.randn(CLUSTERS, SIZE, generator=torch.Generator().manual_seed(0))


def uploads(count: int = 60):
    """Clients and uploads: small and large changes, old and new, with and without a base model."""
    random = torch.Generator().manual_seed(1)

    def number(most: int) -> int:
        return int(torch.randint(most, (), generator=random))

    for _ in range(count):
        base_model = torch.randn(SIZE, generator=random)
        change = torch.randn(SIZE, generator=random) * (30.0 if number(6) == 0 else 0.3)
        parts = torch.rand(CLUSTERS, generator=random, dtype=torch.float64) + 0.1
        yield (
            number(CLIENTS),
            Upload(
                base_model + change,
                base_epoch=number(12),  # how many epochs ago
                mixture=parts / parts.sum(),
                base_model=base_model if number(2) else None,
            ),
        )


def through_json(value):
    """Floats as a journal has them."""
    return json.loads(json.dumps(value))


def recorded(state, reply, estimator, defence) -> Replay:
    """What a journal keeps of an upload, written and read."""

    def tensor(values: Tensor) -> Tensor:
        return torch.tensor(through_json(values.tolist()), dtype=torch.float64)

    is_accepted, seen, client, reason, bounds = through_json(reply.verdict)
    return Replay(
        tensor(reply.mixture),
        tensor(reply.rates),
        tensor(state.cluster_losses),
        Measures(*map(tensor, reply.measures)),
        Verdict(is_accepted, tuple(seen), tuple(client), reason, tuple(bounds)),
        estimator,
        defence,
    )


def same_state(one, other) -> bool:
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)]
    return all(bits(a) == bits(b) if isinstance(a, Tensor) else a == b for a, b in pairs)


SETTINGS = [
    Settings(measures=measures, cluster_step=step, guard=guard, max_staleness=9, base_rate=0.3)
    for measures in ("plain", "relative")
    for step in ("along", "towards")
    for guard in (False, True)
]


def run_and_replay(settings, estimator, defence) -> Counter:
    """Take every upload, and replay it at once from what was recorded; returns how often each outcome came."""
    proxy = Proxy(torch.randn(CLUSTERS, SIZE, generator=torch.Generator().manual_seed(2)))
    state = initial_state(start(), proxy, num_parameters=SIZE - 1)
    replayed, outcomes = state, Counter()
    known = dict.fromkeys(range(CLIENTS), NEWCOMER)
    known_again = dict(known)
    for client, upload in uploads():
        upload = upload.replace(base_epoch=max(0, state.epoch - upload.base_epoch))
        state, reply = server_update(
            state, upload, settings, proxy, known[client], estimator=estimator, defence=defence
        )
        known[client] = reply.client
        again = recorded(state, reply, estimator, defence)
        replayed, answer = server_update(
            replayed, upload, settings, forbidden, known_again[client], estimator=again, defence=again
        )
        known_again[client] = answer.client
        assert same_state(replayed, state)
        assert (answer.outcome, answer.epoch, answer.staleness) == (reply.outcome, reply.epoch, reply.staleness)
        assert answer.verdict == reply.verdict
        for name in ("personal_model", "mixture", "rates"):
            assert bits(getattr(answer, name)) == bits(getattr(reply, name))
        outcomes[reply.outcome] += 1
        outcomes["shrunk"] += reply.verdict.seen[1:] == (0.5,)
    return outcomes


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_replay_gives_the_same_bits(settings):
    outcomes = run_and_replay(settings, estimator_of(settings), defence_of(settings))
    assert min(outcomes["applied"], outcomes["deprecated"]) > 5
    assert settings.guard or not outcomes["rejected"]


@pytest.mark.parametrize("settings", SETTINGS[::2])
def test_a_replay_of_another_defence_gives_the_same_bits(settings):
    """It bounds uploads again, and repeats the rates to which it shrunk a step."""
    outcomes = run_and_replay(settings, estimator_of(settings), Careful(longest=2.0, worse=1.1))
    assert min(outcomes[name] for name in ("applied", "deprecated", "rejected", "shrunk")) >= 3


def test_a_replay_of_given_mixtures_gives_the_same_bits():
    outcomes = run_and_replay(SETTINGS[1], GIVEN, defence_of(SETTINGS[1]))
    assert min(outcomes["applied"], outcomes["deprecated"]) > 5


def test_a_rejected_upload_is_refused_again_and_nothing_is_asked():
    settings, state = Settings(), initial_state(start(), Proxy(torch.zeros(CLUSTERS, SIZE)))
    verdict = Verdict(False, (7.5, None), (2.0,), "too much")
    mixture, none = torch.tensor([0.5, 0.25, 0.25]).double(), torch.zeros(CLUSTERS, dtype=torch.float64)
    client = ClientMemory(torch.tensor([0.25, 0.25, 0.5]).double(), (1.0,))
    for measures in (Measures(*torch.ones(3, CLUSTERS).double()), UNMEASURED):
        it = Replay(mixture, none, state.cluster_losses, measures, verdict, estimator_of(settings), Careful())
        sent = Upload(torch.ones(SIZE), 0, base_model=torch.full((SIZE,), 0.5))
        after, reply = server_update(state, sent, settings, forbidden, client, estimator=it, defence=it)
        assert after is state
        assert (reply.outcome, reply.verdict, reply.client.defence) == ("rejected", verdict, (2.0,))
        assert bits(reply.mixture) == bits(client.mixture)
        assert bits(reply.personal_model) == bits(sent.base_model)


def test_it_begins_as_its_estimator_does():
    for settings in (Settings(), Settings(measures="relative")):
        estimator = estimator_of(settings)
        it = Replay(torch.ones(1), torch.ones(1), torch.ones(1), UNMEASURED, Verdict(), estimator, Careful())
        assert it.begin(4).shape == estimator.begin(4).shape
        assert not it.needs_measures
