"""The owner of the state, without a network: order, groups, and what happens when something fails."""

import asyncio
import hashlib
import threading

import pytest
import torch

from cdfl import wire
from cdfl.core import Upload, initial_state, join, server_update
from cdfl.server.engine import Engine, MeanTime
from cdfl.server.limits import Limits
from cdfl.server.maintenance import SNAPSHOT_SECONDS, Maintenance
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreLost, StoreUnavailable
from cdfl.server.store_records import Claim
from cdfl.server.submission import Submission
from cdfl.server.upload_losses import Evaluators
from cdfl.server.uploads import Uploads

from .live import wait_for
from .toy import LAYOUT, SETTINGS, TARGETS, evaluate, first_state, keep, same_state, stored_blobs, was_sent


class FakeEvaluator:
    """Evaluates uploads; a test can make it wait or fail."""

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
        store.begin(first_state(), LAYOUT, SETTINGS)
        yield store


@pytest.fixture
def fake():
    return FakeEvaluator()


@pytest.fixture
def make_engine(store, fake):
    made = []

    def make(settings=SETTINGS, **options):
        made.append(Engine(first_state(), LAYOUT, settings, store, Evaluators(fake, evaluate), **options))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def engine(make_engine):
    return make_engine()


def submission(store, client_id="car-7", cluster=0, base_epoch=0, key="key", vector=None):
    vector = TARGETS[cluster].expand(LAYOUT.size).clone() if vector is None else vector
    body = wire.encode_model(vector, LAYOUT)
    digest = hashlib.sha256(body).hexdigest()
    record = store.client(client_id, base_epoch)
    claim, sent = Claim(client_id, since=record and record.since), record and record.sent
    return Submission(client_id, key, base_epoch, digest, vector, keep(store, body), claim, sent=sent)


def model_of(answer):
    return wire.decode_model(b"".join(answer.body), LAYOUT)


class TestOrder:
    def test_what_waits_is_evaluated_together_and_committed_together(self, engine, store, fake):
        fake.open.clear()
        submissions = [submission(store, f"c{number}", number % 3, key=f"k{number}") for number in range(6)]
        answers = [engine.submit(each) for each in submissions]
        fake.open.set()
        epochs = [answer.result(10).head.epoch for answer in answers]
        assert epochs == [1, 2, 3, 4, 5, 6]
        assert fake.batches[0] + sum(fake.batches[1:]) == 6
        assert max(fake.batches) >= 5  # the first may have been evaluated alone
        assert [entry.client_id for entry in store.entries(0)] == [f"c{number}" for number in range(6)]

    def test_a_state_is_seen_only_when_it_is_durable(self, engine, store):
        seen = []
        commit = store.commit
        store.commit = lambda *group: (seen.append(engine.state.epoch), commit(*group))[1]
        answer = engine.submit(submission(store))
        answer.add_done_callback(lambda _: seen.append(store.newest_epoch()))
        answer.result(10)
        wait_for(lambda: len(seen) == 2)
        assert seen == [0, 1]
        assert engine.state.epoch == 1

    def test_joining_waits_for_nobody(self, engine, store, fake):
        fake.open.clear()
        engine.submit(submission(store))
        assert engine.join(Claim("other")).head.epoch == 0
        assert was_sent(store, "other", 0)
        fake.open.set()


