"""After an attack that got through, a rollback finds the last snapshot from before it."""

import time

import pytest
import torch
from typer.testing import CliRunner

from cdfl.cli import app
from cdfl.core import Settings
from cdfl.server.store import Store
from cdfl.server.store_records import Retention

from .toy import Toy, same_state

GUARDED = Settings(guard=True)
PAUSE = 300.0  # seconds between snapshots


@pytest.fixture
def clock(monkeypatch):
    """The time of the store, which the test moves."""
    seconds = [time.time()]
    monkeypatch.setattr(time, "time", lambda: seconds[0])
    return seconds


class Served:
    """A server that takes a snapshot every five minutes; keeps the states of all of them."""

    def __init__(self, store, clock):
        self.toy, self.clock = Toy(store, settings=GUARDED), clock
        self.states = {0: self.toy.state}

    def run(self, turns, names, away=0.0):
        """Turns of one upload of each client and a snapshot."""
        for _ in range(turns):
            for name in names:
                self.toy.upload(name, away=away)
            self.clock[0] += PAUSE
            self.toy.snapshot()
            self.states[self.toy.state.epoch] = self.toy.state


def harm(state):
    return float((state.cluster_losses - 0.1).mean())


@pytest.mark.parametrize("minutes", [10, 60])
def test_the_last_healthy_snapshot_is_found(tmp_path, clock, minutes):
    """All of the newest ones are poisoned; older ones are kept by age, and the best one of all."""
    with Store.open(tmp_path / "store") as store:
        served = Served(store, clock)
        served.run(24, [f"car-{number}" for number in range(6)])
        before = served.toy.state
        served.toy.settings = GUARDED.replace(guard=False)  # this attack gets through
        served.run(int(minutes * 60 / PAUSE), ["bad"] * 3, away=9.0)
        assert harm(served.toy.state) > 20 * harm(before)
        epochs = [snapshot.epoch for snapshot in store.snapshots()]
        poisoned = [epoch for epoch in epochs if epoch > before.epoch]
        assert len(poisoned) >= Retention().keep_snapshots
        clean = [epoch for epoch in epochs if epoch <= before.epoch]
        last = store.healthy_epoch()  # not always the newest clean one: its losses may have risen by chance
        assert last in clean
        assert not set(store.healthy_epochs()) & set(poisoned)
    result = CliRunner().invoke(app, ["rollback", "--healthy", "--yes", "--store", str(tmp_path / "store")])
    assert result.exit_code == 0, result.output
    with Store.open(tmp_path / "store") as store:
        assert same_state(store.recover().state, served.states[last])
        again = Served(store, clock)
        again.run(2, [f"car-{number}" for number in range(6)])
        assert bool((again.toy.state.cluster_losses < 2 * served.states[last].cluster_losses).all())


def test_a_snapshot_that_cannot_be_read_is_passed_over(tmp_path, clock):
    with Store.open(tmp_path / "store") as store:
        served = Served(store, clock)
        served.run(24, [f"car-{number}" for number in range(6)])
        healthy = store.healthy_epochs()
        assert store.healthy_epoch() == healthy[-1]
        store.blobs.delete(store.snapshot_at(healthy[-1]).models[:1])
        assert store.healthy_epoch() == healthy[-2]
        assert torch.equal(
            store.load_state(store.snapshot_at(healthy[-2]), store.layout()).cluster_losses,
            served.states[healthy[-2]].cluster_losses,
        )
