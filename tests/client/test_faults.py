"""Each update is applied exactly once, whatever the network does and whenever the process is killed."""

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdfl import wire
from cdfl.client import Client, ServerAwayError
from cdfl.client import saved_state as state_module
from cdfl.core import flatten

from .faults import FAULTS, BadNetwork, Killed
from .toy import ToyServer, make_data, make_model

pytestmark = pytest.mark.slow

LASTING = [fault for fault in FAULTS if fault not in ("fine", "twice")]


def connect(transport, folder=None):
    return Client(
        "http://server.test",
        make_model(),
        "car-7",
        transport=transport,
        state_dir=folder,
        local_epochs=1,
        sleep=lambda seconds: None,
    )


def live(client):
    client.join()
    client.update(make_data(seed=0))
    client.update(make_data(seed=1))


def holds_the_last_reply(client, server):
    return torch.equal(flatten(client.model), server.last["car-7"][2].personal_model)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", range(4))
def test_a_fault_at_each_request(fault, at):
    server = ToyServer()
    client = connect(BadNetwork(server.handle, ["fine"] * at + [fault]))
    client.join()
    replies = [client.update(make_data(seed=number)) for number in range(2)]
    assert [reply.epoch for reply in replies] == [1, 2]
    assert len(set(server.applied)) == len(server.applied) == 2
    assert holds_the_last_reply(client, server)


@pytest.mark.parametrize("faults", list(itertools.product(LASTING, repeat=2)), ids=" then ".join)
def test_retries_use_one_key(faults):
    server = ToyServer()
    client = connect(BadNetwork(server.handle, ["fine", *faults, *faults]))  # five attempts in all
    client.join()
    assert client.update(make_data()).outcome == "applied"
    keys = {request.headers[wire.KEY] for request in server.requests if request.method == "POST"}
    bodies = {request.content for request in server.requests if request.method == "POST"}
    assert len(keys) == len(bodies) == len(server.applied) == 1


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    faults=st.lists(st.sampled_from(FAULTS), max_size=40),
    steps=st.lists(st.sampled_from(["join", "update", "flush"]), min_size=1, max_size=8),
    restarts=st.sets(st.integers(0, 7)),
)
def test_any_faults_in_any_order(tmp_path_factory, faults, steps, restarts):
    server, folder = ToyServer(), tmp_path_factory.mktemp("state")
    network = BadNetwork(server.handle, faults)
    client = connect(network, folder)
    kept = []  # keys of uploads that were not replaced by a later one
    for number, step in enumerate(steps):
        if number in restarts:
            client.close()
            client = connect(network, folder)
        try:
            if step == "update":
                waiting, reply = client._state.pending, client.update(make_data(seed=number))
                if client.pending and waiting and reply is None and kept[-1:] == [waiting.key]:
                    kept.pop()  # replaced
                kept.append(client._state.pending.key if client.pending else None)
            else:
                getattr(client, step)()
        except ServerAwayError:
            pass
    network.faults.clear()
    client.flush()
    client.close()
    assert not client.pending
    counted = [key for _, key in server.applied]
    assert len(counted) == len(set(counted))  # none twice
    assert {key for key in kept if key} <= set(counted)  # none lost
    assert len(counted) >= len(kept)


@pytest.mark.parametrize("fault", ["refused", "reply lost", "reply cut"])
@pytest.mark.parametrize("at", range(3))
def test_kill_at_each_request(tmp_path, fault, at):
    server = ToyServer()
    client = connect(BadNetwork(server.handle, ["fine"] * at + [fault], kill=True), tmp_path)
    with pytest.raises(Killed):
        live(client)
    made = client.uploads
    client.close()  # as the system does for a process that ends
    again = connect(server.transport, tmp_path)
    assert again.pending == (made > 0)
    again.join()
    assert again.uploads == made == len(server.applied) == len(set(server.applied))
    assert not made or holds_the_last_reply(again, server)
    again.close()


def killing(write, at, when):
    """A `_write` that ends the process at one of its calls."""
    calls = itertools.count()

    def write_or_die(file, data):
        dies = next(calls) == at
        if dies and when == "before":
            raise Killed
        if dies and when == "half-way":
            file.with_suffix(".new").write_bytes(data[: len(data) // 2])
            raise Killed
        write(file, data)
        if dies:
            raise Killed

    return write_or_die


@pytest.mark.parametrize("when", ["before", "half-way", "after"])
@pytest.mark.parametrize("at", range(10))
def test_kill_at_each_write(tmp_path, monkeypatch, at, when):
    server = ToyServer()
    client = connect(server.transport, tmp_path)
    monkeypatch.setattr(state_module, "_write", killing(state_module._write, at, when))
    with pytest.raises(Killed):
        live(client)
    monkeypatch.undo()
    client.close()
    again = connect(server.transport, tmp_path)
    again.join()
    assert again.uploads == len(server.applied) == len(set(server.applied))
    assert not server.applied or holds_the_last_reply(again, server)
    assert again.update(make_data(seed=2)).outcome == "applied"
    again.close()
    assert not list(tmp_path.glob("*.new"))


def test_ten_writes_are_all_writes(tmp_path, monkeypatch):
    written = []
    write = state_module._write
    monkeypatch.setattr(state_module, "_write", lambda file, data: (written.append(file), write(file, data)))
    client = connect(ToyServer().transport, tmp_path)
    live(client)
    client.close()
    # model and state of the join; then, for each update, local model and state, personal model and state
    assert len(written) == 2 + 2 * 4