class TestRefusals:
    def test_a_full_queue(self, make_engine, store, fake):
        engine = make_engine(limits=Limits(queue=2))
        fake.open.clear()
        answers = [engine.submit(submission(store, f"c{number}", key=f"k{number}")) for number in range(2)]
        with pytest.raises(wire.UnavailableError, match="2 uploads wait already") as refused:
            engine.submit(submission(store, "c3"))
        assert refused.value.retry_after == 2
        assert engine.is_full
        fake.open.set()
        for answer in answers:
            answer.result(10)
        wait_for(lambda: not engine.is_full)
        engine.submit(submission(store, "c3")).result(10)

    def test_large_models_make_the_queue_short(self):
        assert Limits(queue=64).queue_of(2_330_000) == 64
        assert Limits(queue=64).queue_of(10**9) == 2

    def test_slow_ones_as_well(self, engine, store, fake):
        """Where an upload takes ten seconds, a fourth one would wait for more than thirty."""
        fake.open.clear()
        engine._evaluating.add(10.0, num_uploads=1)
        for number in range(4):
            assert not engine.is_full
            engine.submit(submission(store, f"c{number}", key=f"k{number}"))
        with pytest.raises(wire.UnavailableError, match="4 uploads wait already") as refused:
            engine.submit(submission(store, "late"))
        assert refused.value.retry_after == 20
        fake.open.set()

    def test_the_mean_time_follows(self):
        mean = MeanTime()
        mean.add(8.0, num_uploads=4)
        assert mean.seconds == 2
        mean.add(1.0, num_uploads=1)
        assert mean.seconds == pytest.approx(0.9 * 2 + 0.1 * 1)
        mean.add(50.0, num_uploads=50)
        assert mean.seconds == pytest.approx(1, abs=0.01)

    def test_a_model_without_a_finite_loss_harms_nobody_else(self, engine, store, fake):
        before = engine.state
        fake.open.clear()
        huge = engine.submit(submission(store, "mad", vector=torch.full((LAYOUT.size,), 1e30)))
        fine = engine.submit(submission(store, "fine"))
        fake.open.set()
        with pytest.raises(wire.UnfitError, match="no finite loss"):
            huge.result(10)
        assert fine.result(10).head.epoch == before.epoch + 1
        assert len(stored_blobs(store, "upload")) == 1

    def test_an_evaluation_that_fails(self, engine, store, fake):
        fake.error = RuntimeError("out of memory")
        with pytest.raises(wire.UnavailableError, match="send it again"):
            engine.submit(submission(store)).result(10)
        fake.error = None
        assert engine.submit(submission(store)).result(10).head.epoch == 1

    def test_an_upload_that_makes_a_cluster_diverge(self, make_engine, store):
        engine = make_engine()
        engine.stepper.evaluate = lambda models, clusters: torch.full((len(clusters),), torch.nan)
        before = engine.state
        with pytest.raises(wire.UnfitError, match="expected finite numbers"):
            engine.submit(submission(store)).result(10)
        assert engine.state is before
        assert stored_blobs(store, "upload") == []

    def test_an_upload_that_is_too_old_is_not_even_evaluated(self, engine, store, fake):
        for number in range(SETTINGS.rates.max_staleness + 1):
            engine.submit(submission(store, base_epoch=number, key=f"k{number}")).result(10)
        evaluated = len(fake.batches)
        answer = engine.submit(submission(store, "late")).result(10)
        assert answer.head.outcome == "deprecated"
        assert len(fake.batches) == evaluated

    def test_harm(self, make_engine, store, fake):
        """It is answered with the model that its client was sent; nothing else changes, no other upload ages."""
        engine = make_engine(GUARDED)
        model, head = make_harmful(engine, store)
        before, known = engine.state, store.client("bad", head.epoch)
        answer = engine.submit(harmful(engine, store, head.epoch, model, "last")).result(10)
        assert (answer.head.outcome, answer.head.epoch, answer.head.rates) == ("rejected", head.epoch, (0, 0, 0))
        assert answer.head.mixture == head.mixture
        assert torch.equal(model_of(answer), model)
        assert engine.state is before
        kept = store.client("bad", head.epoch, "last")
        assert (kept.repeated.outcome, kept.repeated.upload) == ("rejected", None)
        assert (kept.was_sent, kept.sent, kept.uploads) == (True, known.sent, known.uploads + 1)
        assert engine.metrics.uploads.labels("rejected")._value.get() >= 1
        assert answer.head.detail.startswith("your uploads make models worse, compared with those of others")

    def test_an_upload_whose_loss_raises_harms_no_other(self, engine, store, fake):
        """Finite weights of 3e38 under a sigmoid and a loss that checks its input, for one."""
        fake.open.clear()
        good = [submission(store, f"c{number}", key=f"k{number}") for number in range(3)]
        bad = submission(store, "bad", vector=torch.full((LAYOUT.size,), 3e38), key="bad")
        of_each = fake.of_each

        def careful(vectors):
            if any(vector.abs().max() > 1e38 for vector in vectors):
                raise RuntimeError("all elements of input should be between 0 and 1")
            return of_each(vectors)

        fake.of_each = careful
        answers = [engine.submit(each) for each in (good[0], bad, *good[1:])]
        fake.open.set()
        assert [answer.result(10).head.outcome for answer in (answers[0], *answers[2:])] == ["applied"] * 3
        with pytest.raises(wire.UnfitError, match="loss of the model cannot be computed"):
            answers[1].result(10)
        assert stored_blobs(store, "upload") == sorted(each.upload for each in good)

    def test_a_step_whose_loss_raises_harms_no_other(self, make_engine, store):
        """The upload can be evaluated, but the cluster that it would lead to cannot."""

        def careful(models, clusters):
            if bool((models.abs() > 5).any()):
                raise RuntimeError("all elements of input should be between 0 and 1")
            return evaluate(models, clusters)

        engine = make_engine(SETTINGS.replace(base_rate=1.0))
        engine.stepper.evaluate = careful
        with pytest.raises(wire.UnfitError, match="expected finite numbers"):
            engine.submit(submission(store, vector=torch.full((LAYOUT.size,), 9.0), key="bad")).result(10)
        assert engine.submit(submission(store, "good")).result(10).head.outcome == "applied"

    def test_if_nothing_can_be_evaluated_it_is_not_the_upload_s_fault(self, engine, store, fake):
        fake.error = RuntimeError("out of memory")
        with pytest.raises(wire.UnavailableError, match="send it again"):
            engine.submit(submission(store)).result(10)


