import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cdfl.core import TrainingSettings
from cdfl.core.experts import mixture_of
from cdfl.core.router import Router, calibrate, train_one_by_one, train_router

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
    return module, train_router(module, inputs, seeded(seed), SETTINGS)


def evidence(module, router, inputs):
    return router.look_at(module, inputs).evidence


def test_it_reads_the_mixture_off_unlabelled_inputs():
    module, router = trained(blobs([400, 400, 400]))
    inputs = torch.cat(blobs([560, 140, 0], seed=1))
    mixture = mixture_of(evidence(module, router, inputs))
    assert mixture == pytest.approx(torch.tensor([0.8, 0.2, 0.0]).double(), abs=0.03)


def test_its_calibration_makes_up_for_clusters_with_few_samples():
    module, router = trained(blobs([3000, 600], apart=1.5))
    inputs = torch.cat(blobs([500, 500], apart=1.5, seed=1))
    assert mixture_of(evidence(module, router, inputs))[0] == pytest.approx(0.5, abs=0.06)


def test_it_is_near_the_best_possible_answer():
    """The clusters are known Gaussians, so the true likelihoods are known too."""
    module, router = trained(blobs([2000, 2000], apart=2.0))
    inputs = torch.cat(blobs([300, 700], apart=2.0, seed=1))
    centres = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    exact = -(inputs[:, None] - centres).square().sum(dim=2) / 2
    found, best = mixture_of(evidence(module, router, inputs)), mixture_of(exact)
    assert found[0] == pytest.approx(float(best[0]), abs=0.02)


def test_a_router_that_cannot_tell_clusters_apart_knows_it():
    _, sharp = trained(blobs([400, 400], apart=8.0))
    _, rough = trained(blobs([400, 400], apart=2.0))
    _, blind = trained(blobs([400, 400], apart=0.0))
    assert sharp.information > 0.95
    assert sharp.accuracy > 0.99
    assert 0.1 < rough.information < 0.8
    assert blind.information < 0.01
    assert blind.accuracy == pytest.approx(0.5, abs=0.1)
    assert torch.allclose(blind.confusion, torch.full((2, 2), 0.5).double(), atol=0.05)


def test_a_blind_router_leaves_the_prior_nearly_as_it_was():
    module, blind = trained(blobs([400, 400], apart=0.0))
    prior = torch.tensor([0.8, 0.2]).double()
    inputs = torch.cat(blobs([20, 20], apart=0.0, seed=1))
    found = mixture_of(evidence(module, blind, inputs), prior, strength=20.0)
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


def test_inputs_of_another_kind_are_strange_and_known_ones_are_not():
    noise = seeded(5)
    scale = torch.linspace(0.2, 3.0, 20)
    known = [torch.randn(800, 20, generator=noise) * scale + shift for shift in (0.0, 2.0)]
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2))
    router = train_router(module, known, seeded(), TrainingSettings(local_epochs=5))

    def share(inputs):
        return float(router.look_at(module, inputs).is_strange.double().mean())

    assert share(torch.randn(1000, 20, generator=noise) * scale) < 0.03
    assert share(torch.randn(1000, 20, generator=noise) * scale.flip(0)) > 0.9  # other directions
    assert share(0.1 * torch.randn(1000, 20, generator=noise) * scale) > 0.9  # much smaller than usual
    assert share(torch.full((3, 20), torch.nan)) == 1.0


def test_tokens_are_described_by_the_routers_features_alone():
    tokens = [torch.randint(0, 5, (200, 12), generator=seeded(k)) + 5 * k for k in range(2)]
    torch.manual_seed(0)
    module = nn.Sequential(nn.EmbeddingBag(20, 8), nn.Linear(8, 2))
    router = train_router(module, tokens, seeded(), SETTINGS)
    assert router.known_inputs is None
    assert float(router.look_at(module, tokens[0]).is_strange.double().mean()) < 0.05
    assert float(router.look_at(module, torch.full((50, 12), 19)).is_strange.double().mean()) > 0.9


def test_the_same_seed_gives_the_same_router():
    inputs = blobs([100, 100])
    (_, one), (_, two) = trained(inputs, seed=3), trained(inputs, seed=3)
    assert torch.equal(one.model, two.model)
    assert torch.equal(one.confusion, two.confusion)


def test_a_part_is_tested_by_a_router_that_was_not_trained_on_it():
    """This router can only learn its training samples by heart, so it must know nothing of the others."""
    inputs = [torch.eye(40)[:20], torch.eye(40)[20:]]
    torch.manual_seed(0)
    settings = TrainingSettings(learning_rate=0.1, weight_decay=0.0, local_epochs=200)
    module = nn.Linear(40, 2)
    router = train_router(module, inputs, seeded(), settings)
    assert router.information < 0.1
    seen = evidence(module, router, torch.eye(40))  # the router itself was trained on all of them
    assert torch.equal(seen.argmax(dim=1), torch.arange(2).repeat_interleave(20))


def test_many_samples_are_trained_on_once():
    counts = []

    def counted(module, samples, clusters, plans, settings):
        counts.append(len(plans))
        return train_one_by_one(module, samples, clusters, plans, settings)

    for sizes in ([3000, 3000], [30, 30]):
        train_router(nn.Linear(2, 2), blobs(sizes), seeded(), TrainingSettings(local_epochs=1), train=counted)
    assert counts == [1, 5]


def test_one_cluster_needs_no_router_but_does_not_break_it():
    module, router = trained(blobs([40]))
    assert mixture_of(evidence(module, router, torch.zeros(3, 2))).tolist() == [1.0]
    assert router.information == 0.0


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match=r"cluster 1 has 1 samples for the router; expected 4 or more"):
        trained(blobs([40, 1]))


def test_a_module_with_another_number_of_outputs_is_refused():
    with pytest.raises(ValueError, match=r"maps 2 inputs to \(2, 4\); expected \(2, 3\)"):
        train_router(nn.Linear(2, 4), blobs([40, 40, 40]), seeded(), SETTINGS)


def test_the_record_is_frozen():
    with pytest.raises(AttributeError):
        Router(torch.zeros(1), 1.0, torch.zeros(2), torch.eye(2), 1.0, None, None).temperature = 2.0
