"""The fast simulation equals the reference, for every algorithm and any stacks."""

from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch

from cdfl.algorithms import ALGORITHMS
from cdfl.core import TrainingSettings, experts, guard, router
from cdfl.run_events import Clusters, Diverged, Uploaded, only
from cdfl.sim import reference_simulation
from cdfl.sim.cpu_threads import Workers
from cdfl.sim.engine import Engines
from cdfl.sim.engine_choice import make_engines
from cdfl.sim.time_models import TIME_MODELS, Devices, Span
from cdfl.upload_policies import POLICIES, DriftDetected, EverySamples, LossRises, MixtureMoves, PageHinkley, Sometimes

from .world import SETTINGS, assert_same, assert_same_events, make_instance, run_fast, run_plain

pytestmark = pytest.mark.slow

# Applied and deprecated uploads and fading rates: every branch of the server is taken.
BUSY = SETTINGS.replace(max_staleness=25, staleness_slope=0.1)


@cache
def busy_instance(model="tiny", optimizer="adam", momentum=0.0):
    settings = BUSY.replace(optimizer=optimizer, momentum=momentum)
    return make_instance(settings, model=model, num_uploads=60)


@cache
def plain_run(name, **network):
    return run_plain(busy_instance(**network), name)


def workers(instance, count):
    made = [
        Workers(
            instance.model,
            instance.loss,
            replace(instance.settings.training, proximal_strength=rho),
            instance.dtype,
            count=count,
        )
        for rho in (instance.settings.training.proximal_strength, 0.0)
    ]
    return Engines(*made, made[0])


def test_the_reference_run_has_everything_in_it():
    uploads = only(plain_run("cdfl").events, Uploaded)
    assert len(uploads) == 60
    assert any(upload.outcome == "deprecated" for upload in uploads)
    assert any(one.client == other.client for one, other in pairwise(uploads))  # twice in a row
    assert len({upload.samples for upload in uploads}) == 9
    assert len({sum(rate > 0 for rate in upload.rates) for upload in uploads}) > 2


@pytest.mark.parametrize(
    ("name", "width"), [*((name, 3) for name in ALGORITHMS), ("cdfl", 1), ("cdfl", 64), ("fedem", 64)]
)
def test_stacks_of_any_width(name, width):
    assert_same(run_fast(busy_instance(), name, width=width), plain_run(name))


@pytest.mark.parametrize("name", ["cdfl", "fedsoft", "ifca", "oracle"])  # others take no step of this kind
def test_steps_towards_the_upload(name):
    instance = make_instance(SETTINGS.replace(cluster_step="towards", base_rate=0.3))
    assert_same(run_fast(instance, name), run_plain(instance, name))


ROUTED = BUSY.replace(reply="experts")


@pytest.fixture(autouse=True)
def _short_training(monkeypatch):
    """A router that is not perfect is as good here."""
    short = TrainingSettings(learning_rate=4e-3, batch_size=128, local_epochs=5)
    monkeypatch.setattr(router, "router_training", lambda num_samples: short)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_cluster_models_behind_a_router(name):
    instance = make_instance(ROUTED)
    fast, plain = run_fast(instance, name), run_plain(instance, name)
    assert_same(fast, plain)
    uploads = only(plain.events, Uploaded)
    assert all(bool(upload.routed) == (name not in ("fedasync", "fedbuff")) for upload in uploads)
    if name == "cdfl":
        assert all(upload.served == upload.routed["soft"] for upload in uploads)
        assert {upload.served != upload.after for upload in uploads} == {True, False}
        assert all(upload.mixture[0] == upload.mixture[0] for upload in uploads)
    else:
        assert all((upload.served, upload.served_held) == (upload.after, upload.held) for upload in uploads)


def test_a_router_that_is_not_sure_asks_the_targets(monkeypatch):
    monkeypatch.setattr(experts, "SURE", 1.1)
    instance = make_instance(ROUTED)
    fast = run_fast(instance)
    assert_same(fast, run_plain(instance))
    monkeypatch.setattr(experts, "SURE", 0.0)
    inputs_alone = only(run_fast(instance).events, Uploaded)
    assert [upload.mixture for upload in only(fast.events, Uploaded)] != [upload.mixture for upload in inputs_alone]


def test_a_mixture_that_is_not_sent_serves_the_client_alone():
    instance = make_instance(ROUTED.replace(send_mixture=False))
    run = run_fast(instance)
    assert_same(run, run_plain(instance))
    sent = only(run_fast(make_instance(ROUTED)).events, Uploaded)
    kept = only(run.events, Uploaded)
    assert [upload.mixture for upload in kept] != [upload.mixture for upload in sent]  # the server's own estimates
    assert kept[0].routed["divergence"] == sent[0].routed["divergence"]  # the client's
    assert kept[0].server_flops > sent[0].server_flops == 0