GUARDED = SETTINGS.replace(guard=True, max_staleness=None)


def harmful(engine, store, epoch, model, key):
    """An upload that goes away from where training would lead, in every parameter."""
    vector = model.clone()
    vector[: LAYOUT.num_parameters] += 2 * (model - 1)[: LAYOUT.num_parameters].sign()
    made = submission(store, "bad", base_epoch=epoch, key=key, vector=vector)
    made.client = store.client("bad").memory
    return made


def make_harmful(engine, store):
    """Let eight clients upload until something is usual, and one do harm until it is rejected; its model and head."""
    for number in range(24):
        name = f"good-{number % 8}"
        base = model_of(engine.join(Claim(name)))
        vector = base + 0.2 * (TARGETS[number % 3].expand(LAYOUT.size) - base) + 0.01 * number % 0.07
        made = submission(store, name, base_epoch=engine.state.epoch, key=f"good-{number}", vector=vector)
        made.client = store.client(name).memory
        engine.submit(made).result(10)
    answer = engine.join(Claim("bad"))
    for number in range(9):
        model, head = model_of(answer), answer.head
        answer = engine.submit(harmful(engine, store, head.epoch, model, f"bad-{number}")).result(10)
        if answer.head.outcome == "rejected":
            return model_of(answer), answer.head
    raise AssertionError("nothing was rejected")


