"""Clients that poison: only they, every time, and in both simulations alike."""

from itertools import islice, takewhile
from typing import NamedTuple

import numpy as np
import pytest
import torch

from benchmarks.poison_attacks import (
    ATTACKS,
    Attack,
    Copies,
    FlippedLabels,
    FlippedSign,
    Hidden,
    Idle,
    Negated,
    Noise,
    OnAndOff,
    OneFast,
    SlowDrift,
    Turn,
    TwoSteps,
    attacked,
    attacked_instance,
    attacked_server,
)
from cdfl.algorithms import make_algorithm
from cdfl.core import Guard
from cdfl.run_events import Uploaded, only
from cdfl.sim.engine_choice import make_engines
from cdfl.sim.reference_simulation import simulate
from cdfl.sim.simulation import Simulation
from cdfl.sim.time_models import Uniform
from tests.sim.world import Result, assert_same, assert_same_events, make_instance, run_fast

pytestmark = pytest.mark.slow

PROBLEM = make_instance(num_uploads=60)
SOME = Attack().attackers(PROBLEM.seed, 12)
CLUSTERS = torch.tensor([[1.0, 1.0], [5.0, 5.0]])


def turn(number=0, seed=0):
    random = torch.Generator().manual_seed(seed)
    return Turn(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0]), CLUSTERS, number, client=0, random=random)


def simulation(instance=PROBLEM, name="cdfl"):
    return Simulation(instance, make_algorithm(name, instance.settings), Uniform(), make_engines(instance, width=64))


def run_attacked(attack, instance=PROBLEM):
    run = attacked(simulation(instance), attack)
    return Result(run.events(), run.algorithm)


class Seen(NamedTuple):
    client_id: object
    has_losses: bool
    bounds: tuple[float, float]


class Watching(Guard):
    """The guard; `seen` says what it got of each upload, and how much of its change it left."""

    def __init__(self, base_rate):
        super().__init__(base_rate)
        object.__setattr__(self, "seen", [])

    def admit(self, state, upload, client):
        admitted, verdict = super().admit(state, upload, client)
        if verdict.is_accepted:
            self.seen.append(Seen(upload.client_id, upload.losses is not None, admitted.bounds))
        return admitted, verdict


class TestAttacks:
    def test_a_share_of_the_clients_attacks_the_same_whatever_they_do(self):
        chosen = {attack.attackers(seed=3, num_clients=40) for attack in ATTACKS.values()}
        assert len(chosen) == 1
        assert len(*chosen) == 8
        assert chosen != {Attack().attackers(seed=4, num_clients=40)}
        assert Attack(share=0).attackers(seed=3, num_clients=40) == frozenset()

    def test_a_flipped_sign(self):
        sent = FlippedSign(strength=2).model(turn())
        assert sent.tolist() == [-6, -2]

    def test_a_negated_model(self):
        assert Negated().model(turn()).tolist() == [-3, -4]

    def test_noise_is_as_long_as_it_says(self):
        one, other = (Noise(strength=5).model(turn(seed=n)) for n in (1, 2))
        assert (one - turn().received).norm() == pytest.approx(5 * 13**0.5)
        assert not torch.equal(one, other)

    def test_copies_are_those_of_the_clusters_in_turn(self):
        assert [Copies().model(turn(number)).tolist() for number in range(3)] == [[1, 1], [5, 5], [1, 1]]

    def test_two_steps(self):
        assert TwoSteps(absurd=1).model(turn(0)).tolist() == [3000, 2002]
        assert TwoSteps(absurd=1).model(turn(1)).tolist() == [-30, -18]

    def test_a_slow_drift_is_as_long_as_it_says(self):
        sent = SlowDrift(strength=1.4).model(turn())
        assert (sent - turn().received).norm() == pytest.approx(1.4 * 13**0.5)

    def test_on_and_off(self):
        assert [OnAndOff(honest=1, strength=2).model(turn(number)).tolist() for number in range(2)] == [
            [3, 4],
            [-6, -2],
        ]

    def test_a_hidden_drift(self):
        shared = Hidden(useful=1, harmful=0).model(turn())
        assert shared.tolist() == [3, 4]
        assert (Hidden(useful=1, harmful=2).model(turn()) - shared).norm() == pytest.approx(2 * 13**0.5)

    def test_nothing(self):
        assert Idle().model(turn()).tolist() == [0, 2]

    def test_one_fast_client(self):
        ticks = OneFast(Uniform(), client=0).ticks(4, np.random.default_rng(0))
        turns = [tick.client for tick in islice(ticks, 44) if tick.kind == "turn"]
        assert 0.4 < turns.count(0) / len(turns) <= 0.7

    def test_flipped_labels(self):
        assert FlippedLabels().labels(torch.tensor([0, 1, 9]), num_classes=10).tolist() == [9, 8, 0]


