"""The owner of the state, without a network: order, groups, and what happens when something fails."""

import hashlib
import threading
import time

import pytest
import torch

from cdfl import wire
from cdfl.core import Upload, initial_state, join, server_update
from cdfl.server.chores import SNAPSHOT_SECONDS, Chores
from cdfl.server.journal import StoreLost, StoreUnavailable
from cdfl.server.limits import Limits, Pace
from cdfl.server.replay import replay
from cdfl.server.session import Session
from cdfl.server.store import Store
from cdfl.server.threads import pool
from cdfl.server.uploads import Submission

from .live import wait_for
from .toy import HYPERPARAMS, LAYOUT, TARGETS, evaluate, first_state, same_state, spooled, stored_blobs


class Eyes:
    """Looks at uploads, and can be told to wait or to fail."""

    def __init__(self):
        self.open = threading.Event()
        self.open.set()
        self.batches = []
        self.error = None

    def __call__(self, models, clusters):
        return evaluate(models, clusters)

    def of_each(self, vectors):
        self.open.wait(10)
        self.batches.append(len(vectors))
        if self.error is not None:
            raise self.error
        return torch.stack([evaluate(vector.expand(3, -1), torch.arange(3)) for vector in vectors]).double()


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path) as store:
        store.begin(first_state(), LAYOUT, HYPERPARAMS)
        yield store


@pytest.fixture
def eyes():
    return Eyes()


@pytest.fixture
def make_session(store, eyes):
    made = []

    def make(settings=HYPERPARAMS, **options):
        made.append(Session(first_state(), LAYOUT, settings, store, eyes, evaluate, **options))
        return made[-1]

    yield make
    for session in made:
        session.close()


@pytest.fixture
def session(make_session):
    return make_session()


def submission(store, client_id="car-7", cluster=0, base_epoch=0, key="key", vector=None):
    vector = TARGETS[cluster].expand(LAYOUT.size).clone() if vector is None else vector
    body = wire.encode_model(vector, LAYOUT)
    digest = hashlib.sha256(body).hexdigest()
    return Submission(client_id, key, base_epoch, digest, vector, store.keep(spooled(store, body)), None)


class TestOrder:
    def test_what_waits_is_looked_at_together_and_committed_together(self, session, store, eyes):
        eyes.open.clear()
        submissions = [submission(store, f"c{number}", number % 3, key=f"k{number}") for number in range(6)]
        answers = [session.submit(each) for each in submissions]
        eyes.open.set()
        epochs = [answer.result(10).head.epoch for answer in answers]
        assert epochs == [1, 2, 3, 4, 5, 6]
        assert eyes.batches[0] + sum(eyes.batches[1:]) == 6
        assert max(eyes.batches) >= 5  # the first may have been looked at alone
        assert [entry.client_id for entry in store.entries(0)] == [f"c{number}" for number in range(6)]

    def test_a_state_is_seen_only_when_it_is_durable(self, session, store):
        seen = []
        commit = store.commit
        store.commit = lambda group: (seen.append(session.state.epoch), commit(group))
        answer = session.submit(submission(store))
        answer.add_done_callback(lambda _: seen.append(store.newest_epoch()))
        answer.result(10)
        wait_for(lambda: len(seen) == 2)
        assert seen == [0, 1]
        assert session.state.epoch == 1

    def test_joining_waits_for_nobody(self, session, store, eyes):
        eyes.open.clear()
        session.submit(submission(store))
        assert session.join("other", None).head.epoch == 0
        assert store.was_given("other", 0)
        eyes.open.set()


