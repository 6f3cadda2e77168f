import torch

from cdfl.core import Settings, pretrain

from .toy import Point, bits, half_square

# Two sets, with targets 0 and 4; a learning rate of one half. Pre-training does not use rho.
SETS = [(torch.zeros(2, 1), torch.zeros(2, 1)), (torch.zeros(2, 1), torch.full((2, 1), 4.0))]
SETTINGS = Settings(optimizer="sgd", learning_rate=0.5, weight_decay=0.0, proximal_strength=100.0, batch_size=4)


def clusters(model, shared_epochs, separate_epochs, **others):
    settings = SETTINGS.replace(shared_epochs=shared_epochs, separate_epochs=separate_epochs)
    return pretrain(model, SETS, half_square, settings, torch.Generator().manual_seed(0), **others).tolist()


def test_shared_and_separate_epochs_worked_by_hand():
    assert clusters(Point(0.0), 1, 0) == [[1], [1]]  # all targets together have mean 2: 0 - .5 * (0 - 2)
    assert clusters(Point(0.0), 1, 1) == [[0.5], [2.5]]  # 1 - .5 * (1 - 0), 1 - .5 * (1 - 4)
    assert clusters(Point(0.0), 0, 1) == [[0], [2]]  # apart, from the model's own weights
    assert clusters(Point(0.0), 2, 2) == [[0.375], [3.375]]  # 1.5; .75, .375; 2.75, 3.375
    assert clusters(Point(8.0), 0, 0) == [[8], [8]]


def test_the_model_is_not_changed():
    model = Point(8.0)
    clusters(model, 1, 1)
    assert bits(model.weights.detach()) == bits(torch.tensor([8.0]))


def test_progress_is_reported():
    messages = []
    samples = []
    clusters(Point(0.0), 1, 2, progress=messages.append, trained=lambda *counts: samples.append(counts))
    assert messages == ["pre-training, shared model", "pre-training, cluster 1 of 2", "pre-training, cluster 2 of 2"]
    assert samples == [(4, 12), (6, 12), (8, 12), (10, 12), (12, 12)]  # one batch of 4, then two of 2 a cluster


def test_the_generator_decides_the_order():
    """Batches of one: the last target seen weighs most, so another order is another model."""

    def run(seed):
        sets = [(torch.zeros(16, 1), torch.arange(16.0)[:, None])]
        settings = SETTINGS.replace(batch_size=1, shared_epochs=1, separate_epochs=1)
        return bits(pretrain(Point(0.0), sets, half_square, settings, torch.Generator().manual_seed(seed)))

    assert run(1) == run(1)
    assert run(1) != run(2)
