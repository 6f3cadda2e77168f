"""Data in the forms people have them, and what is none."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from cdfl.client.batches import nonempty
from cdfl.policy import Always, Either, LossRises

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


NOTHING = (INPUTS[:0], TARGETS[:0])


@pytest.mark.parametrize("data", [NOTHING, [NOTHING], [NOTHING, NOTHING], []])
def test_no_samples_are_no_training(server, make_client, data):
    client = make_client()
    with pytest.raises(ValueError, match="there is no data to train on; expected at least one batch"):
        client.update(data)
    assert (client.pending, client.uploads) == (False, 0)
    seen = list(client.watch([data, (INPUTS, TARGETS)], Always()))
    assert [(event.samples, event.decided) for event in seen] == [(0, False), (24, True)]
    assert len(server.applied) == 1


def test_an_empty_batch_among_others_counts_for_nothing(make_client):
    (event,) = make_client().watch([[(INPUTS, TARGETS), NOTHING]], LossRises())
    assert (event.samples, event.error) == (24, "")
    alone, both = make_client(), make_client()
    for client in (alone, both):
        client.join()
    whole = [(INPUTS, TARGETS)]
    assert torch.equal(alone.train(whole), both.train([NOTHING, *whole, NOTHING]))


@pytest.mark.parametrize("targets", [(), {}, [], None], ids=repr)
def test_a_loss_that_needs_no_targets(make_client, targets):
    client = make_client(loss=lambda outputs, targets: outputs.square().mean())
    assert client.update((INPUTS, targets)).outcome == "applied"
    (event,) = client.watch([(INPUTS, targets)], Either(LossRises(), Always()))
    assert (event.samples, event.decided, event.loss > 0) == (1, True, True)


def test_no_samples_in_a_dict():
    whole, nothing = ({"picture": INPUTS}, TARGETS), ({"picture": INPUTS[:0]}, TARGETS[:0])
    assert list(nonempty([nothing, whole, ({}, ()), ((INPUTS[:0], INPUTS[:0]), ())])) == [whole]