class TestRefusals:
    def test_a_full_queue(self, make_session, store, eyes):
        session = make_session(limits=Limits(queue=2))
        eyes.open.clear()
        answers = [session.submit(submission(store, f"c{number}", key=f"k{number}")) for number in range(2)]
        with pytest.raises(wire.UnavailableError, match="2 uploads wait already") as refused:
            session.submit(submission(store, "c3"))
        assert refused.value.retry_after == 2
        assert session.is_full
        eyes.open.set()
        for answer in answers:
            answer.result(10)
        wait_for(lambda: not session.is_full)
        session.submit(submission(store, "c3")).result(10)

    def test_large_models_make_the_queue_short(self):
        assert Limits(queue=64).queue_of(2_330_000) == 64
        assert Limits(queue=64).queue_of(10**9) == 2

    def test_slow_ones_as_well(self, session, store, eyes):
        """Where an upload takes ten seconds, a fourth one would wait for more than thirty."""
        eyes.open.clear()
        session._looking.saw(10.0, uploads=1)
        for number in range(4):
            assert not session.is_full
            session.submit(submission(store, f"c{number}", key=f"k{number}"))
        with pytest.raises(wire.UnavailableError, match="4 uploads wait already") as refused:
            session.submit(submission(store, "late"))
        assert refused.value.retry_after == 20
        eyes.open.set()

    def test_the_pace_follows(self):
        pace = Pace()
        pace.saw(8.0, uploads=4)
        assert pace.seconds == 2
        pace.saw(1.0, uploads=1)
        assert pace.seconds == pytest.approx(0.9 * 2 + 0.1 * 1)
        pace.saw(50.0, uploads=50)
        assert pace.seconds == pytest.approx(1, abs=0.01)

    def test_a_model_without_a_finite_loss_harms_nobody_else(self, session, store, eyes):
        before = session.state
        eyes.open.clear()
        huge = session.submit(submission(store, "mad", vector=torch.full((LAYOUT.size,), 1e30)))
        fine = session.submit(submission(store, "fine"))
        eyes.open.set()
        with pytest.raises(wire.UnfitError, match="no finite loss"):
            huge.result(10)
        assert fine.result(10).head.epoch == before.epoch + 1
        assert len(stored_blobs(store, "upload")) == 1

    def test_a_look_that_fails(self, session, store, eyes):
        eyes.error = RuntimeError("out of memory")
        with pytest.raises(wire.UnavailableError, match="send it again"):
            session.submit(submission(store)).result(10)
        eyes.error = None
        assert session.submit(submission(store)).result(10).head.epoch == 1

    def test_an_upload_that_makes_a_cluster_diverge(self, make_session, store):
        session = make_session()
        session._look_at_clusters = lambda models, clusters: torch.full((len(clusters),), torch.nan)
        before = session.state
        with pytest.raises(wire.UnfitError, match="expected finite numbers"):
            session.submit(submission(store)).result(10)
        assert session.state is before
        assert stored_blobs(store, "upload") == []

    def test_an_upload_that_is_too_old_is_not_even_looked_at(self, session, store, eyes):
        for number in range(HYPERPARAMS.max_staleness + 1):
            session.submit(submission(store, base_epoch=number, key=f"k{number}")).result(10)
        looks = len(eyes.batches)
        answer = session.submit(submission(store, "late")).result(10)
        assert answer.head.outcome == "deprecated"
        assert len(eyes.batches) == looks

    def test_harm(self, make_session, store):
        session = make_session(HYPERPARAMS.replace(max_harm=2.0))
        before = session.state
        vector = TARGETS[0].expand(LAYOUT.size) - 50.0
        answer = session.submit(submission(store, vector=vector)).result(10)
        assert answer.head.outcome == "rejected"
        assert answer.head.mixture[0] == max(answer.head.mixture)  # answered with its estimate all the same
        assert torch.equal(session.state.cluster_models, before.cluster_models)
        entry = store.entries(0)[0]
        assert (entry.outcome, entry.upload, entry.mixture) == ("rejected", None, answer.head.mixture)
        assert entry.harm > 1000
        assert session.metrics.uploads.labels("rejected")._value.get() == 1
        assert answer.head.detail.startswith("the upload is answered, but it moved no cluster: it is absurdly far")

    def test_an_upload_farther_away_than_numbers_reach_is_written_down_without_distances(
        self, make_session, store, eyes
    ):
        session = make_session(HYPERPARAMS.replace(max_harm=2.0, measures="relative"))
        eyes.of_each = lambda vectors: torch.ones(len(vectors), 3, dtype=torch.float64)  # its losses are fine
        answer = session.submit(submission(store, vector=torch.full((LAYOUT.size,), 1e30))).result(10)
        assert answer.head.outcome == "rejected"
        session.submit(submission(store, base_epoch=1, key="k2")).result(10)
        far, near = store.entries(0)
        assert (far.losses, far.distances) == ((1.0, 1.0, 1.0), None)
        assert len(near.distances) == 3


