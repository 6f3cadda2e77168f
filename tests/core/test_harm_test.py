"""The harm test by hand: two clusters at 0 and 10 whose losses are squared distances from 1 and 9."""

import math
import random
from statistics import median_low

import pytest
import torch

from cdfl.core import (
    GIVEN,
    NO_DEFENCE,
    ClientMemory,
    Measures,
    Settings,
    Upload,
    Verdict,
    defence_of,
    estimate_mixture,
    initial_state,
    measure,
    server_update,
)
from cdfl.core.estimate import with_losses
from cdfl.core.harm_test import (
    ABSURD,
    BEARABLE,
    BLAMED,
    MOST,
    TRUSTED,
    WARM_UP,
    WINDOW,
    HarmTest,
    harm_of,
    is_absurd,
    judge,
    past_harm_after,
    usual_harm_of,
)

from .toy import AS_PRINTED, Proxy, bits, forbidden, pair

CAREFUL = AS_PRINTED.replace(max_harm=2, loss_bar=0, gap_bar=0, distance_bar=0, base_rate=0.5)
STILL = CAREFUL.replace(base_rate=0)  # no cluster moves: every upload meets the same clusters


def upload(value: float, base_epoch: int = 0) -> Upload:
    return Upload(torch.tensor([value]), base_epoch)


def client(past_harm: float) -> ClientMemory:
    return ClientMemory(defence=(past_harm,))


def warm_pair():
    """The two clusters, after uploads that all had a harm of 4."""
    state, proxy = pair()
    for _ in range(WARM_UP):
        state, reply = server_update(state, upload(2.0), STILL, proxy)
        assert (reply.outcome, reply.verdict.seen) == ("applied", (4.0, None))
    return state, proxy


class TestHarm:
    def test_the_nearest_cluster_and_the_best_loss_count(self):
        losses = torch.tensor([1.0, 1.0], dtype=torch.float64)
        one_good = Measures(torch.tensor([1.0, 100.0]), losses, torch.tensor([3.0, 5.0]))
        assert harm_of(one_good, losses) == 9
        one_near = Measures(torch.tensor([4.0, 100.0]), losses, torch.tensor([300.0, 0.5]))
        assert harm_of(one_near, losses) == 1

    def test_a_loss_below_the_clusters_does_not_make_up_for_distance(self):
        perfect = Measures(torch.zeros(2), torch.ones(2), torch.tensor([3e6, 4e6]))
        assert harm_of(perfect, torch.ones(2)) == 9e12

    def test_without_positive_losses_the_distance_decides(self):
        measures = Measures(torch.tensor([5.0, 5.0]), torch.zeros(2), torch.tensor([3.0, 4.0]))
        assert harm_of(measures, torch.tensor([1.0, 0.0])) == 9
        assert harm_of(measures, torch.tensor([1.0, -2.0])) == 9

    def test_harm_is_always_finite(self):
        least = torch.tensor([5e-324], dtype=torch.float64)
        far = Measures(torch.tensor([1e300], dtype=torch.float64), least, torch.tensor([float("inf")]))
        assert harm_of(far, least) == MOST
        assert harm_of(far._replace(distances=torch.zeros(1)), least) == 0

    def test_the_server_remembers_the_last_harms(self):
        defence, harms = HarmTest(2.0), torch.empty(0, dtype=torch.float64)
        for number in range(WINDOW + 7):
            harms = defence.remember(harms, Verdict(number % 2 == 0, (float(number), None)))
        assert harms.tolist() == list(range(7, WINDOW + 7))  # of rejected uploads, too
        assert defence.remember(harms, Verdict()) is harms  # an upload that was not measured


class TestUsual:
    def test_it_is_the_median(self):
        harms = torch.tensor([1.0] * WARM_UP + [50.0] * (WARM_UP - 1))
        assert usual_harm_of(harms) == 1
        assert usual_harm_of(harms[1:]) == 1
        assert usual_harm_of(harms[2:]) == 50

    def test_nothing_is_usual_after_few_uploads_or_if_the_median_is_0(self):
        assert usual_harm_of(torch.empty(0)) is None
        assert usual_harm_of(torch.ones(WARM_UP - 1)) is None
        assert usual_harm_of(torch.zeros(WARM_UP)) is None


