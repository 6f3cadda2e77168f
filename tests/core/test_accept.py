"""The test for harm, by hand: two clusters at 0 and 10 whose losses are squared distances from 1 and 9."""

import math
import random
from statistics import median_low

import pytest
import torch

from cdfl.core import Measures, Settings, Upload, estimate_mixture, initial_state, measure, server_update
from cdfl.core.accept import (
    ABSURD,
    BEARABLE,
    BLAMED,
    MOST,
    TRUSTED,
    WARM_UP,
    WINDOW,
    harm_of,
    is_absurd,
    judge,
    past_harm_after,
    remember,
    usual_harm_of,
)

from .toy import AS_PRINTED, Proxy, bits, pair

CAREFUL = AS_PRINTED.replace(max_harm=2, loss_bar=0, gap_bar=0, distance_bar=0, base_rate=0.5)
CAUTIOUS = CAREFUL.replace(base_rate=0)  # moves nothing: every upload meets the same clusters


def upload(value: float, base_epoch: int = 0) -> Upload:
    return Upload(torch.tensor([value]), base_epoch)


def warm_pair():
    """The two clusters, after uploads that all did a harm of 4."""
    state, proxy = pair()
    for _ in range(WARM_UP):
        state, reply = server_update(state, upload(2.0), CAUTIOUS, proxy)
        assert (reply.rejected, reply.harm, reply.usual_harm) == (False, 4.0, None)
    return state, proxy


class TestHarm:
    def test_near_any_cluster_or_good_on_any_set_harms_little(self):
        losses = torch.tensor([1.0, 1.0], dtype=torch.float64)
        one_good = Measures(torch.tensor([1.0, 100.0]), losses, torch.tensor([3.0, 5.0]))
        assert harm_of(one_good, losses) == 9
        one_near = Measures(torch.tensor([4.0, 100.0]), losses, torch.tensor([300.0, 0.5]))
        assert harm_of(one_near, losses) == 1

    def test_being_better_than_the_clusters_excuses_no_distance(self):
        perfect = Measures(torch.zeros(2), torch.ones(2), torch.tensor([3e6, 4e6]))
        assert harm_of(perfect, torch.ones(2)) == 9e12

    def test_losses_that_have_no_ratio(self):
        measures = Measures(torch.tensor([5.0, 5.0]), torch.zeros(2), torch.tensor([3.0, 4.0]))
        assert harm_of(measures, torch.tensor([1.0, 0.0])) == 9
        assert harm_of(measures, torch.tensor([1.0, -2.0])) == 9

    def test_there_is_always_a_number(self):
        least = torch.tensor([5e-324], dtype=torch.float64)
        far = Measures(torch.tensor([1e300], dtype=torch.float64), least, torch.tensor([float("inf")]))
        assert harm_of(far, least) == MOST
        assert harm_of(far._replace(distances=torch.zeros(1)), least) == 0

    def test_the_window_moves_on(self):
        harms = torch.empty(0, dtype=torch.float64)
        for number in range(WINDOW + 7):
            harms = remember(harms, number)
        assert harms.tolist() == list(range(7, WINDOW + 7))


class TestUsual:
    def test_it_is_the_median(self):
        harms = torch.tensor([1.0] * WARM_UP + [50.0] * (WARM_UP - 1))
        assert usual_harm_of(harms) == 1
        assert usual_harm_of(harms[1:]) == 1
        assert usual_harm_of(harms[2:]) == 50

    def test_a_few_uploads_say_nothing_and_neither_does_zero(self):
        assert usual_harm_of(torch.empty(0)) is None
        assert usual_harm_of(torch.ones(WARM_UP - 1)) is None
        assert usual_harm_of(torch.zeros(WARM_UP)) is None