class TestBases:
    """Steps along the change begin at what the client was sent, wherever the server still has that."""

    def check(self, engine, store, base_model):
        """The newest entry began at this model, and a restart finds the same clusters."""
        *earlier, last = store.entries(after=0)
        state = first_state()
        for entry in earlier:
            state, _ = store.replay(state, entry, SETTINGS, LAYOUT)
        assert torch.equal(store.read_model(last.base, LAYOUT), base_model)
        upload = Upload(store.read_model(last.upload, LAYOUT), last.base_epoch, base_model=base_model)
        state, _ = server_update(state, upload, SETTINGS, evaluate)
        assert torch.equal(engine.state.cluster_models, state.cluster_models)
        assert same_state(store.recover().state, engine.state)

    def test_a_newcomer_begins_at_the_average(self, engine, store):
        given = model_of(engine.join(Claim("car-7")))
        engine.submit(submission(store, "other", 2)).result(10)
        engine.submit(submission(store)).result(10)
        self.check(engine, store, given)

    def test_a_client_begins_at_its_last_reply(self, engine, store):
        reply = model_of(engine.submit(submission(store, key="1")).result(10))
        engine.submit(submission(store, "other", 2)).result(10)
        engine.submit(submission(store, base_epoch=1, key="2")).result(10)
        self.check(engine, store, reply)

    def test_what_is_gone_is_what_it_would_be_now(self, engine, store):
        for number in range(2):
            engine.submit(submission(store, key=str(number))).result(10)
        now = model_of(engine.join(Claim("other")))
        engine.submit(submission(store, key="2")).result(10)  # trained from what was superseded long ago
        self.check(engine, store, now)

    @pytest.mark.parametrize("harm", ["missing", "flipped", "cut"])
    def test_what_is_damaged_is_gone(self, engine, store, caplog, harm):
        engine.join(Claim("car-7"))
        engine.submit(submission(store, "other", 2)).result(10)
        path = store.blobs.folder / stored_blobs(store, "sent")[0]
        whole = path.read_bytes()
        if harm == "missing":
            path.unlink()
        else:
            path.write_bytes(whole[:-5] if harm == "cut" else whole[:-5] + bytes([whole[-5] ^ 64]) + whole[-4:])
        now = join(engine.state, SETTINGS).personal_model
        assert engine.submit(submission(store)).result(10).head.epoch == 2
        self.check(engine, store, now)
        assert ("the model car-7 was sent cannot be used" in caplog.text) == (harm != "missing")
        assert len(stored_blobs(store, "base")) == 2

    def test_a_store_that_is_away_is_not_gone(self, engine, store, monkeypatch):
        engine.join(Claim("car-7"))

        def away(sent):
            raise StoreUnavailable("disk away")

        with monkeypatch.context() as patched:
            patched.setattr(store, "keep_sent", away)
            with pytest.raises(wire.UnavailableError, match="send it again"):
                engine.submit(submission(store)).result(10)
        assert stored_blobs(store, "upload") == []
        engine.submit(submission(store)).result(10)
        assert engine.state.epoch == 1

    def test_whoever_moves_nothing_keeps_nothing(self, make_engine, store):
        engine = make_engine(GUARDED)
        model, head = make_harmful(engine, store)
        bases, sent = stored_blobs(store, "base"), stored_blobs(store, "sent")
        engine.submit(harmful(engine, store, head.epoch, model, "last")).result(10)
        assert store.entries(0)[-1].outcome == "rejected"
        assert (stored_blobs(store, "base"), stored_blobs(store, "sent")) == (bases, sent)

    def test_steps_towards_the_upload_keep_nothing(self, make_engine, store):
        engine = make_engine(SETTINGS.replace(cluster_step="towards"))
        engine.join(Claim("car-7"))
        engine.submit(submission(store)).result(10)
        assert stored_blobs(store, "base") == stored_blobs(store, "sent") == []
        assert engine.capacity == 512

    def test_large_models_count_twice(self, make_engine):
        limits = Limits(queue_bytes=100 * LAYOUT.size * 4)
        assert make_engine(limits=limits).capacity == 50
        assert make_engine(SETTINGS.replace(cluster_step="towards"), limits=limits).capacity == 100


class TestStoreTrouble:
    def test_a_store_that_is_away_and_comes_back(self, engine, store):
        before, commit = engine.state, store.commit

        def away(group, claims):
            for entry, _ in group:
                store.drop(entry.upload)
            raise StoreUnavailable("disk full")

        store.commit = away
        with pytest.raises(wire.UnavailableError, match="send it again") as refused:
            engine.submit(submission(store)).result(10)
        assert refused.value.retry_after == 2
        assert engine.state is before
        store.commit = commit
        assert engine.submit(submission(store)).result(10).head.epoch == 1
        assert engine.lost is None

    def test_a_store_that_is_lost_stops_the_server(self, make_engine, store):
        told = []
        engine = make_engine(on_loss=told.append)

        def lost(group, claims):
            raise StoreLost("another server has it")

        store.commit = lost
        with pytest.raises(wire.UnavailableError):
            engine.submit(submission(store)).result(10)
        wait_for(lambda: told)
        assert told == ["another server has it"]
        with pytest.raises(wire.UnavailableError, match="shutting down"):
            engine.submit(submission(store))


