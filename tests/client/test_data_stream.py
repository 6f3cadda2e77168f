"""Following a stream of fresh data."""

from collections import namedtuple

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from cdfl import upload_policies as policy_module
from cdfl import wire
from cdfl.client import Retry, StreamFollower
from cdfl.core import Layout, Settings
from cdfl.upload_policies import (
    ALWAYS,
    AtFirst,
    DriftDetected,
    EverySamples,
    EverySeconds,
    LossRises,
    Sometimes,
    Unless,
)

from .faults import BadNetwork
from .toy import ToyServer, make_data, make_model


def eager():
    """A server whose clusters take over each upload."""
    return ToyServer(Settings(base_rate=1.0, rate_floor=0.0, sharpness=0.001))


@pytest.fixture
def server():
    return eager()


def calm(count, turned=False, start=0):
    return [make_data(turned, seed=start + number) for number in range(count)]


def test_nothing_is_uploaded_until_the_data_change(server, make_client):
    client = make_client(local_epochs=20)
    client.update(make_data(seed=99))
    client.update(make_data(seed=98))
    stream = calm(6) + calm(3, turned=True)
    turns = list(client.watch(stream, LossRises(factor=1.5)))
    assert [turn.number for turn in turns] == list(range(1, 10))
    assert [turn.samples for turn in turns] == [24] * 9
    assert [turn.decided for turn in turns] == [False] * 6 + [True, True, True]  # until the loss is low again
    assert [turn.reply is not None for turn in turns] == [False] * 6 + [True, True, True]
    assert turns[6].loss > 1.5 * turns[5].loss
    assert turns[6].reply.outcome == "applied"
    assert turns[6].loss > turns[7].loss > turns[8].loss > 1.5 * turns[5].loss
    assert client.uploads == 5


def test_it_joins_and_computes_the_loss_only_if_the_policy_reads_it(server, make_client):
    client = make_client()
    (turn,) = client.watch([make_data()], EverySamples(1000))
    assert (turn.loss, turn.decided, turn.reply, turn.pending, turn.error) == (None, False, None, False, "")
    assert [request.method for request in server.requests] == ["GET"]


@pytest.mark.parametrize("recent", [1, 2, 10])
def test_it_trains_on_recent_turns_since_the_last_upload(make_client, recent):
    trained = []
    client = make_client(local_epochs=1)
    train = client.train
    client.train = lambda data: (trained.append(list(data)), train(data))[1]
    stream = calm(7)
    list(client.watch(stream, EverySamples(3 * 24), recent))
    first, second = [stream[0:3], stream[3:6]]
    assert [len(data) for data in trained] == [min(recent, 3)] * 2
    for data, expected in zip(trained, (first, second), strict=True):
        for batch, turn in zip(data, expected[-recent:], strict=True):
            assert torch.equal(batch[0], turn[0])


def test_all_forms_of_data(make_client):
    batch = make_data()
    halves = [(batch[0][:12], batch[1][:12]), (batch[0][12:], batch[1][12:])]
    forms = [batch, list(batch), halves, iter(halves), TensorDataset(*batch)]
    turns = list(make_client().watch(forms, ALWAYS))
    assert [turn.samples for turn in turns] == [24] * 5
    assert all(turn.reply for turn in turns)


def test_the_loss_is_computed_in_evaluation_mode(make_client):
    """Batch norm and dropout are in evaluation mode, and samples in small batches count as much as others."""
    client = make_client()
    client.join()
    inputs, targets = make_data()
    uneven = [(inputs[:20], targets[:20]), (inputs[20:], targets[20:])]
    (turn,) = client.watch([uneven], LossRises())
    client.model.eval()
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(client.model(inputs), targets)
    assert turn.loss == pytest.approx(float(expected), rel=1e-6)


def test_nested_inputs(server, make_client):
    Pair = namedtuple("Pair", "left right")

    class Both(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, inputs):
            return self.net(inputs["halves"].left + inputs["halves"].right)

    net = make_model()
    server.layout = Layout.of(Both(net))
    inputs, targets = make_data()
    batch = {"halves": Pair(inputs / 2, inputs / 2), "names": ["a"] * 24}, targets
    (turn,) = make_client(model=Both(net)).watch([batch], AtFirst(LossRises()))
    assert (turn.samples, turn.reply.outcome) == (24, "applied")


def test_policies_get_time_and_chance(make_client):
    now = [1000.0]
    client = make_client(clock=lambda: now[0])
    follower = StreamFollower(client, EverySeconds(60))
    answers = []
    for seconds in (0, 30, 31, 59, 5):
        now[0] += seconds
        answers.append(follower.turn(make_data()).decided)
    assert answers == [False, False, True, False, True]
    decided = [turn.decided for turn in client.watch(calm(60), Sometimes(0.5))]
    assert 10 < sum(decided) < 50


def test_a_vetoed_upload_waits(make_client):
    battery = [True]
    client = make_client()
    follower = StreamFollower(client, Unless(EverySamples(40), lambda: battery[0]))
    assert not any(follower.turn(make_data()).decided for _ in range(5))
    battery[0] = False
    assert follower.turn(make_data()).decided


def test_diverged_training_is_reported_and_the_stream_continues(server, make_client):
    inputs, targets = make_data()
    bad = inputs * float("nan"), targets
    client = make_client()
    turns = list(client.watch([(inputs, targets), bad, (inputs, targets)], ALWAYS))
    assert [turn.decided for turn in turns] == [True] * 3
    assert [bool(turn.reply) for turn in turns] == [True, False, True]
    assert "nothing was uploaded" in turns[1].error
    broken = list(client.watch([bad, (inputs, targets)], LossRises()))
    assert "the loss on fresh data is nan" in broken[0].error
    assert not broken[0].decided
    assert broken[1].error == ""