class TestPastHarm:
    """Of one client, if a harm of 4 is usual."""

    def test_harm_that_is_accepted_once_is_rejected_when_repeated(self):
        state, proxy = warm_pair()
        memory, outcomes = ClientMemory(), []
        for _ in range(3):  # 9 times as bad as the cluster, 2 away: 36
            state, reply = server_update(state, upload(-2.0), STILL.replace(max_harm=40), proxy, memory)
            memory = reply.client
            outcomes.append((reply.outcome, round(memory.defence[0], 2)))
        # 9 / 1.2; 7.5 ** .8 * 9 / 1.2, at most 12.5. 9 is below 40, 7.5 ** .8 * 9 is not.
        assert outcomes == [("applied", 7.5), ("rejected", BLAMED), ("rejected", BLAMED)]

    def test_trust_grows_slowly_is_bounded_and_is_lost_at_once(self):
        past, gained = 1.0, []
        for _ in range(40):
            past = past_harm_after(past, harm=1.0, usual_harm=1.0)
            gained.append(round(past, 2))
        assert gained[:3] == [0.83, 0.72, 0.64]
        assert past == pytest.approx(BEARABLE**-5, rel=1e-3)  # if every harm is the usual one: p = p ** .8 / 1.2
        assert past_harm_after(past, harm=0.0, usual_harm=1.0) == TRUSTED < past
        assert past_harm_after(TRUSTED, harm=MOST, usual_harm=1e-300) == BLAMED

    def test_a_few_usual_uploads_make_up_for_the_worst(self):
        past, uploads = BLAMED, 0
        while past > 1:
            past = past_harm_after(past, harm=1.0, usual_harm=1.0)
            uploads += 1
        assert uploads == 6

    def test_an_upload_that_is_not_tested_leaves_it(self):
        state, proxy = warm_pair()
        late, free = CAREFUL.replace(max_staleness=0), CAREFUL.replace(max_harm=None)
        replies = [server_update(state, upload(-100.0), settings, proxy, client(3.0))[1] for settings in (late, free)]
        given = upload(-100.0).replace(mixture=torch.tensor([1.0, 0.0]))
        replies.append(server_update(state, given, CAREFUL, proxy, client(3.0), estimator=GIVEN)[1])
        assert [reply.client.defence for reply in replies] == [(3.0,)] * 3
        assert past_harm_after(3.0, harm=7.0, usual_harm=None) == 3  # nothing is usual yet

    def test_a_trusted_client_may_send_more_than_a_blamed_one(self):
        state, proxy = warm_pair()
        replies = [server_update(state, upload(-1.2), CAREFUL, proxy, client(past))[1] for past in (0.5, 1.0, 2.0)]
        assert replies[0].verdict.seen[0] / 4 == pytest.approx(2.2**2 * 1.2**2 / 4)  # 1.74 times the usual; 2 allowed
        assert [reply.outcome for reply in replies] == ["applied", "applied", "rejected"]


class TestAbsurd:
    def measures(self, losses, distances):
        return Measures(torch.tensor(losses), torch.zeros(2), torch.tensor(distances))

    def test_far_away_compared_with_the_longest_cluster(self):
        state, _ = pair()  # the longest cluster is 10 long, and each has a loss of 1
        good = [1.0, 9.0]
        assert not is_absurd(state, self.measures(good, [ABSURD * 10, 1e6]))
        assert is_absurd(state, self.measures(good, [ABSURD * 10 + 1, 1e6]))
        assert is_absurd(state, self.measures(good, [float("inf"), float("inf")]))

    def test_a_worse_upload_may_be_less_far_away(self):
        state, _ = pair()
        assert not is_absurd(state, self.measures([5.0, 9.0], [20.0, 20.0]))
        assert is_absurd(state, self.measures([5.1, 9.0], [20.0, 20.0]))

    def test_a_loss_alone_is_never_absurd(self):
        """Pre-training may leave losses near 0. Then every upload is many times worse."""
        state, _ = pair()
        assert not is_absurd(state, self.measures([1e9, 1e9], [10.0, 10.0]))
        assert is_absurd(state, self.measures([1e9, 1e9], [10.1, 10.1]))

    def test_clusters_of_length_0_say_nothing_and_statistics_do_not_count(self):
        state = initial_state(torch.tensor([[0.0, 9.0], [0.0, 9.0]]), Proxy(torch.ones(2, 2)))
        far = self.measures([65.0, 65.0], [1e3, 1e3])
        assert is_absurd(state, far)
        assert not is_absurd(state.replace(num_parameters=1), far)


