"""The guard: what it bounds, blames and refuses; and an adversary that chooses what it uploads."""

import math
from random import Random

import pytest
import torch

from cdfl.core import (
    DEFAULT,
    NEWCOMER,
    ClientMemory,
    Guard,
    Settings,
    Upload,
    guard,
    initial_state,
    server_update,
)
from cdfl.core.guard import BURST, HARM, LIFTS, OFTEN, is_healthy

from .adversary import SETTINGS, Turn, run
from .toy import Proxy

ALONG = DEFAULT.replace(guard=True, base_rate=0.2, max_staleness=None)


def copies(turn: Turn):
    """The attack that the harm test did not see."""
    return turn.clusters[turn.number % len(turn.clusters)]


def flipped(turn: Turn):
    return 2 * turn.received - turn.trained


class TestLosses:
    """Losses of any sign and scale, one cluster, and none that is finite."""

    @pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1e-9, 0.0), (1e9, -1e10), (-0.0 + 1.0, -50.0)])
    @pytest.mark.parametrize("num_clusters", [1, 3])
    def test_honest_uploads_count(self, scale, shift, num_clusters):
        proxy = Proxy(torch.arange(num_clusters)[:, None] * 4.0 + torch.zeros(num_clusters, 2))

        def evaluate(models, clusters):
            return proxy(models, clusters) * scale + shift

        state = initial_state(proxy.centres + 1.0, evaluate)
        memories, outcomes = {}, []
        for number in range(40):
            name, centre = number % 8, proxy.centres[number % num_clusters]
            memory = memories.get(name, NEWCOMER)
            base = state.cluster_models[number % num_clusters]
            upload = Upload(base + 0.5 * (centre - base), state.epoch, name, base_model=base)
            state, reply = server_update(state, upload, ALONG, evaluate, memory)
            memories[name] = reply.client
            outcomes.append(reply.outcome)
        assert outcomes.count("applied") >= 34
        assert bool(state.cluster_losses.isfinite().all())

    def test_a_step_to_a_loss_that_is_not_finite_is_refused(self):
        def evaluate(models, clusters):  # infinite between the cluster and the upload only
            return torch.where((models[:, 0] > 10.5) & (models[:, 0] < 12.5), math.inf, models[:, 0].abs())

        state = initial_state(torch.tensor([[10.0], [10.0]]), evaluate)
        upload = Upload(torch.tensor([13.0]), 0, "bad", base_model=torch.tensor([10.0]))
        after, reply = server_update(state, upload, ALONG.replace(base_rate=0.5), evaluate)
        assert (reply.outcome, after.epoch) == ("rejected", 0)
        assert LIFTS in reply.verdict.reason or HARM in reply.verdict.reason


