import dataclasses

import pytest
import torch

from cdfl.core import Reply, ServerState, Upload, initial_state

from .toy import Proxy, forbidden


def test_a_server_starts_at_epoch_zero_with_the_losses_of_its_clusters():
    proxy = Proxy([[1.0], [9.0], [5.0]])
    models = torch.tensor([[0.0], [10.0], [2.0]])
    state = initial_state(models, proxy, num_parameters=1)
    assert torch.equal(state.cluster_models, models)
    assert state.cluster_losses.tolist() == [1, 1, 9]
    assert state.cluster_losses.dtype == torch.float64
    assert state.cluster_epochs.tolist() == [0, 0, 0]
    assert (state.epoch, state.num_clusters, state.num_parameters) == (0, 3, 1)
    assert state.usual_measures.tolist() == [[0, 0, 0]] * 3
    assert state.usual_measures.dtype == torch.float64
    assert proxy.calls == [[0, 1, 2]]


@pytest.mark.parametrize("shape", [(3,), (0, 3), (2, 0), (1, 2, 3)])
def test_models_that_are_no_stack_are_refused(shape):
    with pytest.raises(ValueError, match=r"cluster_models has shape .*; expected \(K, P\)") as caught:
        initial_state(torch.zeros(shape), forbidden)
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_diverged_models_are_refused(bad):
    with pytest.raises(ValueError, match="cluster_models contains NaN or infinity"):
        initial_state(torch.tensor([[1.0], [bad]]), forbidden)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_models_whose_loss_is_no_number_are_refused(bad):
    with pytest.raises(ValueError, match=rf"losses of the cluster models: \[1.0, {bad}\]; expected finite"):
        initial_state(torch.zeros(2, 1), lambda models, clusters: torch.tensor([1.0, bad]))


def test_an_evaluate_that_answers_in_the_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"losses of the cluster models has shape \(2, 1\); expected .* \(2,\)"):
        initial_state(torch.zeros(2, 1), lambda models, clusters: models)


def test_replace_makes_a_new_state():
    state = initial_state(torch.zeros(2, 1), Proxy([[1.0], [9.0]]))
    later = state.replace(epoch=4)
    assert (state.epoch, later.epoch) == (0, 4)
    assert later.cluster_models is state.cluster_models  # nothing large is copied


def test_all_three_are_frozen():
    zero = torch.zeros(1)
    for thing, name in (
        (ServerState(zero[None], zero, zero), "epoch"),
        (Upload(zero, 0), "base_epoch"),
        (Reply(zero, 0, zero, zero, 0, False), "mixture"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, name, 1)