class TestPast:
    """Of one client, where a harm of 4 is usual."""

    def test_what_is_bearable_once_is_not_again_and_again(self):
        state, proxy = warm_pair()
        past, outcomes = 1.0, []
        for _ in range(5):
            sent = Upload(torch.tensor([-2.0]), 0, past_harm=past)  # 9 times as bad as the cluster, 2 away: 36
            state, reply = server_update(state, sent, CAUTIOUS.replace(max_harm=40), proxy)
            past = reply.past_harm
            outcomes.append((reply.rejected, round(past, 2)))
        # 9 / 1.2, 7.5 ** .8 * 9 / 1.2, and no more than 12.5; refused is what does more than 40 with a past
        assert outcomes == [(False, 7.5), (True, BLAMED), (True, BLAMED), (True, BLAMED), (True, BLAMED)]

    def test_trust_is_gained_slowly_has_an_end_and_is_lost_at_once(self):
        past, gained = 1.0, []
        for _ in range(40):
            past = past_harm_after(past, harm=1.0, usual_harm=1.0)
            gained.append(round(past, 2))
        assert gained[:3] == [0.83, 0.72, 0.64]
        assert past == pytest.approx(BEARABLE**-5, rel=1e-3)  # of one that always does the usual: p = p ** .8 / 1.2
        assert past_harm_after(past, harm=0.0, usual_harm=1.0) == TRUSTED < past
        assert past_harm_after(TRUSTED, harm=MOST, usual_harm=1e-300) == BLAMED

    def test_the_worst_is_forgiven_after_a_few_usual_ones(self):
        past, uploads = BLAMED, 0
        while past > 1:
            past = past_harm_after(past, harm=1.0, usual_harm=1.0)
            uploads += 1
        assert uploads == 6

    def test_what_was_not_looked_at_changes_nothing(self):
        state, proxy = warm_pair()
        late = Upload(torch.tensor([-100.0]), 0, past_harm=3.0)
        assert server_update(state, late, CAREFUL.replace(max_staleness=0), proxy)[1].past_harm == 3
        assert server_update(state, late, CAREFUL.replace(max_harm=None), proxy)[1].past_harm == 3
        assert past_harm_after(3.0, harm=7.0, usual_harm=None) == 3  # too early to tell

    def test_of_three_that_send_the_same_the_trusted_one_may(self):
        state, proxy = warm_pair()
        sent = [Upload(torch.tensor([-1.2]), 0, past_harm=past) for past in (0.5, 1.0, 2.0)]
        replies = [server_update(state, each, CAREFUL, proxy)[1] for each in sent]
        assert replies[0].harm / 4 == pytest.approx(2.2**2 * 1.2**2 / 4)  # 1.74 times the usual; 2 are allowed
        assert [reply.rejected for reply in replies] == [False, False, True]


class TestAbsurd:
    def measures(self, losses, distances):
        return Measures(torch.tensor(losses), torch.zeros(2), torch.tensor(distances))

    def test_how_far_is_too_far(self):
        state, _ = pair()  # the longer one is 10 long, and each has a loss of 1
        good = [1.0, 9.0]
        assert not is_absurd(state, self.measures(good, [ABSURD * 10, 1e6]))
        assert is_absurd(state, self.measures(good, [ABSURD * 10 + 1, 1e6]))
        assert is_absurd(state, self.measures(good, [float("inf"), float("inf")]))

    def test_a_bad_one_may_go_less_far(self):
        state, _ = pair()
        assert not is_absurd(state, self.measures([5.0, 9.0], [20.0, 20.0]))
        assert is_absurd(state, self.measures([5.1, 9.0], [20.0, 20.0]))

    def test_none_is_too_bad_within_the_length_of_a_cluster(self):
        """Pre-training may leave losses near 0: what comes then is any number of times worse."""
        state, _ = pair()
        assert not is_absurd(state, self.measures([1e9, 1e9], [10.0, 10.0]))
        assert is_absurd(state, self.measures([1e9, 1e9], [10.1, 10.1]))

    def test_clusters_of_length_0_cannot_tell_and_statistics_have_none(self):
        state = initial_state(torch.tensor([[0.0, 9.0], [0.0, 9.0]]), Proxy(torch.ones(2, 2)))
        far = self.measures([65.0, 65.0], [1e3, 1e3])
        assert is_absurd(state, far)
        assert not is_absurd(state.replace(num_parameters=1), far)