class TestBlame:
    """One cluster, and clients whose steps lead to its centre or away from it."""

    CENTRE = torch.zeros(1, 2)

    def rates(self, blame: float, way: float) -> tuple[str, float, float]:
        """What becomes of an upload of a client with this blame: its outcome, its rate and its blame afterwards."""
        proxy = Proxy(self.CENTRE)
        state = initial_state(self.CENTRE + 8.0, proxy)

        def step(name, state, way, memory):
            base = state.cluster_models[0]
            upload = Upload(base + way * 0.2 * (self.CENTRE[0] - base), state.epoch, name, base_model=base)
            return server_update(state, upload, ALONG, proxy, memory)

        for number in range(8):
            state, reply = step(str(number), state, 1.0, NEWCOMER)
            assert float(reply.rates[0]) == ALONG.rates.base_rate
        _, reply = step("judged", state, way, ClientMemory(None, guard._Client(9.0, 0.0, 0.0, 9.0, blame, blame)))
        return reply.outcome, float(reply.rates[0]), guard._Client(*reply.verdict.client).blame

    def test_a_step_shrinks_with_blame_before_it_is_refused(self):
        found = [self.rates(blame, -1.0) for blame in (-1.0, 0.0, 0.3, 0.6, 0.9, 2.0)]
        rates = [rate for _, rate, _ in found]
        assert rates == sorted(rates, reverse=True)
        assert (rates[0], rates[-1]) == (ALONG.rates.base_rate, 0.0)
        assert [outcome for outcome, _, _ in found] == [*["applied"] * 5, "rejected"]

    def test_useful_steps_are_forgiven_also_if_they_are_refused(self):
        outcome, _, blame = self.rates(2.5, 1.0)
        assert (outcome, blame < 2.2) == ("rejected", True)
        assert self.rates(1.0, 1.0)[2] < 0.9 < 1.0 < self.rates(1.0, -1.5)[2]

    def test_a_step_that_is_too_long_but_the_right_way_is_no_harm(self):
        proxy = Proxy(self.CENTRE)
        state = initial_state(self.CENTRE + 1.0, proxy)
        base = state.cluster_models[0]
        for way, is_harm in ((15.0, False), (-15.0, True)):
            upload = Upload(base + way * (self.CENTRE[0] - base), 0, base_model=base)
            after = base + 0.2 * (upload.local_model - base)
            assert proxy(after[None], torch.tensor([0])) > proxy(base[None], torch.tensor([0]))
            effects = Guard(0.2)._effects(state, upload, torch.tensor([0.2]).double(), proxy)
            assert [effect > 0 for effect in effects] == [is_harm] * 2

    @pytest.mark.parametrize("usual", [0.3, -0.3])
    def test_harm_is_what_differs_from_the_usual_effect(self, usual):
        memory = guard._Memory(50.0, 0.0, torch.zeros(1), torch.zeros(8, guard.WIDTH + 1, dtype=torch.float64))
        memory.rows[:, guard.COLUMNS["sent"]] = torch.tensor([-0.4, -0.1, 0.0, 0.0, 0.0, 0.1, 0.1, 9.0]) + usual
        memory.rows[:, guard.COLUMNS["moved"]] = torch.tensor([1.0])
        for effect, harm in ((usual, 0.0), (usual + 0.3, 1.0), (usual - 0.15, -0.5), (9.0, guard.MOST_HARM)):
            harms = memory.harms_of(guard._Effects(effect, 1.0))
            assert harms == (pytest.approx(harm, abs=1e-6), 0.0)

    def test_copies_of_clusters_are_seen_on_the_clusters_only(self):
        """What improves the model that a client was sent may still make clusters worse."""
        proxy = Proxy(self.CENTRE)
        state = initial_state(self.CENTRE + 1.0, proxy)
        base = self.CENTRE[0] + 5.0  # old
        upload = Upload(state.cluster_models[0] - 1.5, 0, base_model=base)
        effects = Guard(0.5)._effects(state, upload, torch.tensor([0.5]).double(), proxy)
        assert effects.sent < 0
        passed = Upload(torch.full((2,), 5.0), 0, base_model=torch.full((2,), -1.0))  # from one side to the other
        assert Guard(0.5)._effects(state, passed, torch.tensor([0.5]).double(), proxy).moved > 0

    def test_the_first_upload_of_a_client_is_never_refused_for_harm(self):
        assert guard._factor(guard.MOST_HARM / 2) > 0


def test_a_variance_that_doubles_is_no_reason_to_refuse():
    """Its opposite would be negative, and the loss NaN."""

    def evaluate(models, clusters):
        return models[:, 0] ** 2 + models[:, 1].sqrt()

    state = initial_state(torch.tensor([[4.0, 1.0], [4.0, 1.0]]), evaluate, num_parameters=1)
    upload = Upload(torch.tensor([3.0, 9.0]), 0, base_model=torch.tensor([4.0, 1.0]))
    after, reply = server_update(state, upload, ALONG, evaluate)
    assert reply.outcome == "applied"
    assert bool(after.cluster_losses.isfinite().all())