class TestBases:
    """Steps along the change begin at what the client was sent, wherever the server still has that."""

    def check(self, session, store, base_model):
        """The newest entry began at this model, and a restart finds the same clusters."""
        *earlier, last = store.entries(after=0)
        state = first_state()
        for entry in earlier:
            model, base = store.read_upload(entry, LAYOUT), store.read_base(entry, LAYOUT)
            state, _ = replay(state, entry, model, HYPERPARAMS, base_model=base)
        assert torch.equal(store.read_base(last, LAYOUT), base_model)
        upload = Upload(store.read_upload(last, LAYOUT), last.base_epoch, base_model=base_model)
        state, _ = server_update(state, upload, HYPERPARAMS, evaluate)
        assert torch.equal(session.state.cluster_models, state.cluster_models)
        assert same_state(store.recover().state, session.state)

    def test_a_newcomer_begins_at_the_average(self, session, store):
        given = session.join("car-7", None).personal_model
        session.submit(submission(store, "other", 2)).result(10)
        session.submit(submission(store)).result(10)
        self.check(session, store, given)

    def test_a_client_begins_at_its_last_reply(self, session, store):
        reply = session.submit(submission(store, key="1")).result(10).personal_model
        session.submit(submission(store, "other", 2)).result(10)
        session.submit(submission(store, base_epoch=1, key="2")).result(10)
        self.check(session, store, reply)

    def test_what_is_gone_is_what_it_would_be_now(self, session, store):
        for number in range(2):
            session.submit(submission(store, key=str(number))).result(10)
        now = session.join("other", None).personal_model
        session.submit(submission(store, key="2")).result(10)  # trained from what was superseded long ago
        self.check(session, store, now)

    @pytest.mark.parametrize("harm", ["missing", "flipped", "cut"])
    def test_what_is_damaged_is_gone(self, session, store, caplog, harm):
        session.join("car-7", None)
        session.submit(submission(store, "other", 2)).result(10)
        path = store.blobs.folder / stored_blobs(store, "given")[0]
        whole = path.read_bytes()
        if harm == "missing":
            path.unlink()
        else:
            path.write_bytes(whole[:-5] if harm == "cut" else whole[:-5] + bytes([whole[-5] ^ 64]) + whole[-4:])
        now = join(session.state, HYPERPARAMS).personal_model
        assert session.submit(submission(store)).result(10).head.epoch == 2
        self.check(session, store, now)
        assert ("the model car-7 was sent cannot be used" in caplog.text) == (harm != "missing")
        assert len(stored_blobs(store, "base")) == 2

    def test_a_store_that_is_away_is_not_gone(self, session, store, monkeypatch):
        session.join("car-7", None)

        def away(client_id, epoch):
            raise StoreUnavailable("disk away")

        with monkeypatch.context() as patched:
            patched.setattr(store, "keep_sent", away)
            with pytest.raises(wire.UnavailableError, match="send it again"):
                session.submit(submission(store)).result(10)
        assert stored_blobs(store, "upload") == []
        session.submit(submission(store)).result(10)
        assert session.state.epoch == 1

    def test_whoever_moves_nothing_keeps_nothing(self, make_session, store):
        session = make_session(HYPERPARAMS.replace(max_harm=2.0))
        session.join("car-7", None)
        session.submit(submission(store, vector=TARGETS[0].expand(LAYOUT.size) - 50.0)).result(10)
        assert store.entries(0)[0].outcome == "rejected"
        assert stored_blobs(store, "base") == stored_blobs(store, "given") == []

    def test_steps_towards_the_upload_keep_nothing(self, make_session, store):
        session = make_session(HYPERPARAMS.replace(cluster_step="towards"))
        session.join("car-7", None)
        session.submit(submission(store)).result(10)
        assert stored_blobs(store, "base") == stored_blobs(store, "given") == []
        assert session.capacity == 512

    def test_large_models_count_twice(self, make_session):
        limits = Limits(queue_bytes=100 * LAYOUT.size * 4)
        assert make_session(limits=limits).capacity == 50
        assert make_session(HYPERPARAMS.replace(cluster_step="towards"), limits=limits).capacity == 100


class TestStoreTrouble:
    def test_a_store_that_is_away_and_comes_back(self, session, store):
        before, commit = session.state, store.commit

        def away(group):
            for entry, _ in group:
                store.drop(entry.upload)
            raise StoreUnavailable("disk full")

        store.commit = away
        with pytest.raises(wire.UnavailableError, match="send it again") as refused:
            session.submit(submission(store)).result(10)
        assert refused.value.retry_after == 2
        assert session.state is before
        store.commit = commit
        assert session.submit(submission(store)).result(10).head.epoch == 1
        assert session.lost is None

    def test_a_store_that_is_lost_stops_the_server(self, make_session, store):
        told = []
        session = make_session(on_loss=told.append)

        def lost(group):
            raise StoreLost("another server has it")

        store.commit = lost
        with pytest.raises(wire.UnavailableError):
            session.submit(submission(store)).result(10)
        wait_for(lambda: told)
        assert told == ["another server has it"]
        with pytest.raises(wire.UnavailableError, match="shutting down"):
            session.submit(submission(store))


