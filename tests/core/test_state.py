import dataclasses

import pytest
import torch

from cdfl.core import ClientMemory, Reply, ServerState, Upload, Verdict, initial_state

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
    assert len(state.estimator_memory) == len(state.defence_memory) == 0
    assert state.estimator_memory.dtype == state.defence_memory.dtype == torch.float64
    assert proxy.calls == [[0, 1, 2]]


@pytest.mark.parametrize("shape", [(3,), (0, 3), (2, 0), (1, 2, 3)])
def test_cluster_models_of_a_wrong_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"cluster_models has shape .*; expected \(K, P\)") as caught:
        initial_state(torch.zeros(shape), forbidden)
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_cluster_models_that_are_not_finite_are_refused(bad):
    with pytest.raises(ValueError, match="cluster_models contains NaN or infinity"):
        initial_state(torch.tensor([[1.0], [bad]]), forbidden)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_cluster_models_whose_loss_is_not_finite_are_refused(bad):
    with pytest.raises(ValueError, match=rf"losses of the cluster models: \[1.0, {bad}\]; expected finite"):
        initial_state(torch.zeros(2, 1), lambda models, clusters: torch.tensor([1.0, bad]))


def test_losses_of_a_wrong_shape_are_refused():
    with pytest.raises(ValueError, match=r"losses of the cluster models has shape \(2, 1\); expected .* \(2,\)"):
        initial_state(torch.zeros(2, 1), lambda models, clusters: models)


def test_replace_makes_a_new_state():
    state = initial_state(torch.zeros(2, 1), Proxy([[1.0], [9.0]]))
    later = state.replace(epoch=4)
    assert (state.epoch, later.epoch) == (0, 4)
    assert later.cluster_models is state.cluster_models  # models are not copied


def test_the_records_are_frozen():
    zero = torch.zeros(1)
    for thing, name in (
        (ServerState(zero[None], zero, zero), "epoch"),
        (Upload(zero, 0), "base_epoch"),
        (Reply(zero, 0, zero, zero, 0), "mixture"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, name, 1)


def test_a_reply_says_what_to_remember_of_its_client():
    mixture = torch.tensor([0.25, 0.75])
    assert Reply(torch.zeros(1), 0, mixture, mixture, 0).client == ClientMemory(mixture, ())
    reply = Reply(torch.zeros(1), 0, mixture, mixture, 0, verdict=Verdict(client=(3.0,)))
    assert reply.client == ClientMemory(mixture, (3.0,))
