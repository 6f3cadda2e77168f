"""Data in the forms people have them, and what is none."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from cdfl.policy import Always

from .toy import make_data


class Three(Dataset):
    """Samples of three parts."""

    def __len__(self):
        return 4

    def __getitem__(self, number):
        return torch.zeros(2), torch.tensor(0), number


INPUTS, TARGETS = make_data()
NO_PAIRS = [
    ((INPUTS, TARGETS, TARGETS), r"a tensor of shape \[24, 2\] \(float32\)"),  # taken for three batches
    ([(INPUTS, TARGETS, "car-7")], "a tuple of 3"),
    ([INPUTS], r"a tensor of shape \[24, 2\] \(float32\)"),
    ([{"inputs": INPUTS, "targets": TARGETS}], "of type dict"),
    (DataLoader(Three(), 2), "a list of 3"),
    (Three(), "a list of 3"),
]


@pytest.mark.parametrize(("data", "words"), NO_PAIRS)
def test_batches_that_are_no_pairs(make_client, data, words):
    client = make_client()
    client.join()
    with pytest.raises(ValueError, match=rf"a batch is {words}; expected a pair \(inputs, targets\)"):
        client.update(data)
    assert not client.pending
    with pytest.raises(ValueError, match=f"a batch is {words}; expected a pair"):
        list(client.watch([data], Always()))


@pytest.mark.parametrize(
    "data",
    [
        (INPUTS, TARGETS),
        [INPUTS, TARGETS],
        [(INPUTS, TARGETS), [INPUTS, TARGETS]],
        iter([(INPUTS, TARGETS)]),
        DataLoader(TensorDataset(INPUTS, TARGETS), 8),
        TensorDataset(INPUTS, TARGETS),
    ],
    ids=["pair", "list", "batches", "iterator", "loader", "dataset"],
)
def test_batches_that_are(make_client, data):
    assert make_client().update(data).outcome == "applied"