@pytest.mark.parametrize("send_mixture", [True, False])
def test_the_guard_judges_uploads_that_bring_their_mixture(send_mixture, monkeypatch):
    monkeypatch.setattr(guard, "TOLERATED", 0.0)  # so that it rejects some
    monkeypatch.setattr(guard, "REFUSED", 1e-9)
    settings = ROUTED.replace(guard=True, shared_step=0.25, send_mixture=send_mixture)
    instance = make_instance(settings)
    run = run_fast(instance)
    assert_same(run, run_plain(instance))
    outcomes = Counter(upload.outcome for upload in only(run.events, Uploaded))
    assert min(outcomes["applied"], outcomes["rejected"]) > 0  # a rejected client keeps its experts


@pytest.mark.parametrize("name", ["cdfl", "ifca", "local-keep"])
def test_workers(name):
    instance = busy_instance()
    assert_same(run_fast(instance, name, engines=workers(instance, 2)), plain_run(name))


@pytest.mark.parametrize("model", ["normed", "frozen"])
@pytest.mark.parametrize(("optimizer", "momentum"), [("adam", 0.0), ("sgd", 0.9)])
def test_other_networks_and_optimizers(model, optimizer, momentum):
    instance = make_instance(BUSY.replace(optimizer=optimizer, momentum=momentum), model=model)
    expected = run_plain(instance)
    assert_same(run_fast(instance, width=5), expected)
    assert_same(run_fast(instance, engines=workers(instance, 1)), expected)


def test_a_client_that_never_uploads():
    instance = make_instance(num_clients=12, num_uploads=10)
    result = run_fast(instance)
    assert len({upload.client for upload in only(result.events, Uploaded)}) < 12
    assert_same(result, run_plain(instance))


@pytest.mark.parametrize("name", TIME_MODELS)
def test_every_time_model(name):
    instance = make_instance()
    result = run_fast(instance, time_model=TIME_MODELS[name])
    assert_same(result, run_plain(instance, time_model=TIME_MODELS[name]))
    assert len(only(result.events, Uploaded)) == 40


TICK = Devices(Span("constant", 1.0), Span(), Span("constant", 1.0), Span())  # all devices, at every full second
COMING_AND_GOING = Devices(joins=Span("exponential", 2.0), stays=Span("exponential", 4.0))


def test_ties_are_broken_by_who_came_first():
    instance = make_instance()
    result = run_fast(instance, time_model=TICK)
    assert_same(result, run_plain(instance, time_model=TICK))
    uploads = only(result.events, Uploaded)
    assert [upload.time for upload in uploads] == sorted([1.0, 2.0, 3.0, 4.0] * 12)[:40]
    assert [upload.client for upload in uploads] == (list(range(12)) * 4)[:40]


@pytest.mark.parametrize("name", ["cdfl", "fedsoft", "local-keep"])
def test_newcomers_and_leavers(name):
    instance = make_instance()
    result = run_fast(instance, name, COMING_AND_GOING)
    assert_same(result, run_plain(instance, name, COMING_AND_GOING))
    uploads = only(result.events, Uploaded)
    assert 5 < len(uploads) <= 40
    newcomers = [upload for upload in uploads if upload.update == 0 and upload.epoch > 12]
    assert newcomers
    last = {upload.client: upload.time for upload in uploads}
    assert max(last.values()) - min(last.values()) > 2  # some were gone long before the end


def test_all_may_leave_before_the_last_upload():
    short = Devices(stays=Span("constant", 2.5))
    instance = make_instance(num_clients=3)
    result = run_fast(instance, time_model=short)
    assert_same(result, run_plain(instance, time_model=short))
    assert 0 < result.events[-1].uploads < 40


EAGER = {
    "every-samples": EverySamples(25),
    "sometimes": Sometimes(0.3),
    "loss-rises": LossRises(1.01),
    "page-hinkley": PageHinkley(0.05, 0.0),
    "kswin": DriftDetected("KSWIN", {"seed": 0, "alpha": 0.9, "window_size": 4, "stat_size": 2}),
}


@pytest.mark.parametrize(("name", "algorithm"), [*((name, "cdfl") for name in EAGER), ("sometimes", "ifca")])
def test_every_policy(name, algorithm):
    instance = make_instance(num_uploads=20)
    result = run_fast(instance, algorithm, policy=EAGER[name])
    assert_same(result, run_plain(instance, algorithm, policy=EAGER[name]))
    uploads = only(result.events, Uploaded)
    assert len(uploads) == 20
    assert uploads[-1].time > 25  # some turns were no uploads


@pytest.mark.parametrize("policy", [MixtureMoves(0.1), POLICIES["follow"]])
def test_policies_see_the_client_s_own_mixture(policy):
    instance = make_instance(ROUTED, num_uploads=20)
    result = run_fast(instance, policy=policy)
    assert_same(result, run_plain(instance, policy=policy))
    uploads = only(result.events, Uploaded)
    assert len(uploads) == 20
    assert uploads[-1].time > 20  # some turns were no uploads