class TestServerUpdate:
    def test_a_harmful_upload_moves_no_cluster_and_is_answered(self):
        state, proxy = warm_pair()
        # worse: min(101^2, 109^2) / 1; far: 100
        after, reply = server_update(state, upload(-100.0), CAREFUL, proxy, ClientMemory(torch.tensor([0.25, 0.75])))
        assert (reply.outcome, reply.verdict.is_accepted) == ("rejected", False)
        harm, usual_harm = reply.verdict.seen
        assert harm == pytest.approx(101**2 * 100**2)
        assert usual_harm == 4
        assert reply.client.defence == (BLAMED,)
        assert "it moved no cluster: it would do 2.55e+07 times the usual harm" in reply.verdict.reason
        assert (reply.epoch, after.epoch, reply.staleness) == (WARM_UP + 1, WARM_UP + 1, WARM_UP + 1)
        assert reply.rates.tolist() == [0, 0]
        estimate = estimate_mixture(measure(*with_losses(state, upload(-100.0), proxy)), CAREFUL.estimate)
        assert reply.mixture.tolist() == estimate.tolist()  # not its last mixture: its data may have changed
        assert reply.personal_model.tolist() == pytest.approx([10 * float(estimate[1])])
        assert bits(after.cluster_models) == bits(state.cluster_models)
        assert after.cluster_losses.tolist() == state.cluster_losses.tolist()
        assert after.cluster_epochs.tolist() == state.cluster_epochs.tolist()
        assert after.defence_memory.tolist() == [4.0] * WARM_UP + [harm]

    def test_the_last_mixture_answers_a_rejected_upload_that_cannot_be_measured(self):
        proxy = Proxy(torch.tensor([[1.0, 1.0], [9.0, 9.0]]))
        state = initial_state(torch.tensor([[0.0, 0.0], [10.0, 10.0]]), proxy)
        huge = Upload(torch.tensor([3e38, 3e38]), 0, losses=torch.tensor([9.0, 9.0]))  # the distance overflows
        for last, expected in ((torch.tensor([0.25, 0.75]), [0.25, 0.75]), (None, [0.5, 0.5])):
            after, reply = server_update(state, huge, CAREFUL, proxy, ClientMemory(last))
            assert (reply.outcome, reply.verdict.seen) == ("rejected", (MOST, None))
            assert "far from every cluster" in reply.verdict.reason
            assert reply.mixture.tolist() == expected
            assert bits(after.cluster_models) == bits(state.cluster_models)

    def test_an_accepted_upload_counts_as_without_the_test(self):
        state, proxy = warm_pair()
        careful, reply = server_update(state, upload(2.0), CAREFUL, proxy)
        free, other = server_update(state, upload(2.0), CAREFUL.replace(max_harm=None), proxy)
        assert (reply.outcome, reply.verdict.seen, other.verdict.seen) == ("applied", (4.0, 4.0), ())
        assert bits(careful.cluster_models) == bits(free.cluster_models)
        assert bits(reply.personal_model) == bits(other.personal_model)
        assert careful.defence_memory.tolist() == [4.0] * (WARM_UP + 1)
        assert free.defence_memory is state.defence_memory

    def test_first_uploads_may_differ_from_each_other_and_go_beyond_the_clusters(self):
        state, proxy = pair()
        for place in range(WARM_UP):
            state, reply = server_update(state, upload(-8.0 if place % 2 else 0.1), STILL, proxy)
            assert (reply.outcome, reply.verdict.seen[1]) == ("applied", None)
        assert max(state.defence_memory) > 1e5 * min(state.defence_memory)
        state, reply = server_update(state, upload(-8.0), STILL, proxy)
        assert (reply.outcome, reply.verdict.seen[1]) == ("rejected", pytest.approx(0.01))

    @pytest.mark.parametrize("honest", [0, 1, WARM_UP - 1])
    @pytest.mark.parametrize("factor", [-1e6, 1e6, 1e30])
    def test_a_model_of_absurd_size_is_rejected_from_the_first_upload_on(self, honest, factor):
        state, proxy = pair()
        for _ in range(honest):
            state, _ = server_update(state, upload(2.0, state.epoch), CAREFUL, proxy)
        losses = torch.zeros(2)  # a saturated cross entropy is 0
        absurd = Upload(torch.tensor([factor * 9.0]), state.epoch, losses=losses)
        after, reply = server_update(state, absurd, CAREFUL, proxy)
        assert (reply.outcome, reply.verdict.seen[1]) == ("rejected", None)
        assert bits(after.cluster_models) == bits(state.cluster_models)
        after, reply = server_update(after, upload(2.0, after.epoch), CAREFUL, proxy)
        assert reply.outcome == "applied"

    def test_the_test_follows_clients_that_all_change(self):
        state, proxy = warm_pair()
        outcomes = []
        for _ in range(WARM_UP + 2):
            state, reply = server_update(state, upload(-15.0, state.epoch), CAREFUL, proxy)
            outcomes.append(reply.outcome)
        assert outcomes == ["rejected"] * (WARM_UP + 1) + ["applied"]  # rejected uploads count in the median

    def test_the_test_follows_first_uploads_that_are_far_from_tiny_clusters(self):
        """Untrained weights are almost 0. Honest training goes hundreds of times as far."""
        proxy = Proxy(torch.tensor([[1.0], [9.0]]))
        state = initial_state(torch.tensor([[0.01], [0.01]]), proxy)
        outcomes = []
        for _ in range(WARM_UP + 1):
            state, reply = server_update(state, upload(1.0, state.epoch), CAREFUL, proxy)
            outcomes.append(reply.outcome)
        assert outcomes == ["rejected"] * WARM_UP + ["applied"]

    def test_deprecated_uploads_and_given_mixtures_are_not_tested(self):
        state, proxy = warm_pair()
        late = CAREFUL.replace(max_staleness=0)
        after, reply = server_update(state, upload(-100.0), late, proxy)
        assert (reply.outcome, reply.verdict.seen) == ("deprecated", ())
        assert after.defence_memory is state.defence_memory
        given = upload(-100.0).replace(mixture=torch.tensor([1.0, 0.0]))
        after, reply = server_update(state, given, CAREFUL, proxy, estimator=GIVEN)
        assert reply.outcome == "applied"
        assert after.cluster_models[0] == -50
        assert after.defence_memory is state.defence_memory


def plainly(clusters, cluster_losses, losses, model, harms, past, max_harm):
    """The test again, in plain Python: harm, usual harm, past harm after it, and whether it is too much."""
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
def test_it_agrees_with_plain_python(seed):
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
        judgement = judge(state, measure(*with_losses(state, sent, forbidden)), past, max_harm=2)
        expected = plainly(clusters, cluster_losses, losses, model, harms, past, 2)
        assert judgement == (*map(pytest.approx, expected[:3]), expected[3])
        found.add((expected[1] is None, expected[3]))
        harms.append(judgement.harm)
        past = judgement.past_harm
        state = state.replace(defence_memory=torch.tensor(harms[-WINDOW:], dtype=torch.float64))
    assert len(found) == 4


def test_the_settings_name_the_defence():
    assert defence_of(Settings()) is NO_DEFENCE
    assert defence_of(Settings(max_harm=3.0)) == HarmTest(3.0)
