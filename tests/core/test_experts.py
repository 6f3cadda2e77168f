import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import nn
from torch.nn import functional as F

from cdfl.core.experts import expert_weights, likeliest, loss_scale, mix_logits, mix_values, mixture_of


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def naive_mixture(evidence, prior, strength, iterations):
    """EM as it is written in textbooks: one sample and one cluster at a time."""
    num_samples, num_clusters = evidence.shape
    mixture = [0.01 / num_clusters + 0.99 * float(prior[k]) for k in range(num_clusters)]
    for _ in range(iterations):
        counts = [strength * float(prior[k]) for k in range(num_clusters)]
        for sample in evidence:
            joint = [mixture[k] * float(sample[k].exp()) for k in range(num_clusters)]
            for k in range(num_clusters):
                counts[k] += joint[k] / sum(joint)
        mixture = [count / (num_samples + strength) for count in counts]
    return mixture


def test_the_mixture_is_that_of_the_textbook():
    evidence = torch.randn(30, 3, generator=seeded()).double() * 2
    prior = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    found = mixture_of(evidence, prior, strength=4.0, iterations=7)
    assert found.tolist() == pytest.approx(naive_mixture(evidence, prior, 4.0, 7), abs=1e-12)


def test_the_mixture_is_where_the_likelihood_is_highest():
    evidence = torch.randn(50, 3, generator=seeded()).double() * 2
    prior, strength = torch.tensor([0.2, 0.3, 0.5]).double(), 5.0

    def objective(numbers):
        mixture = F.softmax(torch.tensor([*numbers, 0.0]).double(), dim=0)
        seen = torch.logsumexp(evidence + mixture.log(), dim=1).sum()
        return -float(seen + strength * (prior * mixture.log()).sum())

    best = minimize(objective, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).x
    expected = F.softmax(torch.tensor([*best, 0.0]).double(), dim=0)
    assert mixture_of(evidence, prior, strength, iterations=2000) == pytest.approx(expected, abs=1e-5)


def test_few_samples_stay_near_the_prior_and_none_give_it():
    prior = torch.tensor([0.7, 0.3]).double()
    one = torch.tensor([[-5.0, 0.0]]).double()
    assert mixture_of(one[:0], prior) == pytest.approx(prior)
    shares = [float(mixture_of(one.expand(count, -1), prior, strength=10.0)[0]) for count in (0, 1, 10, 1000)]
    assert shares == sorted(shares, reverse=True)
    assert shares[1] > 0.5 > shares[2] > 0.1 > shares[3]


def test_evidence_that_says_nothing_gives_the_prior():
    prior = torch.tensor([0.7, 0.2, 0.1]).double()
    assert mixture_of(torch.full((500, 3), -7.0), prior) == pytest.approx(prior, abs=0.02)


def test_many_clients_at_once_get_what_each_gets_alone():
    parts = [torch.randn(count, 3, generator=seeded(count)).double() for count in (5, 17, 1)]
    padded = nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=3.0)
    priors = torch.softmax(torch.randn(3, 3, generator=seeded()).double(), dim=1)
    together = mixture_of(padded, priors, 2.0, counts=torch.tensor([5, 17, 1]))
    for found, evidence, prior in zip(together, parts, priors, strict=True):
        assert found == pytest.approx(mixture_of(evidence, prior, 2.0), abs=1e-12)


@given(st.integers(0, 40), st.integers(1, 6), st.floats(0.01, 100), st.integers(0, 1000))
def test_a_mixture_is_always_a_mixture(num_samples, num_clusters, strength, seed):
    evidence = torch.randn(num_samples, num_clusters, generator=seeded(seed)) * 500
    found = mixture_of(evidence, strength=strength)
    assert bool((found >= 0).all())
    assert float(found.sum()) == pytest.approx(1)


def test_experts_are_weighted_by_router_and_mixture():
    evidence = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
    weights = expert_weights(evidence, torch.tensor([0.25, 0.75]))
    assert weights[0] == pytest.approx(torch.tensor([0.75, 0.25]).double())  # .9 * .25 to .1 * .75
    assert weights[1] == pytest.approx(torch.tensor([0.25, 0.75]).double())


def test_an_expert_of_no_share_is_not_asked():
    weights = expert_weights(torch.zeros(1, 2), torch.tensor([1.0, 0.0]))
    assert weights[0, 0] == pytest.approx(1, abs=1e-9)


def test_values_are_averaged_and_logits_as_probabilities():
    outputs = torch.randn(3, 5, 4, generator=seeded())  # three experts, five inputs, four classes
    weights = torch.softmax(torch.randn(5, 3, generator=seeded(1)), dim=1)
    mean = sum(weights[:, k, None] * outputs[k].softmax(dim=1) for k in range(3))
    assert mix_logits(outputs, weights).softmax(dim=1) == pytest.approx(mean, abs=1e-6)
    assert mix_values(outputs, weights) == pytest.approx(
        sum(weights[:, k, None] * outputs[k] for k in range(3)), abs=1e-6
    )


def test_classes_may_be_in_the_last_dimension():
    outputs = torch.randn(2, 3, 6, 4, generator=seeded())  # two experts, three texts of six places, four characters
    weights = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.2, 0.8]])
    mixed = mix_logits(outputs, weights, dim=-1)
    assert mixed.shape == (3, 6, 4)
    assert mixed[1].softmax(dim=-1) == pytest.approx(outputs[0, 1].softmax(dim=-1), abs=1e-6)


def test_one_expert_an_input_is_that_experts_output():
    outputs = torch.randn(2, 3, 4, generator=seeded())
    weights = likeliest(torch.tensor([[0.4, 0.6], [0.9, 0.1], [0.3, 0.7]]))
    assert mix_values(outputs, weights).tolist() == [
        outputs[1, 0].tolist(),
        outputs[0, 1].tolist(),
        outputs[1, 2].tolist(),
    ]


def test_losses_of_calibrated_experts_count_once_and_those_of_others_less():
    noise = seeded()
    clusters = torch.arange(2).repeat(3000)
    # log p(sample | cluster) of unit Gaussians that are 2 apart
    samples = torch.randn(6000, generator=noise) + 2.0 * clusters
    losses = torch.stack([samples**2, (samples - 2.0) ** 2], dim=1) / 2
    assert loss_scale(losses, clusters) == pytest.approx(1.0, abs=0.1)
    assert loss_scale(5 * losses + 3, clusters) == pytest.approx(0.2, abs=0.02)
    assert loss_scale(-losses, clusters) == 0.0