class TestRefusals:
    def world(self):
        return run(0, uploads=40)

    def test_a_refused_upload_changes_nothing_and_gets_its_own_model_back(self):
        world = self.world()
        member = world.clients[0]
        member.memory = ClientMemory(member.memory.mixture, guard._Client(9.0, 0.0, 0.0, -1e9))
        before, held = world.state, member.model
        world.upload(member, torch.randn(held.shape))
        assert member.outcomes[-1] == "rejected"
        assert world.state is before
        assert torch.equal(member.model, held)

    def test_one_client_cannot_take_the_share_of_others(self):
        world = self.world()
        fast = world.clients[0]
        for _ in range(60):
            world.upload(fast, world.train(fast))
        assert fast.outcomes[-30:].count("rejected") >= 15
        others = world.clients[5:]
        for member in others:
            world.upload(member, world.train(member))
        assert [member.outcomes[-1] for member in others].count("rejected") <= 1

    def test_a_shrunk_upload_counts_as_several(self):
        """It would age the uploads of others as much as a whole one."""
        world = self.world()
        trusted, blamed = world.clients[10], world.clients[11]
        memory = guard._Client(uploads=9.0, epoch=float(world.state.epoch), credit=5.0)
        left = []
        for member, blame in ((trusted, -1.0), (blamed, 0.7)):
            member.memory = ClientMemory(member.memory.mixture, memory._replace(sent_blame=blame))
            world.upload(member, world.train(member))
            assert member.outcomes[-1] == "applied"
            left.append(guard._Client(*member.memory.defence).credit)
        assert left[0] > 4.0 > 3.0 > left[1]

    def test_when_few_clients_are_known_new_ones_share_too(self):
        memory = guard._Memory(50.0, 0.0, torch.zeros(1), torch.zeros(20, guard.WIDTH + 1, dtype=torch.float64))
        memory.rows[:5, guard.COLUMNS["is_known"]] = 1.0
        assert guard._credit(20, 0.0, guard._Client(credit=0.0), memory) == pytest.approx(guard.SHARE)

    def test_clients_that_remain_when_others_are_away_may_go_on(self):
        """Two of twenty earn less than they use; without this, they would wait for a day."""
        world = self.world()
        few = world.clients[-2:]
        while {member.outcomes[-1] for member in few} != {"rejected"}:
            for member in few:
                world.upload(member, world.train(member))
        for minute in range(1, 60):
            for member in few:
                world.upload(member, world.train(member), time=60.0 * minute)
        for member in few:
            assert 4 <= member.outcomes[-59:].count("applied") <= 12

    def test_an_absurd_change_is_shortened(self):
        world = self.world()
        member = world.clients[0]
        upload = Upload(member.model + 1e6, member.epoch, base_model=member.model)
        bounded, verdict = Guard(0.1).admit(world.state, upload, member.memory)
        assert verdict.is_accepted
        usual = guard._Memory.of(world.state.defence_memory).column("norm").median()
        assert float(torch.dist(bounded.local_model, member.model)) == pytest.approx(
            guard.LONGEST * float(usual), rel=1e-3
        )

    def test_absurd_uploads_do_not_make_large_ones_usual(self):
        """The two-step attack."""
        world = self.world()
        usual = guard._Memory.of(world.state.defence_memory).column("norm").median()
        member = world.clients[0]
        for number in range(60):
            world.upload(member, member.model + 10.0 ** (number % 30))
        after = guard._Memory.of(world.state.defence_memory).column("norm").median()
        assert float(after) < 1.2 * float(usual)

    def test_the_first_uploads_of_a_client_are_not_counted_against_it(self):
        assert OFTEN  # a new client has `BURST` uploads at once
        assert BURST >= 5


def test_a_poisoned_state_is_not_healthy():
    world = run(0, uploads=60)
    good = world.state
    assert is_healthy(good, good, good)
    poisoned = good.replace(cluster_losses=good.cluster_losses + 1.0)
    assert not is_healthy(poisoned, good, good)


