"""The seam for a defence, with one that uses all of it."""

from functools import reduce

import pytest
import torch

from cdfl.core import (
    GIVEN,
    NEWCOMER,
    NO_DEFENCE,
    UNMEASURED,
    ClientMemory,
    Limited,
    NotFiniteError,
    Upload,
    Verdict,
    server_update,
    take_step,
)
from cdfl.core.state import ACCEPTED
from cdfl.core.update import losses_after

from .toy import AS_PRINTED, FORBIDDEN, Careful, Fixed, bits, forbidden, pair

# The mixture of `Fixed(1, 0)` gives the rates (.5, 0); steps go along the change from a base model of 0.
ALONG = AS_PRINTED.replace(cluster_step="along", base_rate=0.5)


def upload(value: float) -> Upload:
    return Upload(torch.tensor([value]), 0, base_model=torch.tensor([0.0]))


def update(state, sent, evaluate, defence, client=NEWCOMER, settings=ALONG):
    return server_update(state, sent, settings, evaluate, client, estimator=Fixed(1.0, 0.0), defence=defence)


# -- no defence


def test_trust_takes_every_step():
    state, _ = pair()
    sent, rates = upload(2.0), torch.tensor([0.5, 0.0]).double()
    assert NO_DEFENCE.admit(state, sent, NEWCOMER) == (sent, ACCEPTED)
    limited = NO_DEFENCE.limit(state, sent, rates, ClientMemory(defence=(3.0,)), ALONG.rates, forbidden)
    assert limited.rates is rates
    assert limited.cluster_losses.isnan().tolist() == [True, False]  # cluster 0 moves: its loss is not known yet
    assert limited.cluster_losses[1] == state.cluster_losses[1]
    assert limited.verdict == Verdict(True, (), (3.0,), "")  # what another defence remembered of the client is kept
    memory = torch.ones(2)
    assert NO_DEFENCE.remember(memory, limited.verdict) is memory


def test_a_step_goes_along_the_change_or_towards_the_upload():
    state, _ = pair()
    along = take_step(state, upload(2.0), torch.tensor([0.5, 0.0]).double(), ALONG.rates)
    assert along.tolist() == [[1], [10]]
    towards = take_step(state, upload(2.0), torch.tensor([0.5, 0.5]).double(), AS_PRINTED.rates)
    assert towards.tolist() == [[1], [6]]  # towards v, although the base model is known


# -- a defence that bounds, tries, shrinks and refuses


def test_it_can_accept_a_step_as_it_is():
    state, proxy = pair()  # w = (0, 10), centres (1, 9), losses (1, 1)
    after, reply = update(state, upload(2.0), proxy, Careful())
    expected, answer = update(state, upload(2.0), proxy, NO_DEFENCE)
    assert (reply.outcome, reply.rates.tolist()) == ("applied", [0.5, 0])
    assert bits(after.cluster_models) == bits(expected.cluster_models)
    assert bits(reply.personal_model) == bits(answer.personal_model)
    assert reply.verdict == Verdict(True, (2.0, 1.0), (0.0,))


def test_it_can_bound_the_change_before_the_upload_is_measured():
    """100 becomes 4: the losses (9, 25), gaps (8, 24) and distances (4, 6) are those of 4."""
    state, proxy = pair()
    estimator, sent = Fixed(1.0, 0.0), upload(100.0).replace(losses=torch.tensor([9801.0, 8281.0]))
    after, reply = server_update(state, sent, ALONG, proxy, estimator=estimator, defence=Careful(longest=4.0))
    assert estimator.seen == [[[9, 25], [8, 24], [4, 6]]]
    assert [values.tolist() for values in reply.measures] == estimator.seen[0]
    assert after.cluster_models.tolist() == [[2], [10]]
    assert sent.local_model.tolist() == [100]


def test_the_bounded_upload_has_its_base_model_even_if_it_was_not_sent():
    """The client's last mixture of the clusters: .8 * 0 + .2 * 10 = 2. So 100 becomes 2 + 4, and the change is 4."""
    state, proxy = pair()
    sent, client = Upload(torch.tensor([100.0]), 0), ClientMemory(torch.tensor([0.8, 0.2]).double())
    after, _ = update(state, sent, proxy, Careful(longest=4.0), client)
    assert after.cluster_models.tolist() == [[2], [10]]


def test_it_can_try_a_step_and_shrink_it():
    """6 moves cluster 0 to 3, where its loss is 4; half of that to 1.5, where it is .25."""
    state, proxy = pair()
    after, reply = update(state, upload(6.0), proxy, Careful())
    assert (reply.outcome, reply.rates.tolist()) == ("applied", [0.25, 0])
    assert after.cluster_models.tolist() == [[1.5], [10]]
    assert reply.personal_model.tolist() == [1.5]  # mixed from the clusters after the smaller step
    assert after.cluster_losses.tolist() == [0.25, 1]
    assert proxy.calls == [[0, 1], [0, 1], [0, 1]]  # the upload; two tries; losses that it found are not computed again
    assert reply.verdict.seen == (6.0, 0.5)


