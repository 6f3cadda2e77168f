"""All forms of data, and data that are refused."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from cdfl.client.batches import nonempty, to_device
from cdfl.core import flatten
from cdfl.upload_policies import Always, Either, LossRises

from .toy import ToyServer, make_data


class Three(Dataset):
    """Samples of three parts."""

    def __len__(self):
        return 4

    def __getitem__(self, number):
        return torch.zeros(2), torch.tensor(0), number


INPUTS, TARGETS = BATCH = make_data()
LISTED = [(INPUTS[:8], TARGETS[:8]), (INPUTS[8:], TARGETS[8:])]
NO_PAIRS = [
    ((INPUTS, TARGETS, TARGETS), r"a tensor of shape \[24, 2\] \(float32\)"),  # taken for three batches
    ([(INPUTS, TARGETS, "car-7")], "a tuple of 3"),
    ([INPUTS], r"a tensor of shape \[24, 2\] \(float32\)"),
    ([{"inputs": INPUTS, "targets": TARGETS}], "of type dict"),
    (DataLoader(Three(), 2), "a list of 3"),
    (Three(), "a list of 3"),
]


@pytest.mark.parametrize(
    ("data", "steps"),
    [
        (BATCH, 1),
        (list(BATCH), 1),
        (LISTED, 2),
        (tuple(LISTED), 2),
        (DataLoader(TensorDataset(*BATCH), batch_size=6), 4),
        (TensorDataset(*BATCH), 3),  # batch_size is 8
    ],
    ids=["batch", "list batch", "list", "tuple", "loader", "dataset"],
)
def test_all_forms_of_data(make_client, data, steps):
    seen = []

    def loss(outputs, targets):
        seen.append(len(targets))
        return torch.nn.functional.cross_entropy(outputs, targets)

    client = make_client(loss=loss, local_epochs=2)
    assert client.update(data).outcome == "applied"
    assert len(seen) == 2 * steps
    assert sum(seen) == 2 * 24


def test_an_iterator_is_used_several_times(server, make_client):
    uploads = []
    for data in (LISTED, iter(LISTED), (batch for batch in LISTED)):
        client = make_client(client_id=f"car-{len(uploads)}")
        server.state = ToyServer().state
        client.update(data)
        uploads.append(server.requests[-1].content)
    assert uploads[0] == uploads[1] == uploads[2]


@pytest.mark.parametrize(("data", "words"), NO_PAIRS)
def test_batches_must_be_pairs(make_client, data, words):
    client = make_client()
    client.join()
    with pytest.raises(ValueError, match=rf"a batch is {words}; expected a pair \(inputs, targets\)"):
        client.update(data)
    assert not client.pending
    with pytest.raises(ValueError, match=f"a batch is {words}; expected a pair"):
        list(client.watch([data], Always()))


EMPTY = (INPUTS[:0], TARGETS[:0])


@pytest.mark.parametrize("data", [EMPTY, [EMPTY], [EMPTY, EMPTY], []])
def test_empty_data_are_not_trained_on(server, make_client, data):
    client = make_client()
    client.join()
    held = flatten(client.model)
    with pytest.raises(ValueError, match="there is no data to train on; expected at least one batch"):
        client.update(data)
    assert (client.pending, client.uploads) == (False, 0)
    assert torch.equal(flatten(client.model), held)
    turns = list(client.watch([data, BATCH], Always()))
    assert [(turn.samples, turn.decided) for turn in turns] == [(0, False), (24, True)]
    assert len(server.applied) == 1


def test_an_empty_batch_is_skipped(make_client):
    (turn,) = make_client().watch([[BATCH, EMPTY]], LossRises())
    assert (turn.samples, turn.error) == (24, "")
    alone, both = make_client(), make_client()
    for client in (alone, both):
        client.join()
    assert torch.equal(alone.train([BATCH]), both.train([EMPTY, BATCH, EMPTY]))


@pytest.mark.parametrize("targets", [(), {}, [], None], ids=repr)
def test_a_loss_that_needs_no_targets(make_client, targets):
    client = make_client(loss=lambda outputs, targets: outputs.square().mean())
    assert client.update((INPUTS, targets)).outcome == "applied"
    (turn,) = client.watch([(INPUTS, targets)], Either(LossRises(), Always()))
    assert (turn.samples, turn.decided, turn.loss > 0) == (1, True, True)


def test_empty_nested_inputs():
    whole, nothing = ({"picture": INPUTS}, TARGETS), ({"picture": INPUTS[:0]}, TARGETS[:0])
    assert list(nonempty([nothing, whole, ({}, ()), ((INPUTS[:0], INPUTS[:0]), ())])) == [whole]


def test_arrays_are_taken_as_tensors():
    array = np.ones((3, 2), dtype=np.float32)
    assert torch.equal(to_device([array], torch.device("cpu"))[0], torch.ones(3, 2))


@pytest.mark.parametrize("shape", [(24,), (24, 1)])
def test_numbers_need_a_loss_of_numbers(make_client, shape):
    client = make_client()
    with pytest.raises(ValueError, match=r"targets are a tensor of shape .* takes classes: pass another loss"):
        client.update((INPUTS, torch.randn(shape)))