class TestEnd:
    def test_closing_finishes_the_queue_and_keeps_a_snapshot(self, make_engine, store, fake):
        engine = make_engine(snapshot_every=1000)
        fake.open.clear()
        answers = [engine.submit(submission(store, f"c{number}", key=f"k{number}")) for number in range(5)]
        closing = threading.Thread(target=engine.close)
        closing.start()
        wait_for(lambda: engine._closed)
        with pytest.raises(wire.UnavailableError, match="shutting down"):
            engine.submit(submission(store, "late"))
        fake.open.set()
        closing.join(10)
        assert [answer.result(0).head.epoch for answer in answers] == [1, 2, 3, 4, 5]
        assert store.snapshots()[-1].epoch == 5
        assert same_state(store.recover().state, engine.state)

    def test_closing_twice(self, engine):
        engine.close()
        engine.close()


class TestMaintenance:
    def test_snapshots_come_with_uploads(self, make_engine, store):
        engine = make_engine(snapshot_every=3)
        for number in range(7):
            engine.submit(submission(store, base_epoch=number, key=f"k{number}")).result(10)
        wait_for(lambda: store.snapshots()[-1].epoch >= 3)

    def test_a_quiet_server_takes_one_as_well(self, store):
        now = [0.0]
        maintenance = Maintenance(store, snapshot_every=100, clock=lambda: now[0])
        state = initial_state(first_state().cluster_models, evaluate, LAYOUT.num_parameters).replace(epoch=1)
        taken = []
        store.snapshot = taken.append
        maintenance.run_due(state)
        assert taken == []
        now[0] = SNAPSHOT_SECONDS
        maintenance.run_due(state)
        maintenance.finish(state)
        assert taken == [state]

    def test_clients_are_forgotten_while_the_server_runs(self, engine, store):
        engine.submit(submission(store)).result(10)
        store.ask_to_forget("car-7")
        wait_for(lambda: store.client("car-7") is None)
        assert store.entries(0)[0].client_id == ""
        engine.submit(submission(store, "other", base_epoch=0)).result(10)

    def test_a_snapshot_that_fails_is_tried_again(self, make_engine, store, monkeypatch):
        monkeypatch.setattr("cdfl.server.maintenance.RETRY_SNAPSHOT_SECONDS", 0.1)
        engine = make_engine(snapshot_every=1)
        snapshot = store.snapshot

        def failing(state):
            store.snapshot = snapshot
            raise StoreUnavailable("disk full")

        store.snapshot = failing
        engine.submit(submission(store)).result(10)
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

    class Watched(FakeEvaluator):
        def of_each(self, vectors):
            seen["uploads"].add(torch.get_num_threads())
            return super().of_each(vectors)

    def evaluate_clusters(models, clusters):
        seen["clusters"].add(torch.get_num_threads())
        return evaluate(models, clusters)

    def update(*args, **options):
        seen["server_update"].add(torch.get_num_threads())
        return server_update(*args, **options)

    monkeypatch.setattr("cdfl.server.stepper.server_update", update)
    engine = Engine(first_state(), LAYOUT, SETTINGS, store, Evaluators(Watched(), evaluate_clusters))
    for number in range(2):
        engine.submit(submission(store, key=str(number))).result(10)
    engine.close()
    assert seen == {"uploads": {3}, "clusters": {3}, "server_update": {1}}


def test_uploads_are_decoded_with_one_thread(engine, three_threads):
    uploads = Uploads(engine)
    assert asyncio.run(uploads.in_thread(torch.get_num_threads)) == 1
    assert torch.get_num_threads() == 3