# -- the adversary

CLEAN = {seed: run(seed).accuracy() for seed in ()}  # filled by `clean`


def clean(seed: int) -> float:
    if seed not in CLEAN:
        CLEAN[seed] = run(seed).accuracy()
    return CLEAN[seed]


def test_honest_clients_are_rarely_refused():
    """Near the end of training an honest upload makes models worse as often as better."""
    outcomes = [outcome for seed in (10, 11) for member in run(seed).clients for outcome in member.outcomes]
    assert outcomes.count("rejected") < 0.03 * len(outcomes)


LONG = pytest.mark.long


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "how"),
    [
        (copies, "fifth"),
        pytest.param(copies, "fast", marks=LONG),
        pytest.param(copies, "new", marks=LONG),
        pytest.param(flipped, "fifth", marks=LONG),
        pytest.param(flipped, "fast", marks=LONG),
        pytest.param(flipped, "new", marks=LONG),
    ],
)
def test_what_the_guard_prevents(attack, how):
    """Without it the clusters lose much; so the property below says something."""
    lost = clean(0) - run(0, attack, how=how, settings=SETTINGS.replace(guard=False)).accuracy()
    assert lost > 0.03
    assert clean(0) - run(0, attack, how=how).accuracy() < 0.01


def plan_of(number):
    """A plan drawn at random: not by Hypothesis, whose draws depend on the modules that are loaded."""
    chance = Random(number)  # noqa: S311  a test
    parts = [
        {
            "change": chance.choice([-1, 1]) * chance.uniform(0.5, 12),
            "noise": chance.uniform(0, 12),
            "copy": chance.uniform(-3, 3),
            "shrink": chance.uniform(-3, 3),
        }
        for _ in range(chance.randint(1, 4))
    ]
    return parts, chance.choice(["fifth", "fast"]), chance.randint(0, 1)


def planned(plan):
    """Any mix of the honest change, noise, cluster models and a drift, which changes from upload to upload."""

    def attack(turn: Turn):
        part = plan[turn.number % len(plan)]
        length = (turn.trained - turn.received).norm()
        noise = torch.randn(turn.trained.shape, generator=turn.random)
        return (
            turn.received
            + part["change"] * (turn.trained - turn.received)
            + part["noise"] * length * noise / noise.norm()
            + part["copy"] * (turn.clusters[turn.number % len(turn.clusters)] - turn.received)
            + part["shrink"] * length * -turn.received / turn.received.norm().clamp(min=1e-9)
        )

    return attack


@pytest.mark.slow
@pytest.mark.parametrize("number", [*range(4), *(pytest.param(number, marks=LONG) for number in range(4, 30))])
def test_no_plan_moves_the_clusters_far(number):
    """Within 1 point of the run without attackers, on data that the guard never sees; and after them it recovers."""
    plan, how, seed = plan_of(number)
    world = run(seed, planned(plan), how=how)
    assert world.accuracy() >= clean(seed) - 0.01
    for _ in range(60):
        member = world.pick(world.clients[4:])
        world.upload(member, world.train(member))
    assert world.accuracy() >= clean(seed) - 0.01


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fifth", pytest.param("fast", marks=LONG), "new"])
@pytest.mark.parametrize("length", [0.0, 1e-6])
def test_uploads_that_change_nothing(how, length):
    """Neither do they age those of others, nor do short changes become usual."""

    def attack(turn: Turn):
        return turn.received + length * torch.randn(turn.received.shape, generator=turn.random)

    world = run(0, attack, how=how)
    assert world.accuracy() >= clean(0) - 0.01
    assert float(guard._Memory.of(world.state.defence_memory).column("norm").median()) > 0.1


def test_settings():
    assert Settings().guard is False
    with pytest.raises(ValueError, match="guard"):
        Settings(guard="yes")
