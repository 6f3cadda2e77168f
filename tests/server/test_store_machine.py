"""The store against a plain list, with the power cut or a call failing before or after any step of any action."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from cdfl.server import queries
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreUnavailable
from cdfl.server.store_records import Retention
from cdfl.server.verify import verify
from cdfl.wire import encode_model

from .disk import AtOnce, Crash, Disk
from .toy import LAYOUT, SETTINGS, Toy, keep_sent, same_state, was_sent

pytestmark = pytest.mark.slow

CLIENTS = ("car-1", "car-2", "car-3")
FAULTS = ("crash before", "crash after", "error before", "error after")
NAMES = st.sampled_from(CLIENTS)
STEPS = ("write", "fsync", "link", "replace", "commit", "unlink")
WHEN = st.one_of(st.sampled_from(STEPS), st.integers(0, 9))  # at the next such step, or after so many
FAILING = st.one_of(st.none(), st.tuples(st.sampled_from(FAULTS), WHEN))


class StoreMachine(RuleBasedStateMachine):
    """What is known to be stored is in `self.states`, `self.uploads` and `self.sent`; a crash may add, never take."""

    new_url: Callable[[Path], str]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="cdfl-machine-"))
        self.patched = pytest.MonkeyPatch()
        self.disk = Disk(self.folder / "blobs", self.folder / "graveyard")
        self.disk.install(self.patched)
        self.url = type(self).new_url(self.folder)

    @initialize(keep_uploads=st.booleans(), measures=st.sampled_from(["plain", "relative"]))
    def begin(self, keep_uploads: bool, measures: str) -> None:
        self.settings = SETTINGS.replace(measures=measures)
        self.retention = Retention(keep_snapshots=2, keep_uploads=keep_uploads)
        self.open()
        self.states = [self.toy.state]  # by epoch
        self.uploads: list[tuple[str, bytes]] = []  # (client, reply) by epoch - 1
        self.sent: set[tuple[str, int]] = set()
        self.keys = 0

    def open(self) -> None:
        self.store = Store.open(self.url, self.folder / "blobs", self.retention)
        self.store._writers = self.store._cleaner = AtOnce()
        self.disk.watch(self.store)
        self.toy = Toy(self.store, settings=self.settings)

    # -- what a server does

    @rule(clients=st.lists(NAMES, min_size=1, max_size=3), lag=st.integers(0, 9), failing=FAILING)
    def upload(self, clients: list[str], lag: int, failing) -> None:
        state, group, done = self.toy.state, [], []
        base_epoch = max(0, state.epoch - lag)

        def commit() -> None:
            nonlocal state
            for client_id in clients:
                self.keys += 1
                state, entry, reply = self.toy.take(state, client_id, f"key-{self.keys}", base_epoch, group)
                group.append((entry, encode_model(reply.personal_model, LAYOUT)))
                done.append((state, (client_id, group[-1][1])))
            self.store.commit(group)

        acknowledged = self.attempt(commit, failing)
        if acknowledged or self.store.epoch > len(self.uploads):  # all of the group or nothing of it
            assert self.store.epoch == len(self.uploads) + len(clients)
            self.states += [after for after, _ in done]
            self.uploads += [upload for _, upload in done]
        self.toy.state = self.states[-1]

    @rule(failing=FAILING)
    def snapshot(self, failing) -> None:
        self.attempt(lambda: self.store.snapshot(self.toy.state), failing)

    @rule(client_id=NAMES, failing=FAILING)
    def send(self, client_id: str, failing) -> None:
        epoch, sent = self.toy.state.epoch, []
        if self.attempt(lambda: sent.append(self.toy.join(client_id)), failing):
            self.sent.add((client_id, epoch))
            base = keep_sent(self.store, client_id, epoch)
            assert self.store.blobs.read(base) == sent[0]
            self.store.drop(base)

    @rule(client_id=NAMES, failing=FAILING)
    def forget(self, client_id: str, failing) -> None:
        if not self.attempt(lambda: self.store.forget(client_id, self.toy.state), failing):
            self.store.forget(client_id, self.toy.state)  # whoever wants somebody forgotten asks again
        self.uploads = [("", b"") if name == client_id else (name, reply) for name, reply in self.uploads]
        self.sent = {(name, epoch) for name, epoch in self.sent if name != client_id}

    @rule(failing=FAILING)
    def rollback(self, failing) -> None:
        epoch = self.store.snapshots()[0].epoch
        if not self.attempt(lambda: self.store.rollback(epoch), failing):
            self.restart(failing=None)
        if self.store.epoch == epoch:
            del self.states[epoch + 1 :], self.uploads[epoch:]
            self.sent = {(name, sent) for name, sent in self.sent if sent <= epoch}
            self.toy.state = self.states[-1]

    @rule(failing=FAILING)
    def restart(self, failing) -> None:
        self.store.close()
        if not self.attempt(self.open, failing):
            self.open()

    @rule()
    def power_cut(self) -> None:
        self.store.database.close()
        self.disk.power_off()
        self.open()

    def attempt(self, action: Callable[[], object], failing) -> bool:
        """Do something that may fail: False, if it did. After a crash the store is opened anew."""
        if failing is not None:
            self.disk.arm(*failing)
        try:
            action()
        except StoreUnavailable:
            return False
        except Crash:
            self.power_cut()
            return False
        finally:
            self.disk.disarm()
        return True

    # -- what must be true at any time

    @invariant()
    def everything_acknowledged_is_there(self) -> None:
        store = self.store
        assert store.epoch == len(self.uploads)
        assert same_state(store.recover().state, self.states[-1])
        entries = store.entries(after=0)
        assert [entry.client_id for entry in entries] == [client_id for client_id, _ in self.uploads]
        for client_id in CLIENTS:
            epochs = [epoch for epoch, (name, _) in enumerate(self.uploads, start=1) if name == client_id]
            record = store.client(client_id)
            assert (record.uploads if record else 0) == len(epochs)
            assert all(was_sent(store, client_id, epoch) for epoch in epochs)
            if epochs and record.last.reply is not None:
                assert store.read_reply(record.last) == self.uploads[epochs[-1] - 1][1]
        assert all(was_sent(store, *sent) for sent in self.sent)
        with store.reading() as connection:
            assert queries.all_blobs(connection) <= set(store.blobs.names())  # nothing is missing

    def teardown(self) -> None:
        self.store.close()
        self.open()
        with self.store.reading() as connection:
            spoken_of = queries.all_blobs(connection)
        found = [name for name in self.store.blobs.names() if not name.startswith("store-")]
        assert sorted(found) == sorted(spoken_of)  # nothing is missing, nothing is left over
        assert verify(self.store).findings == []
        self.store.close()
        self.patched.undo()
        shutil.rmtree(self.folder)


def run(new_url: Callable[[Path], str], examples: int) -> None:
    machine = type("Machine", (StoreMachine,), {"new_url": staticmethod(new_url)})
    chosen = settings(
        max_examples=examples,
        stateful_step_count=15,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],  # add Phase.shrink to understand a failure: it takes minutes
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.parametrize("examples", [6, pytest.param(25, marks=pytest.mark.long)])
def test_on_sqlite(examples):
    run(lambda folder: f"sqlite:///{folder}/store.db", examples)


@pytest.mark.parametrize("examples", [3, pytest.param(8, marks=pytest.mark.long)])
def test_on_postgresql(postgres, examples):
    run(lambda folder: postgres.new_schema(), examples)
