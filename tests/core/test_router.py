import pytest
import torch
from scipy.optimize import minimize
from torch import nn
from torch.nn import functional as F

from cdfl.core import TrainingSettings
from cdfl.core.router import Router, calibrate, combine, expert_weights, mixture_of_inputs, train_router

SETTINGS = TrainingSettings(learning_rate=0.02, weight_decay=0.0, batch_size=64, local_epochs=20)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def blobs(counts, spread=1.0, apart=3.0, seed=0):
    """One Gaussian a cluster, their centres `apart` on a line."""
    noise = seeded(seed)
    return [
        torch.randn(count, 2, generator=noise) * spread + torch.tensor([apart * k, 0.0])
        for k, count in enumerate(counts)
    ]


def trained(inputs, seed=0):
    torch.manual_seed(0)
    module = nn.Linear(2, len(inputs))
    return module, train_router(module, inputs, SETTINGS, seeded(seed))


def test_it_reads_the_mixture_off_unlabelled_inputs():
    module, router = trained(blobs([400, 400, 400]))
    inputs = torch.cat(blobs([560, 140, 0], seed=1))
    mixture = mixture_of_inputs(router.log_likelihoods(module, inputs))
    assert mixture == pytest.approx(torch.tensor([0.8, 0.2, 0.0]).double(), abs=0.03)


def test_its_calibration_makes_up_for_clusters_with_few_samples():
    module, router = trained(blobs([4000, 400], apart=1.5))
    inputs = torch.cat(blobs([500, 500], apart=1.5, seed=1))
    assert mixture_of_inputs(router.log_likelihoods(module, inputs))[0] == pytest.approx(0.5, abs=0.06)


def test_it_is_near_the_best_possible_answer():
    """The clusters are known Gaussians, so the true likelihoods are known too."""
    module, router = trained(blobs([2000, 2000], apart=2.0))
    inputs = torch.cat(blobs([300, 700], apart=2.0, seed=1))
    centres = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    exact = -(inputs[:, None] - centres).square().sum(dim=2) / 2
    found, best = mixture_of_inputs(router.log_likelihoods(module, inputs)), mixture_of_inputs(exact)
    assert found[0] == pytest.approx(float(best[0]), abs=0.02)


def test_the_mixture_is_where_the_likelihood_is_highest():
    log_likelihoods = torch.randn(50, 3, generator=seeded()).double() * 2
    prior, strength = torch.tensor([0.2, 0.3, 0.5]).double(), 5.0

    def objective(numbers):
        mixture = F.softmax(torch.tensor([*numbers, 0.0]).double(), dim=0)
        seen = torch.logsumexp(log_likelihoods + mixture.log(), dim=1).sum()
        return -float(seen + strength * (prior * mixture.log()).sum())

    best = minimize(objective, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).x
    expected = F.softmax(torch.tensor([*best, 0.0]).double(), dim=0)
    assert mixture_of_inputs(log_likelihoods, prior, strength, iterations=2000) == pytest.approx(expected, abs=1e-5)


def test_few_inputs_stay_near_the_prior_and_none_give_it():
    prior = torch.tensor([0.7, 0.3]).double()
    one = torch.tensor([[-5.0, 0.0]]).double()
    assert mixture_of_inputs(one[:0], prior) == pytest.approx(prior)
    shares = [float(mixture_of_inputs(one.expand(count, -1), prior, strength=10.0)[0]) for count in (0, 1, 10, 1000)]
    assert shares == sorted(shares, reverse=True)
    assert shares[1] > 0.5 > shares[2] > 0.1 > shares[3]


def test_a_router_that_cannot_tell_clusters_apart_knows_it():
    _, sharp = trained(blobs([400, 400], apart=8.0))
    _, rough = trained(blobs([400, 400], apart=2.0))
    _, blind = trained(blobs([400, 400], apart=0.0))
    assert sharp.information > 0.95
    assert 0.1 < rough.information < 0.8
    assert blind.information < 0.01
    assert torch.allclose(blind.confusion, torch.full((2, 2), 0.5).double(), atol=0.05)