class TestData:
    def test_an_attacker_sees_its_own_images_under_other_labels(self):
        data = attacked_instance(PROBLEM, FlippedLabels()).federation
        for client in range(12):
            honest, draw = PROBLEM.federation.draw(client, 5), data.draw(client, 5)
            images, labels = PROBLEM.federation.fetch(honest.train)
            same_images, seen = data.fetch(draw.train)
            assert torch.equal(images, same_images)
            assert torch.equal(seen, 9 - labels if client in SOME else labels)

    def test_what_scores_are_made_of_is_true(self):
        data = attacked_instance(PROBLEM, FlippedLabels()).federation
        client = min(SOME)
        tested, true = (
            data.fetch(data.draw(client, 5).test),
            PROBLEM.federation.fetch(PROBLEM.federation.draw(client, 5).test),
        )
        assert torch.equal(tested[1], true[1])
        assert torch.equal(data.proxy(0)[1], PROBLEM.federation.proxy(0)[1])


class TestRuns:
    @pytest.mark.parametrize("name", ATTACKS)
    def test_plain_and_stacked_runs_are_attacked_alike(self, name):
        attack = ATTACKS[name]
        instance = attacked_instance(PROBLEM, attack)
        server = attacked_server(make_algorithm("cdfl", instance.settings), instance, attack)
        assert_same(run_attacked(attack), Result(simulate(instance, server, Uniform()), server))

    def test_nobody_attacks_in_an_honest_run(self):
        assert_same(run_attacked(Negated(share=0)), run_fast(PROBLEM))

    @pytest.mark.parametrize("name", ATTACKS)
    def test_all_is_as_in_the_honest_run_until_the_first_attack(self, name):
        honest, poisoned = (only(run.events, Uploaded) for run in (run_fast(PROBLEM), run_attacked(ATTACKS[name])))
        first = sum(1 for _ in takewhile(lambda upload: upload.client not in SOME, honest))
        assert first > 0
        assert_same_events(poisoned[:first], honest[:first])
        attack_starts = 2 if name == "on-and-off" else 0  # honest uploads of the same client
        assert attack_starts or poisoned[first].mixture != pytest.approx(honest[first].mixture, abs=1e-6)
        sent = [upload for upload in honest if name != "absent" or upload.client not in SOME]
        turns = [[(upload.time, upload.client, upload.samples) for upload in run] for run in (sent, poisoned)]
        assert turns[0] == turns[1]

    def test_the_server_looks_at_what_was_sent_not_at_what_was_trained(self):
        """A negated model is far away, so the guard shortens its change to a few percent; those of others hardly."""
        careful = make_instance(PROBLEM.settings.replace(guard=True), num_uploads=60)
        run = simulation(careful)
        run.algorithm.defence = watching = Watching(run.algorithm.defence.base_rate)
        run = attacked(run, Negated())
        assert sum(1 for _ in run.events()) > 60
        poisoned = [seen for seen in watching.seen if seen.client_id in SOME]
        honest = [seen for seen in watching.seen if seen.client_id not in SOME]
        assert len(poisoned) >= 4
        assert max(seen.bounds[0] for seen in poisoned) < 0.1
        assert min(seen.bounds[0] for seen in honest) > 0.5
        assert not any(seen.has_losses for seen in poisoned)  # known losses are those of what was trained
        assert all(seen.has_losses for seen in honest)

    def test_only_cdfl_can_be_attacked(self):
        with pytest.raises(ValueError, match="fedsoft cannot be attacked here; expected cdfl"):
            attacked(simulation(name="fedsoft"), Negated())