class TestEnd:
    def test_closing_finishes_the_queue_and_keeps_a_snapshot(self, make_session, store, eyes):
        session = make_session(snapshot_every=1000)
        eyes.open.clear()
        answers = [session.submit(submission(store, f"c{number}", key=f"k{number}")) for number in range(5)]
        closing = threading.Thread(target=session.close)
        closing.start()
        wait_for(lambda: session._closed)
        with pytest.raises(wire.UnavailableError, match="shutting down"):
            session.submit(submission(store, "late"))
        eyes.open.set()
        closing.join(10)
        assert [answer.result(0).head.epoch for answer in answers] == [1, 2, 3, 4, 5]
        assert store.snapshots()[-1].epoch == 5
        assert same_state(store.recover().state, session.state)

    def test_closing_twice(self, session):
        session.close()
        session.close()


class TestChores:
    def test_snapshots_come_with_uploads(self, make_session, store):
        session = make_session(snapshot_every=3)
        for number in range(7):
            session.submit(submission(store, base_epoch=number, key=f"k{number}")).result(10)
        wait_for(lambda: store.snapshots()[-1].epoch >= 3)

    def test_a_quiet_server_takes_one_as_well(self, store):
        now = [0.0]
        chores = Chores(store, snapshot_every=100, clock=lambda: now[0])
        state = initial_state(first_state().cluster_models, evaluate, LAYOUT.num_parameters).replace(epoch=1)
        taken = []
        store.snapshot = taken.append
        chores.look(state)
        assert taken == []
        now[0] = SNAPSHOT_SECONDS
        chores.look(state)
        chores.finish(state)
        assert taken == [state]

    def test_clients_are_forgotten_while_the_server_runs(self, session, store):
        session.submit(submission(store)).result(10)
        store.ask_to_forget("car-7")
        wait_for(lambda: store.client("car-7") is None)
        assert store.entries(0)[0].client_id == ""
        session.submit(submission(store, "other", base_epoch=0)).result(10)

    def test_a_snapshot_that_fails_is_tried_again(self, make_session, store, monkeypatch):
        monkeypatch.setattr("cdfl.server.chores.AGAIN_SECONDS", 0.1)
        session = make_session(snapshot_every=1)
        snapshot = store.snapshot

        def failing(state):
            store.snapshot = snapshot
            raise StoreUnavailable("disk full")

        store.snapshot = failing
        session.submit(submission(store)).result(10)
        wait_for(lambda: store.snapshots()[-1].epoch == 1)


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_evaluation_gets_all_threads_and_nothing_else_does(store, three_threads, monkeypatch):
    """Else its sums would have other bits than in a simulation, and vectors would be waited for more than worked on."""
    seen = {"uploads": set(), "clusters": set(), "server_update": set()}

    class Watched(Eyes):
        def of_each(self, vectors):
            seen["uploads"].add(torch.get_num_threads())
            return super().of_each(vectors)

    def look(models, clusters):
        seen["clusters"].add(torch.get_num_threads())
        return evaluate(models, clusters)

    def update(*args):
        seen["server_update"].add(torch.get_num_threads())
        return server_update(*args)

    monkeypatch.setattr("cdfl.server.session.server_update", update)
    session = Session(first_state(), LAYOUT, HYPERPARAMS, store, Watched(), look)
    for number in range(2):
        session.submit(submission(store, key=str(number))).result(10)
    session.close()
    assert seen == {"uploads": {3}, "clusters": {3}, "server_update": {1}}


def test_pools_use_torch_alone(three_threads):
    with pool(1, "test") as threads:
        assert threads.submit(torch.get_num_threads).result() == 1
    assert torch.get_num_threads() == 3


def test_chores_are_done_at_leisure(store):
    session = Session(first_state(), LAYOUT, HYPERPARAMS, store, Eyes(), evaluate)
    begun = time.monotonic()
    session.close()
    assert time.monotonic() - begun < 5