def test_every_policy_ends_even_where_it_never_says_upload():
    same_class = {"adwin", "follow"}  # as kswin, which is more easily alarmed, and as mixture-moves
    assert set(EAGER) | {"always", "mixture-moves"} | same_class == set(POLICIES)
    instance = make_instance(num_clients=4, num_uploads=3)
    never = EverySamples(10**9)
    result = run_fast(instance, policy=never)
    assert_same_events(result.events, run_plain(instance, policy=never).events)
    assert (result.events[-1].uploads, result.events[-1].before, result.events[-1].staleness) == (0, None, {})
    for policy in POLICIES.values():
        assert run_fast(instance, policy=policy).events[-1].uploads <= 3


def test_a_client_with_one_sample():
    sizes = make_instance().scenario.sizes
    instance = make_instance(sizes=type(sizes)(low=1, high=2, test=4, pretraining=8, proxy=8))
    result = run_fast(instance)
    assert {upload.samples for upload in only(result.events, Uploaded)} == {1, 2}
    assert_same(result, run_plain(instance))


def test_float32_stays_within_a_stated_bound_of_the_plain_loop():
    """One training and one server step: models to 1e-5, events to 1e-4; later uploads amplify rounding."""
    instance = make_instance(num_uploads=1, num_clients=1, dtype=torch.float32)
    for engines in (None, workers(instance, 1)):
        fast, plain = run_fast(instance, engines=engines), run_plain(instance)
        assert (fast.models - plain.models).abs().max() < 1e-5
        assert_same(fast, plain, 1e-4)


def test_nothing_is_trained_in_vain_or_twice():
    instance = make_instance()
    engines = make_engines(instance, width=64)
    stacks = []

    class Counted:
        def train(self, trainings):
            stacks.append(len(trainings))
            return engines.trainer.train(trainings)

    run_fast(instance, engines=Engines(Counted(), engines.pretrainer, engines.evaluator))
    assert sum(stacks) == 40
    assert len(stacks) < 20  # together, where they can be


# -- trainings that diverge

UNLUCKY = 3
HUGE = 1e200


class Ruined:
    """A trainer that lets one client start from numbers that no training survives."""

    def __init__(self, trainer, instance):
        self.trainer = trainer
        self.seeds = {instance.noise_seed(UNLUCKY, turn) for turn in range(100)}

    def train(self, trainings):
        return self.trainer.train(
            [
                replace(training, start=training.start * HUGE) if training.noise_seed in self.seeds else training
                for training in trainings
            ]
        )


def ruined_plain(monkeypatch, instance, name):
    noise, update, now = instance.noise, reference_simulation.client_update, []

    @contextmanager
    def watched(client, turn):
        now.append(client)
        with noise(client, turn):
            yield

    def ruined(model, start, *given):
        return update(model, start * (HUGE if now[-1] == UNLUCKY else 1.0), *given)

    monkeypatch.setattr(instance, "noise", watched)
    monkeypatch.setattr(reference_simulation, "client_update", ruined)
    return run_plain(instance, name)


@pytest.mark.parametrize("name", ["cdfl", "fedsoft", "ifca", "local", "fedbuff"])
def test_one_client_that_always_diverges(name, monkeypatch):
    instance = make_instance(model="normed")
    engines = make_engines(instance, width=64)
    engines = Engines(Ruined(engines.trainer, instance), engines.pretrainer, engines.evaluator)
    result = run_fast(instance, name, engines=engines)
    diverged, uploads = only(result.events, Diverged), only(result.events, Uploaded)
    assert {event.client for event in diverged} == {UNLUCKY}
    assert len(diverged) > 1  # it goes on from the model it had, and tries again
    assert UNLUCKY not in {event.client for event in uploads}
    assert len(diverged) + len(uploads) == 40
    assert [event.epoch for event in uploads] == list(range(1, len(uploads) + 1))  # what is refused is no epoch
    assert (result.events[-1].uploads, result.events[-1].diverged) == (len(uploads), len(diverged))
    assert torch.isfinite(result.models).all()
    assert_same(result, ruined_plain(monkeypatch, instance, name))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_learning_rate_that_ruins_everybody(name):
    """Some local models are finite and have no finite loss; some clusters would not, either."""
    settings = SETTINGS.replace(optimizer="sgd", learning_rate=1e40, shared_epochs=0, separate_epochs=0, local_epochs=3)
    instance = make_instance(settings)
    results = run_fast(instance, name), run_plain(instance, name)
    kinds = [[type(event).__name__ for event in result.events] for result in results]
    clients = [[event.client for event in only(result.events, Uploaded | Diverged)] for result in results]
    assert kinds[0] == kinds[1]
    assert clients[0] == clients[1]
    assert only(results[0].events, Diverged)
    for result in results:
        assert result.models is None or torch.isfinite(result.models).all()
        assert all(0 <= share <= 1 for event in only(result.events, Clusters) for share in event.scores)