class TestServerUpdate:
    def test_an_upload_that_harms_moves_nothing_and_is_answered(self):
        state, proxy = warm_pair()
        # worse: min(101^2, 109^2) / 1; far: 100
        after, reply = server_update(state, upload(-100.0), CAREFUL, proxy, torch.tensor([0.25, 0.75]))
        assert reply.rejected
        assert not reply.deprecated
        assert reply.harm == pytest.approx(101**2 * 100**2)
        assert reply.usual_harm == 4
        assert (reply.epoch, after.epoch, reply.staleness) == (WARM_UP + 1, WARM_UP + 1, WARM_UP + 1)
        assert reply.rates.tolist() == [0, 0]
        estimate = estimate_mixture(*measure(state, upload(-100.0), proxy), CAREFUL)
        assert reply.mixture.tolist() == estimate.tolist()  # and not what it was before: its data may have changed
        assert reply.personal_model.tolist() == pytest.approx([10 * float(estimate[1])])
        assert bits(after.cluster_models) == bits(state.cluster_models)
        assert after.cluster_losses.tolist() == state.cluster_losses.tolist()
        assert after.recent_harms.tolist() == [4.0] * WARM_UP + [reply.harm]

    def test_where_there_is_nothing_to_estimate_the_last_mixture_answers(self):
        proxy = Proxy(torch.tensor([[1.0, 1.0], [9.0, 9.0]]))
        state = initial_state(torch.tensor([[0.0, 0.0], [10.0, 10.0]]), proxy)
        huge = Upload(torch.tensor([3e38, 3e38]), 0, losses=torch.tensor([9.0, 9.0]))  # float32 has no such distance
        for last, expected in ((torch.tensor([0.25, 0.75]), [0.25, 0.75]), (None, [0.5, 0.5])):
            after, reply = server_update(state, huge, CAREFUL, proxy, last)
            assert (reply.rejected, reply.harm) == (True, MOST)
            assert reply.mixture.tolist() == expected
            assert bits(after.cluster_models) == bits(state.cluster_models)

    def test_an_honest_upload_counts_as_without_the_test(self):
        state, proxy = warm_pair()
        careful, reply = server_update(state, upload(2.0), CAREFUL, proxy)
        free, other = server_update(state, upload(2.0), CAREFUL.replace(max_harm=None), proxy)
        assert (reply.rejected, reply.harm, other.harm) == (False, 4.0, None)
        assert (reply.usual_harm, other.usual_harm) == (4.0, None)
        assert bits(careful.cluster_models) == bits(free.cluster_models)
        assert bits(reply.personal_model) == bits(other.personal_model)
        assert careful.recent_harms.tolist() == [4.0] * (WARM_UP + 1)
        assert free.recent_harms.tolist() == [4.0] * WARM_UP

    def test_first_uploads_may_differ_from_each_other_and_go_beyond_the_clusters(self):
        state, proxy = pair()
        for place in range(WARM_UP):
            state, reply = server_update(state, upload(-8.0 if place % 2 else 0.1), CAUTIOUS, proxy)
            assert (reply.rejected, reply.usual_harm) == (False, None)
        assert max(state.recent_harms) > 1e5 * min(state.recent_harms)
        state, reply = server_update(state, upload(-8.0), CAUTIOUS, proxy)
        assert (reply.rejected, reply.usual_harm) == (True, pytest.approx(0.01))

    @pytest.mark.parametrize("honest", [0, 1, WARM_UP - 1])
    @pytest.mark.parametrize("factor", [-1e6, 1e6, 1e30])
    def test_a_model_of_absurd_size_moves_nothing_from_the_first_upload_on(self, honest, factor):
        state, proxy = pair()
        for _ in range(honest):
            state, _ = server_update(state, upload(2.0, state.epoch), CAREFUL, proxy)
        losses = torch.zeros(2)  # however good: a saturated cross entropy is 0
        absurd = Upload(torch.tensor([factor * 9.0]), state.epoch, losses=losses)
        after, reply = server_update(state, absurd, CAREFUL, proxy)
        assert reply.rejected
        assert reply.usual_harm is None
        assert bits(after.cluster_models) == bits(state.cluster_models)
        after, reply = server_update(after, upload(2.0, after.epoch), CAREFUL, proxy)
        assert not reply.rejected

    def test_where_all_change_the_test_follows_them(self):
        state, proxy = warm_pair()
        outcomes = []
        for _ in range(WARM_UP + 2):
            state, reply = server_update(state, upload(-15.0, state.epoch), CAREFUL, proxy)
            outcomes.append(reply.rejected)
        assert outcomes == [True] * (WARM_UP + 1) + [False]  # refused ones count: half are such, then more

    def test_where_first_uploads_are_far_from_tiny_clusters_the_test_follows_them(self):
        """Untrained weights of almost 0: honest trainings go hundreds of times as far."""
        proxy = Proxy(torch.tensor([[1.0], [9.0]]))
        state = initial_state(torch.tensor([[0.01], [0.01]]), proxy)
        outcomes = []
        for _ in range(WARM_UP + 1):
            state, reply = server_update(state, upload(1.0, state.epoch), CAREFUL, proxy)
            outcomes.append(reply.rejected)
        assert outcomes == [True] * WARM_UP + [False]

    def test_a_deprecated_upload_or_one_with_a_mixture_is_not_tested(self):
        state, proxy = warm_pair()
        late = CAREFUL.replace(max_staleness=0)
        after, reply = server_update(state, upload(-100.0), late, proxy)
        assert (reply.deprecated, reply.rejected, reply.harm) == (True, False, None)
        told = Upload(torch.tensor([-100.0]), 0, mixture=torch.tensor([1.0, 0.0]))
        after, reply = server_update(state, told, CAREFUL, proxy)
        assert not reply.rejected
        assert after.cluster_models[0] == -50


