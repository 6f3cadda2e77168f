"""Properties of `server_update`, for servers at any epoch."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from cdfl.core import GIVEN, ClientMemory, Settings, Upload, initial_state, join, server_update

from .toy import Proxy, bits, forbidden, fresh_losses

pytestmark = pytest.mark.slow


@st.composite
def servers(draw):
    """A server of 1 to 4 clusters, an upload and its client's memory; whole numbers, to keep sums exact."""
    num_clusters, size = draw(st.integers(1, 4)), draw(st.integers(1, 3))

    def matrix(rows):
        row = st.lists(st.integers(-9, 9).map(float), min_size=size, max_size=size)
        return torch.tensor(draw(st.lists(row, min_size=rows, max_size=rows)), dtype=torch.float64)

    proxy = Proxy(matrix(num_clusters))
    epoch = draw(st.integers(0, 9))
    epochs = draw(st.lists(st.integers(0, epoch), min_size=num_clusters, max_size=num_clusters))
    state = initial_state(matrix(num_clusters), proxy)
    row = st.lists(st.integers(0, 9), min_size=num_clusters, max_size=num_clusters)
    means = torch.tensor([draw(row) for _ in range(3)], dtype=torch.float64)
    state = state.replace(epoch=epoch, cluster_epochs=torch.tensor(epochs), estimator_memory=means)
    upload = Upload(matrix(1)[0], base_epoch=draw(st.integers(0, epoch)))
    parts = draw(st.lists(st.integers(1, 9), min_size=num_clusters, max_size=num_clusters))
    return state, upload, proxy, ClientMemory(torch.tensor(parts, dtype=torch.float64) / sum(parts), (2.0,))


any_settings = st.builds(
    Settings,
    measures=st.sampled_from(["plain", "relative"]),
    rate_floor=st.just("mean") | st.floats(0, 1),
    base_rate=st.floats(0, 1),
    staleness_slope=st.floats(0, 10),
    staleness_hinge=st.sampled_from(["paper", "continuous"]),
    cluster_epochs_set=st.sampled_from(["before", "after"]),
    reply_clusters=st.sampled_from(["all", "moved"]),
)


@hypothesis_settings(deadline=None, derandomize=True, max_examples=50)
@given(servers(), any_settings, st.integers(0, 9))
def test_a_deprecated_upload_changes_only_the_epoch(server, settings, max_staleness):
    state, upload, _, client = server
    state = state.replace(epoch=upload.base_epoch + max_staleness)  # the upload is one epoch too old
    after, reply = server_update(state, upload, settings.replace(max_staleness=max_staleness), forbidden, client)
    assert reply.outcome == "deprecated"
    assert bits(after.cluster_models) == bits(state.cluster_models)
    assert torch.equal(after.cluster_epochs, state.cluster_epochs)
    assert torch.equal(after.cluster_losses, state.cluster_losses)
    assert after.estimator_memory is state.estimator_memory
    assert after.defence_memory is state.defence_memory
    assert after.epoch == reply.epoch == state.epoch + 1
    assert torch.equal(reply.client.mixture, client.mixture)
    assert reply.client.defence == client.defence


@hypothesis_settings(deadline=None, derandomize=True, max_examples=50)
@given(servers(), any_settings, st.booleans(), st.booleans())
def test_arguments_are_not_changed(server, settings, has_mixture, deprecated):
    state, upload, proxy, client = server
    losses = proxy(upload.local_model.expand_as(state.cluster_models), torch.arange(state.num_clusters))
    upload = upload.replace(losses=losses, mixture=client.mixture.clone())
    given = [state.cluster_models, state.cluster_losses, state.cluster_epochs, state.estimator_memory]
    given += [upload.local_model, losses, upload.mixture, client.mixture]
    before = [bits(tensor) for tensor in given]
    epoch = state.epoch
    settings, estimator = settings.replace(max_staleness=0 if deprecated else None), GIVEN if has_mixture else None
    server_update(state, upload, settings, proxy, client, estimator=estimator)
    join(state, settings, client)
    assert [bits(tensor) for tensor in given] == before
    assert state.epoch == epoch


@hypothesis_settings(deadline=None, derandomize=True, max_examples=50)
@given(servers(), any_settings)
def test_an_applied_upload_leaves_a_sound_state(server, settings):
    state, upload, proxy, _ = server
    after, reply = server_update(state, upload, settings, proxy)
    assert reply.mixture.sum().item() == pytest.approx(1)
    assert bool(torch.isfinite(reply.personal_model).all())
    assert torch.equal(after.cluster_losses, fresh_losses(after, proxy))
    for k, rate in enumerate(reply.rates):
        if rate == 0:
            assert bits(after.cluster_models[k]) == bits(state.cluster_models[k])


