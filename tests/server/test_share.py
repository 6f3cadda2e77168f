"""Uploads that the guard's share refuses when they are evaluated, and admits when their turn comes."""

import pytest

from cdfl.core.guard import OFTEN
from cdfl.server.engine import Engine
from cdfl.server.store import Store
from cdfl.server.store_records import Retention
from cdfl.server.upload_losses import Evaluators
from cdfl.server.verify import verify

from .guarded import GUARDED, Clients, Gate
from .toy import LAYOUT, evaluate, first_state


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path, retention=Retention(keep_snapshots=100, keep_uploads=True)) as store:
        store.begin(first_state(), LAYOUT, GUARDED)
        yield store


@pytest.mark.parametrize("length", [0.2, 5.0], ids=["as usual", "bounded"])
def test_what_is_admitted_after_all_is_verified(store, length):
    gate = Gate()
    engine = Engine(first_state(), LAYOUT, GUARDED, store, Evaluators(gate, evaluate))
    try:
        clients = Clients(engine, store)
        others = [f"car-{number}" for number in range(12)]
        for _ in range(3):
            for name in others:
                clients.upload(name)
        heads = [clients.upload("fast")]
        while heads[-1].outcome == "applied":
            heads.append(clients.upload("fast"))
        assert OFTEN in heads[-1].detail
        gate.open.clear()
        waiting = [clients.begin(name)[1] for name in others]  # each earns the fast client a part of an upload
        late, answer = clients.begin("fast", length)
        gate.open.set()
        for each in waiting:
            each.result(10)
        assert answer.result(10).head.outcome == "applied"
        assert not any(vector is late.local_model for vector in gate.evaluated)  # it was skipped
        clients.upload(others[0])
        store.snapshot(engine.state)
    finally:
        engine.close()
    found = verify(store)
    assert found.findings == []
    assert (found.last, found.snapshots) == (engine.state.epoch, 1)
