"""The test for harm, by hand: two clusters at 0 and 10 whose losses are squared distances from 1 and 9."""

import pytest
import torch

from cdfl.core import Hyperparams, Measures, Upload, estimate_mixture, initial_state, measure, server_update
from cdfl.core.accept import MOST, WINDOW, harm_of, is_harmful, remember, usual_harms

from .toy import Proxy, bits, pair

CAREFUL = Hyperparams(max_harm=2, loss_bar=0, gap_bar=0, distance_bar=0, base_rate=0.5)


def upload(value: float, base_epoch: int = 0) -> Upload:
    return Upload(torch.tensor([value]), base_epoch)


class TestHarm:
    def test_near_any_cluster_or_good_on_any_set_harms_little(self):
        losses = torch.tensor([1.0, 1.0], dtype=torch.float64)
        one_good = Measures(torch.tensor([1.0, 100.0]), losses, torch.tensor([3.0, 5.0]))
        assert harm_of(one_good, losses) == 9
        one_near = Measures(torch.tensor([4.0, 100.0]), losses, torch.tensor([300.0, 0.5]))
        assert harm_of(one_near, losses) == 1

    def test_losses_that_have_no_ratio(self):
        measures = Measures(torch.tensor([5.0, 5.0]), torch.zeros(2), torch.tensor([3.0, 4.0]))
        assert harm_of(measures, torch.tensor([1.0, 0.0])) == 9
        assert harm_of(measures, torch.tensor([1.0, -2.0])) == 9

    def test_the_median_decides(self):
        usual = torch.tensor([1.0, 1.0, 1.0, 50.0, 50.0])
        assert not is_harmful(2.0, usual, 2)
        assert is_harmful(2.1, usual, 2)

    def test_where_nothing_is_usual_nothing_is_harmful(self):
        assert not is_harmful(1e9, torch.empty(0), 2)
        assert not is_harmful(1e9, torch.zeros(5), 2)

    def test_the_window_moves_on(self):
        harms = torch.empty(0, dtype=torch.float64)
        for number in range(WINDOW + 7):
            harms = remember(harms, number)
        assert harms.tolist() == list(range(7, WINDOW + 7))

    def test_before_the_first_upload_clusters_say_what_is_usual(self):
        proxy = Proxy(torch.zeros(3, 2))
        state = initial_state(torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 5.0]]), proxy)
        assert usual_harms(state).tolist() == [625, 25, 25]
        buffers = state.replace(num_parameters=1)
        assert usual_harms(buffers).tolist() == [225, 0, 0]
        assert usual_harms(initial_state(torch.zeros(1, 2), Proxy(torch.zeros(1, 2)))).tolist() == []


class TestServerUpdate:
    def test_an_upload_that_harms_moves_nothing_and_is_answered(self):
        state, proxy = pair()
        # worse: min(101^2, 109^2) / 1; far: 100
        after, reply = server_update(state, upload(-100.0), CAREFUL, proxy, torch.tensor([0.25, 0.75]))
        assert reply.rejected
        assert not reply.deprecated
        assert reply.harm == pytest.approx(101**2 * 100**2)
        assert (reply.epoch, after.epoch, reply.staleness) == (1, 1, 1)
        assert reply.rates.tolist() == [0, 0]
        estimate = estimate_mixture(*measure(state, upload(-100.0), proxy), CAREFUL)
        assert reply.mixture.tolist() == estimate.tolist()  # and not what it was before: its data may have changed
        assert reply.personal_model.tolist() == pytest.approx([10 * float(estimate[1])])
        assert bits(after.cluster_models) == bits(state.cluster_models)
        assert after.cluster_losses.tolist() == state.cluster_losses.tolist()
        assert after.recent_harms.tolist() == [2500, 2500, reply.harm]  # the two clusters are 10 apart

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
        state, proxy = pair()
        careful, reply = server_update(state, upload(2.0), CAREFUL, proxy)
        free, other = server_update(state, upload(2.0), CAREFUL.replace(max_harm=None), proxy)
        assert (reply.rejected, reply.harm, other.harm) == (False, 4.0, None)
        assert bits(careful.cluster_models) == bits(free.cluster_models)
        assert bits(reply.personal_model) == bits(other.personal_model)
        assert careful.recent_harms.tolist() == [2500, 2500, 4]
        assert free.recent_harms.tolist() == []

    def test_where_all_change_the_test_follows_them(self):
        state, proxy = pair()
        outcomes = []
        for _ in range(8):
            state, reply = server_update(state, upload(-15.0, state.epoch), CAREFUL, proxy)
            outcomes.append(reply.rejected)
        assert outcomes[0]  # 256 times worse, 15 away, usual is 50 away
        assert outcomes[-1] is False

    def test_a_deprecated_upload_or_one_with_a_mixture_is_not_tested(self):
        state, proxy = pair()
        late = CAREFUL.replace(max_staleness=0)
        after, reply = server_update(state, upload(-100.0), late, proxy)
        assert (reply.deprecated, reply.rejected, reply.harm) == (True, False, None)
        told = Upload(torch.tensor([-100.0]), 0, mixture=torch.tensor([1.0, 0.0]))
        after, reply = server_update(state, told, CAREFUL, proxy)
        assert not reply.rejected
        assert after.cluster_models[0] == -50


@pytest.mark.parametrize("value", [0, -1, float("nan"), "2", True])
def test_max_harm_is_a_number_above_0(value):
    with pytest.raises(ValueError, match="max_harm"):
        Hyperparams(max_harm=value)
