import pytest
import torch

from cdfl.core.batches import batch_plan


def plan(num_samples, batch_size, passes, seed=0):
    return batch_plan(num_samples, batch_size, passes, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("num_samples", "batch_size", "passes", "shape"),
    [
        (5, 4, 2, (3, 4)),  # 10 samples in batches of 4: 2.5, so 3
        (6, 3, 2, (4, 3)),  # 12 samples in batches of 3, exactly
        (3, 128, 5, (5, 3)),  # fewer samples than a batch: one batch a pass
        (1, 1, 1, (1, 1)),
        (7, 2, 0, (0, 2)),
    ],
)
def test_shapes_worked_by_hand(num_samples, batch_size, passes, shape):
    found = plan(num_samples, batch_size, passes)
    assert found.shape == shape
    assert found.dtype == torch.int64


def test_every_pass_takes_every_sample_once_and_in_a_new_order():
    order = plan(num_samples=50, batch_size=10, passes=3).view(3, 50)
    for one_pass in order:
        assert sorted(one_pass.tolist()) == list(range(50))
    assert len({tuple(one_pass.tolist()) for one_pass in order}) == 3
    assert order[0].tolist() != list(range(50))


def test_only_the_generator_decides_the_order():
    torch.manual_seed(1)
    first = plan(20, 4, 2, seed=3)
    torch.manual_seed(2)
    assert torch.equal(first, plan(20, 4, 2, seed=3))
    assert not torch.equal(first, plan(20, 4, 2, seed=4))


def test_no_data_is_refused():
    with pytest.raises(ValueError, match="no data to train on; expected at least one sample"):
        plan(0, 4, 1)