def test_a_blind_router_leaves_the_prior_nearly_as_it_was():
    module, blind = trained(blobs([400, 400], apart=0.0))
    prior = torch.tensor([0.8, 0.2]).double()
    inputs = torch.cat(blobs([20, 20], apart=0.0, seed=1))
    found = mixture_of_inputs(blind.log_likelihoods(module, inputs), prior, strength=20.0)
    assert found[0] == pytest.approx(0.8, abs=0.1)


def test_calibration_undoes_overconfidence_and_bias():
    noise = seeded()
    clusters = torch.arange(2).repeat(2000)
    honest = F.one_hot(clusters, 2) * 1.0 + torch.randn(4000, 2, generator=noise) * 0.7
    temperature, bias = calibrate(honest.double(), clusters)
    again, moved = calibrate(honest.double() * 4 + torch.tensor([2.0, -2.0]), clusters)
    assert again == pytest.approx(4 * temperature, rel=0.01)
    assert (moved[0] - moved[1] - (bias[0] - bias[1])) == pytest.approx(-4 / again, rel=0.02)


def test_calibration_of_a_router_without_mistakes_stays_finite():
    clusters = torch.arange(2).repeat(50)
    temperature, bias = calibrate((F.one_hot(clusters, 2) * 1000.0).double(), clusters)
    assert temperature > 0
    assert bool(bias.isfinite().all())


def test_experts_are_weighted_by_router_and_mixture():
    log_likelihoods = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
    weights = expert_weights(log_likelihoods, torch.tensor([0.25, 0.75]))
    assert weights[0] == pytest.approx(torch.tensor([0.75, 0.25]).double())  # .9 * .25 to .1 * .75
    assert weights[1] == pytest.approx(torch.tensor([0.25, 0.75]).double())


def test_predictions_are_combined_softly_or_by_one_expert_an_input():
    predictions = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])  # two experts, two inputs
    weights = torch.tensor([[0.75, 0.25], [0.4, 0.6]]).double()
    assert combine(predictions, weights).tolist() == [[0.75, 0.25], [pytest.approx(0.4), pytest.approx(0.6)]]
    assert combine(predictions, weights, is_soft=False).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_the_same_seed_gives_the_same_router():
    inputs = blobs([100, 100])
    (_, one), (_, two) = trained(inputs, seed=3), trained(inputs, seed=3)
    assert torch.equal(one.model, two.model)
    assert torch.equal(one.confusion, two.confusion)


def test_held_out_samples_are_not_trained_on():
    """This router can only learn its training samples by heart, so it must know nothing of the others."""
    inputs = [torch.eye(40)[:20], torch.eye(40)[20:]]
    torch.manual_seed(0)
    settings = TrainingSettings(learning_rate=0.1, weight_decay=0.0, local_epochs=200)
    router = train_router(nn.Linear(40, 2), inputs, settings, seeded())
    assert router.information < 0.1


def test_one_cluster_needs_no_router_but_does_not_break_it():
    module, router = trained(blobs([40]))
    assert mixture_of_inputs(router.log_likelihoods(module, torch.zeros(3, 2))).tolist() == [1.0]
    assert router.information == 0.0


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match=r"cluster 1 has 1 samples for the router, of which 0 would be held out"):
        trained(blobs([40, 1]))


def test_a_module_with_another_number_of_outputs_is_refused():
    with pytest.raises(ValueError, match=r"maps 2 inputs to \(2, 4\); expected \(2, 3\)"):
        train_router(nn.Linear(2, 4), blobs([40, 40, 40]), SETTINGS, seeded())


def test_the_record_is_frozen():
    with pytest.raises(AttributeError):
        Router(torch.zeros(1), 1.0, torch.zeros(2), torch.eye(2)).temperature = 2.0