@hypothesis_settings(deadline=None, derandomize=True, max_examples=50)
@given(servers(), any_settings, st.randoms())
def test_permuting_clusters_permutes_the_result(server, settings, random):
    state, upload, proxy, _ = server
    order = list(range(state.num_clusters))
    random.shuffle(order)
    shuffled = state.replace(
        cluster_models=state.cluster_models[order],
        cluster_losses=state.cluster_losses[order],
        cluster_epochs=state.cluster_epochs[order],
        estimator_memory=state.estimator_memory[:, order],
    )
    after, reply = server_update(state, upload, settings, proxy)
    after_shuffled, reply_shuffled = server_update(shuffled, upload, settings, Proxy(proxy.centres[order]))

    def same(found, expected):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)

    same(reply_shuffled.mixture, reply.mixture[order])
    same(reply_shuffled.rates, reply.rates[order])
    same(reply_shuffled.personal_model, reply.personal_model)
    same(after_shuffled.cluster_models, after.cluster_models[order])
    assert torch.equal(after_shuffled.cluster_epochs, after.cluster_epochs[order])
    torch.testing.assert_close(after_shuffled.estimator_memory, after.estimator_memory[:, order])


@hypothesis_settings(deadline=None, derandomize=True, max_examples=50)
@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=3, max_size=3),
    st.sampled_from(["min", 0.0, 8.0]),
    st.sampled_from([None, [0.3, 0.7]]),
)
def test_no_model_becomes_nan(numbers, bar, mixture):
    """Finite uploads and clusters in float32, whose squares may overflow, give an error or a finite model."""
    proxy = Proxy([[0.0], [1.0]])
    mixture = None if mixture is None else torch.tensor(mixture)
    settings = Settings(loss_bar=bar, gap_bar=bar, distance_bar=bar)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            state = initial_state(torch.tensor([numbers[:1], numbers[1:2]]), proxy)
            upload, estimator = (
                Upload(torch.tensor(numbers[2:]), 0, mixture=mixture),
                None if mixture is None else GIVEN,
            )
            state, reply = server_update(state, upload, settings, proxy, estimator=estimator)
        except ValueError as refusal:
            assert "expected finite numbers" in str(refusal)  # noqa: PT017
            return
    assert bool(torch.isfinite(state.cluster_models).all())
    assert bool(torch.isfinite(reply.personal_model).all())


@pytest.mark.parametrize("cluster_step", ["towards", "along"])
def test_the_number_of_threads_changes_no_bit(cluster_step):
    """A journal may be replayed on a machine with more or fewer cores."""
    random = torch.Generator().manual_seed(0)
    clusters = torch.randn(4, 100_000, generator=random)
    change = torch.randn(100_000, generator=random)  # long enough to be bounded
    upload = Upload(clusters[0] + 9 * change, base_epoch=0, losses=torch.tensor([1.0, 1.1, 1.2, 1.3]))
    upload = upload.replace(base_model=clusters[0])
    settings = Settings(guard=True, cluster_step=cluster_step)
    evaluate = lambda models, clusters: torch.ones(len(clusters))  # noqa: E731
    before, found = torch.get_num_threads(), set()
    try:
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            state, reply = server_update(initial_state(clusters, evaluate), upload, settings, evaluate)
            parts = (state.cluster_models, state.defence_memory, reply.personal_model, reply.mixture, reply.rates)
            found.add(tuple(part.numpy().tobytes() for part in parts))
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


def test_clusters_settle_if_every_client_uploads_once_a_session():
    """Staleness is then the number of clients. Steps along the change must not add up without bound."""

    def run(settings: Settings) -> float:
        proxy = Proxy([[1.0]])
        state = initial_state(torch.tensor([[0.0]]), proxy)
        replies = [join(state, settings)] * 100
        for _ in range(12):
            for client, reply in enumerate(replies):
                base = reply.personal_model
                trained = base + 0.2 * (1 - base)  # training goes a fifth of the way
                upload = Upload(trained, reply.epoch, base_model=base)
                state, replies[client] = server_update(state, upload, settings, proxy)
        return abs(float(state.cluster_models) - 1)

    assert run(Settings()) < 0.05
    assert run(Settings(staleness_slope=1 / 80, staleness_grace=80.0)) > 1  # farther away than it began