def test_attempts_get_rarer_while_the_server_is_away(server, make_client):
    now = [0.0]
    network = BadNetwork(server.handle)
    client = make_client(network, clock=lambda: now[0], retry=Retry(attempts=1, first_wait=10))
    client.join()
    tries = []
    flush = client.flush
    client.flush = lambda attempts=None: (tries.append(now[0]), flush(attempts))[1]
    follower = StreamFollower(client, EverySamples(24))
    network.faults = ["refused"] * 1000
    first = follower.turn(make_data())
    assert (first.decided, first.reply, first.pending) == (True, None, True)
    follower.policy = EverySamples(10**6)
    tries.clear()
    for second in range(100):
        now[0] = float(second)
        assert follower.turn(make_data()).pending
    assert 3 <= len(tries) <= 6  # waits of 5 to 10, 10 to 20, 20 to 40 seconds, ...
    network.faults = []
    now[0] = 1000.0
    back = follower.turn(make_data())
    assert (back.decided, back.reply.outcome, back.pending) == (False, "applied", False)
    assert len(server.applied) == 1


def test_retry_after_is_respected(make_client):
    now, server = [0.0], ToyServer()
    client = make_client(BadNetwork(server.handle), clock=lambda: now[0])
    client.join()
    server.update = lambda *args: (_ for _ in ()).throw(wire.UnavailableError("full", 3600))
    follower = StreamFollower(client, EverySamples(24))
    follower.turn(make_data())
    follower.policy = EverySamples(10**6)
    follower.turn(make_data())
    asked = len(server.requests)
    now[0] = 3599.0
    follower.turn(make_data())
    assert len(server.requests) == asked
    now[0] = 3601.0
    follower.turn(make_data())
    assert len(server.requests) == asked + 1


POLICIES = (
    LossRises(factor=1.5),
    EverySamples(100),
    DriftDetected("PageHinkley", {"min_instances": 3, "threshold": 0.2}),
    Unless(EverySamples(60), lambda: False),
)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_policies_survive_a_restart(make_client, tmp_path, policy):
    stream = calm(5) + calm(8, turned=True)
    decisions = []
    for restarts in (False, True):
        transport, folder = eager().transport, tmp_path / str(restarts)
        client = make_client(transport, state_dir=folder, local_epochs=20)
        client.update(make_data(seed=99))
        decisions.append([])
        for data in stream:
            if restarts:
                client.close()
                policy_module._FED.clear()
                client = make_client(transport, state_dir=folder, local_epochs=20)
                client.join()
            decisions[-1] += [turn.decided for turn in client.watch([data], policy)]
    assert decisions[0] == decisions[1]
    assert any(decisions[0])


def test_each_policy_has_its_own_memory(make_client, tmp_path):
    client = make_client(state_dir=tmp_path)
    list(client.watch(calm(2), EverySamples(100)))
    assert client.recall(repr(EverySamples(100))) == (48.0,)
    assert client.recall(repr(EverySamples(200))) == ()
    assert client.recall(repr(LossRises())) == ()


def test_memory_of_a_user_policy_survives_a_restart(make_client, tmp_path):
    class Second:
        def decide(self, memory, observation):
            return ((), True) if memory else ((1.0,), False)

    for expected in (False, True, False):
        client = make_client(state_dir=tmp_path)
        assert [turn.decided for turn in client.watch([make_data()], Second())] == [expected]
        client.close()


def test_a_kill_between_the_decision_and_the_upload_decides_again(make_client, tmp_path, monkeypatch):
    client = make_client(state_dir=tmp_path)
    policy = EverySamples(48)
    follower = StreamFollower(client, policy)
    follower.turn(make_data())

    def killed(data):
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "train", killed)
    with pytest.raises(KeyboardInterrupt):
        follower.turn(make_data())
    client.close()
    again = make_client(state_dir=tmp_path)
    assert [turn.decided for turn in again.watch([make_data()], policy)] == [True]


class Answers:
    """A policy that returns a given answer from its second turn on."""

    def __init__(self, answer):
        self.answer = answer

    def decide(self, memory, observation):
        return self.answer if memory else ((1.0,), False)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (True, "Answers.decide returned True; expected \\(memory, bool"),
        (((1.0,), "yes"), "Answers.decide returned 'yes' as its decision; expected True"),
        (({"a": 1}, False), r"memory {'a': 1}; expected a tuple of numbers"),
        (((1, (2, 3)), False), r"memory \(1, \(2, 3\)\); expected a tuple of numbers"),
        (((torch.ones(()),), False), r"memory \(tensor\(1.\),\); expected a tuple of numbers"),
    ],
)
def test_a_policys_decision_is_checked_at_every_turn(make_client, tmp_path, answer, words):
    client = make_client(state_dir=tmp_path)
    with pytest.raises(ValueError, match=words):
        list(client.watch(calm(2), policy := Answers(answer)))
    assert (client.uploads, client.recall(StreamFollower(client, policy)._name)) == (0, (1.0,))


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (5, r"policy is 5; expected an object with decide\(memory, observation\)"),
        ("adwin", "policy is 'adwin'; expected an object"),
        (LossRises, r"policy is the class LossRises; expected an object .*: LossRises\(\.\.\.\)"),
    ],
)
def test_an_object_that_is_not_a_policy_is_refused(make_client, policy, words):
    with pytest.raises(ValueError, match=words):
        list(make_client().watch([make_data()], policy))


def test_recent_must_be_at_least_one(make_client):
    with pytest.raises(ValueError, match="recent is 0; expected a whole number, 1 or more"):
        list(make_client().watch([], ALWAYS, recent=0))