def test_it_can_refuse_a_step():
    """-6 moves cluster 0 to -3 or -1.5: both are worse."""
    state, proxy = pair()
    client = ClientMemory(torch.tensor([0.2, 0.8]).double(), (4.0,))
    after, reply = update(state, upload(-6.0), proxy, Careful(), client)
    assert (reply.outcome, reply.rates.tolist(), reply.epoch) == ("rejected", [0, 0], 0)
    assert reply.verdict == Verdict(False, (6.0, 0.0), (5.0,), "it makes a cluster worse")
    assert reply.mixture.tolist() == client.mixture.tolist()  # not the estimate
    assert reply.personal_model.tolist() == [0]  # what it was sent
    assert after is state


def test_it_can_refuse_an_upload_before_it_is_measured():
    state, _ = pair()
    client = ClientMemory(torch.tensor([0.2, 0.8]).double(), (4.0,))
    after, reply = update(state, upload(FORBIDDEN), forbidden, Careful(), client)
    assert after is state
    assert (reply.outcome, reply.measures, reply.client.defence) == ("rejected", UNMEASURED, (4.0,))
    assert reply.verdict.reason == "not today"


@pytest.mark.parametrize("counts", [True, False])
def test_it_says_whether_deprecated_uploads_count(counts):
    class Counting(Careful):
        counts_deprecated = counts

    state, _ = pair()
    state = state.replace(epoch=5)
    settings = ALONG.replace(max_staleness=2)
    after, reply = server_update(state, upload(2.0), settings, forbidden, defence=Counting())
    assert (reply.outcome, reply.epoch, after.epoch, reply.staleness) == ("deprecated", 5 + counts, 5 + counts, 6)


def test_a_defence_that_evaluates_nothing_leaves_it_to_the_server():
    class Halving(Careful):
        def limit(self, state, upload, rates, client, settings, evaluate):
            return Limited(rates / 2, losses_after(state, rates), Verdict())

    state, proxy = pair()
    after, reply = update(state, upload(2.0), proxy, Halving())
    assert reply.rates.tolist() == [0.25, 0]
    assert after.cluster_losses.tolist() == [0.25, 1]  # (.5 - 1)^2
    assert proxy.calls == [[0, 1], [0]]


def test_a_given_mixture_is_not_measured_and_still_passes_the_defence():
    class Asking(Careful):
        def limit(self, state, upload, rates, client, settings, evaluate):
            assert upload.losses is None
            return Limited(rates, losses_after(state, rates), Verdict(upload.local_model.item() < 5))

    state, _ = pair()
    mixture = torch.tensor([1.0, 0.0])
    for value, outcome in ((2.0, "applied"), (8.0, "rejected")):
        sent = upload(value).replace(mixture=mixture)
        _, reply = server_update(state, sent, ALONG, forbidden, estimator=GIVEN, defence=Asking())
        assert (reply.outcome, reply.mixture.tolist()) == (outcome, [1, 0] if outcome == "applied" else [0.5, 0.5])


def test_deprecated_uploads_do_not_reach_the_defence():
    state, _ = pair()
    state = state.replace(defence_memory=torch.ones(3))
    client = ClientMemory(torch.tensor([0.2, 0.8]), (4.0,))
    after, reply = server_update(
        state, upload(2.0), ALONG.replace(max_staleness=0), forbidden, client, defence=Careful()
    )
    assert reply.outcome == "deprecated"
    assert after.defence_memory is state.defence_memory
    assert reply.client.defence == (4.0,)


def test_the_defence_does_not_hide_losses_that_are_not_finite():
    state, _ = pair()
    with pytest.raises(NotFiniteError, match="losses of the upload"):
        update(state, upload(2.0), lambda models, clusters: torch.full((len(clusters),), torch.nan), Careful())


# -- memory


VALUES = [6.0, 2.0, -6.0, -1.0, -9.0, 100.0, 3.0, -1.0]


def test_the_server_s_memory_is_a_function_of_the_verdicts():
    (state, proxy), defence, verdicts = pair(), Careful(longest=8.0), []
    for value in VALUES:
        state, reply = update(state, upload(value), proxy, defence)
        verdicts.append(reply.verdict)
    assert {verdict.is_accepted for verdict in verdicts} == {True, False}
    assert {verdict.seen[1] for verdict in verdicts} == {1.0, 0.5, 0.0}
    empty, accepted = torch.empty(0, dtype=torch.float64), [verdict for verdict in verdicts if verdict.is_accepted]
    assert bits(reduce(defence.remember, accepted, empty)) == bits(state.defence_memory)


def test_each_client_has_a_memory_of_its_own():
    """Client a sends what is refused, client b does not."""
    (state, proxy), defence = pair(), Careful()
    known = {"a": NEWCOMER, "b": NEWCOMER}
    for name, value in (("a", -6.0), ("b", 1.0), ("a", -6.0), ("b", 0.5), ("a", 0.0)):
        state, reply = update(state, upload(value), proxy, defence, known[name])
        known[name] = reply.client
    assert (known["a"].defence, known["b"].defence) == ((2.0,), (0.0,))
    assert state.defence_memory.tolist() == [1.0, 1.0, 1.0]  # of the accepted uploads


def test_the_same_arguments_give_the_same_result():
    state, proxy = pair()
    for value in VALUES:
        one, other = (update(state, upload(value), proxy, Careful()) for _ in range(2))
        assert bits(one[0].cluster_models) == bits(other[0].cluster_models)
        assert bits(one[0].defence_memory) == bits(other[0].defence_memory)
        assert one[1].verdict == other[1].verdict