def plainly(clusters, cluster_losses, losses, model, harms, past, max_harm):
    """The test once more, in plain Python: harm, what is usual, what is remembered, whether it is too much."""
    distance = min(sum((a - b) ** 2 for a, b in zip(model, cluster, strict=True)) ** 0.5 for cluster in clusters)
    ratio = min(mine / theirs for mine, theirs in zip(losses, cluster_losses, strict=True))
    harm = max(1, ratio) * distance**2
    if len(harms) >= 10:
        usual = median_low(harms[-100:])
        times = math.exp(0.8 * math.log(past) + math.log(harm / usual))
        return harm, usual, min(12.5, max(0.125, times / 1.2)), times > max_harm
    length = max(sum(a * a for a in cluster) ** 0.5 for cluster in clusters)
    return harm, None, past, max(1, min(10, ratio)) * distance > 10 * length


@pytest.mark.parametrize("seed", range(5))
def test_it_agrees_with_its_plain_twin(seed):
    rng, found = random.Random(seed), set()  # noqa: S311
    clusters = [[rng.gauss(0, 1) for _ in range(3)] for _ in range(3)]
    cluster_losses = [rng.uniform(0.1, 1) for _ in range(3)]
    state = initial_state(torch.tensor(clusters, dtype=torch.float64), lambda _, which: torch.tensor(cluster_losses))
    harms, past = [], 1.0
    for _ in range(130):
        size = rng.choice([0.1, 1, 10, 100])
        model = [rng.gauss(0, size) for _ in range(3)]
        losses = [rng.uniform(0.1, 1 + size) for _ in range(3)]
        sent = Upload(torch.tensor(model, dtype=torch.float64), 0, losses=torch.tensor(losses))
        verdict = judge(state, measure(state, sent, lambda *_: None), past, max_harm=2)
        expected = plainly(clusters, cluster_losses, losses, model, harms, past, 2)
        assert verdict == (*map(pytest.approx, expected[:3]), expected[3])
        found.add((expected[1] is None, expected[3]))
        harms.append(verdict.harm)
        past = verdict.past_harm
        state = state.replace(recent_harms=remember(state.recent_harms, verdict.harm))
    assert len(found) == 4


@pytest.mark.parametrize("value", [0, -1, float("nan"), "2", True])
def test_max_harm_is_a_number_above_0(value):
    with pytest.raises(ValueError, match="max_harm"):
        Settings(max_harm=value)
