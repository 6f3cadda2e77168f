"""The simulator and the service are the same server: bit for bit."""

import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch

from cdfl import wire
from cdfl.algorithms.cdfl import CDFL
from cdfl.client import Client
from cdfl.core import Layout
from cdfl.data import Rotations, Sizes, Texts
from cdfl.problems import Problem, ProblemInstance
from cdfl.run_events import Uploaded, only
from cdfl.scenarios import load_scenario
from cdfl.server.store import Store
from cdfl.server.store_records import Retention
from cdfl.server.verify import verify
from cdfl.sim.engine_choice import make_engines
from cdfl.sim.reference_simulation import simulate
from cdfl.sim.runner import configure, run_events
from cdfl.sim.scenario_instance import ScenarioInstance
from cdfl.sim.simulation import Simulation

from .live import LAYOUT, Live, decoded, near, tiny_instance
from .toy import same_state

pytestmark = pytest.mark.slow

KEEP_ALL = Retention(keep_snapshots=100, keep_uploads=True)
DIGITS = replace(load_scenario("digits-4"), sizes=Sizes(low=10, high=30, test=20, pretraining=40, proxy=40))


class Recording(CDFL):
    """CDFL that remembers what went in and out."""

    def __init__(self, settings):
        super().__init__(settings)
        self.start, self.end = None, None
        self.joins, self.exchanges = {}, []

    def initial(self, *args):
        self.start = super().initial(*args)
        return self.start

    def join(self, state):
        self.joins[state.epoch] = super().join(state)
        return self.joins[state.epoch]

    def server_update(self, state, upload, assignment, evaluate):
        self.end, reply = super().server_update(state, upload, assignment, evaluate)
        self.exchanges.append((upload, reply))
        return self.end, reply


@pytest.mark.parametrize(
    ("time_model", "measures"),
    [
        pytest.param("uniform", "plain", marks=pytest.mark.long),
        pytest.param("sessions", "plain", marks=pytest.mark.long),
        ("sessions", "relative"),
    ],
)
def test_a_recorded_simulation_over_http(tmp_path, time_model, measures):
    config = configure(
        DIGITS,
        num_uploads=24,
        num_clients=6,
        time_model=time_model,
        local_epochs=1,
        shared_epochs=2,
        max_staleness=8,
        guard=True,
        measures=measures,
    )
    recording, outcomes = replayed(tmp_path, config)
    assert bool(recording.end.estimator_memory.any()) == (measures == "relative")
    assert len({reply.verdict.client for _, reply in recording.exchanges}) > 6  # of more than the six that come first
    assert "applied" in outcomes
    assert len(outcomes) > 1  # or the settings above say nothing about the others


def texts(folder):
    """A problem with two kinds of words, read from files."""
    for name, words in (("short", "a bit of it is on top"), ("long", "considerably wonderful extraordinary sentences")):
        lines = [
            " ".join(words.split()[(start + step * skip) % 4] for step in range(8))
            for start in range(5)
            for skip in range(1, 25)
        ]
        (folder / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    sizes = Sizes(low=6, high=10, test=6, pretraining=10, proxy=6)
    return Problem(model="gru", clusters=Texts(folder, length=12), sizes=sizes, metrics=["bits"])


@pytest.mark.parametrize("name", ["text", "breast-cancer-3", "diabetes-2", "power-2"])
def test_other_kinds_of_data(tmp_path, name):
    if name == "power-2":
        pytest.importorskip("sktime")
    (tmp_path / "texts").mkdir()
    problem = texts(tmp_path / "texts") if name == "text" else name
    quick = {"local_epochs": 1, "shared_epochs": 1, "separate_epochs": 1, "batch_size": 8, "guard": True}
    recording, outcomes = replayed(tmp_path / "store", configure(problem, num_uploads=12, num_clients=4, **quick))
    assert recording.end.epoch == 12
    assert "applied" in outcomes


def test_one_cluster_has_nothing_to_route(tmp_path):
    """Experts of one cluster are one model, in the simulator and in the service."""
    one = replace(DIGITS, name="digits-1", clusters=Rotations("digits", 1))
    quick = {"local_epochs": 1, "shared_epochs": 1, "separate_epochs": 1, "reply": "experts", "guard": True}
    config = configure(one, num_uploads=4, num_clients=2, **quick)
    recording, _ = replayed(tmp_path, config)
    assert recording.models_down == "one"
    uploads = only(list(run_events(config)), Uploaded)
    whole = ScenarioInstance(one, one.federation(0), config.settings).model_bytes
    assert [(upload.bytes_down, upload.served) for upload in uploads] == [(whole, upload.after) for upload in uploads]


def test_clients_of_a_service_train_the_models_of_the_reference(tmp_path):
    """Pictures, real clients: the same weights, bit for bit. The simulator's stacks round otherwise; see below."""
    config = configure(DIGITS, num_uploads=16, num_clients=4, shared_epochs=1, separate_epochs=1, local_epochs=2)
    instance, recording = instance_of(config), Recording(config.settings)
    list(simulate(instance, recording, config.time_model))
    problem = ProblemInstance.of(config.scenario, seed=config.seed).with_settings(**config.settings.leaves())
    passes = config.settings.replace(local_epochs=1)  # the plan holds both
    with Live(tmp_path, problem, clock=lambda: 0.0, accept_all=True) as server, ExitStack() as opened:
        clients = [
            opened.enter_context(Client(server.url, problem.model, str(number), settings=passes)) for number in range(4)
        ]
        exchanges, turns = iter(recording.exchanges), [0] * 4
        for tick in instance.ticks(config.time_model):
            client = clients[tick.client]
            if tick.kind == "join":
                client.join()
                continue
            turn = instance.turn_data(tick.client, turns[tick.client])
            turns[tick.client] += 1
            inputs, targets = instance.inputs(turn.draw.train)
            assert torch.equal(client.start_model(), next(exchanges)[0].base_model)
            client.upload(client.train([(inputs[batch], targets[batch]) for batch in turn.plan]))
            if sum(turns) == len(recording.exchanges):
                break
        assert same_state(server.engine.state, recording.end)


def test_stacks_differ_from_the_reference_by_rounding_alone():
    """In float64 the pictures' network ends at the same weights; in float32 training amplifies the rounding."""
    config = configure(DIGITS, num_uploads=16, num_clients=4, shared_epochs=1, separate_epochs=1, local_epochs=2)

    def differs(dtype):
        instance, plain, stacked = instance_of(config, dtype), Recording(config.settings), Recording(config.settings)
        list(simulate(instance, plain, config.time_model))
        fast = Simulation(instance_of(config, dtype), stacked, config.time_model, make_engines(instance, stacked))
        list(fast.events())
        return float((plain.end.cluster_models - stacked.end.cluster_models).abs().max())

    assert differs(torch.float64) < 1e-9
    assert 1e-7 < differs(torch.float32) < 0.05


def instance_of(config, dtype=torch.float32):
    return ScenarioInstance(config.scenario, config.scenario.federation(config.seed), config.settings, dtype)


def replayed(folder, config):
    """Record a simulation, send its uploads to a server, and compare everything that comes back."""
    instance = instance_of(config)
    recording = Recording(instance.settings)
    list(simulate(instance, recording, config.time_model))
    instance = ProblemInstance.of(config.scenario, seed=config.seed).with_settings(**config.settings.leaves())

    arrivals = {}
    for upload, _ in recording.exchanges:
        arrivals.setdefault(str(upload.client_id), upload.base_epoch)
    outcomes = set()
    with Live(folder, instance, clock=lambda: 0.0) as server:
        assert same_state(server.engine.state, recording.start)  # it has pre-trained by itself
        server.engine.stepper.trial = None  # the simulation tries steps on whole proxy sets
        for number, (upload, reply) in enumerate(recording.exchanges):
            epoch = server.engine.state.epoch
            for client_id in [name for name, arrival in arrivals.items() if arrival == epoch]:
                response = server.model(client_id)
                assert same_bits(response, instance.layout, recording.joins[epoch].personal_model)
                del arrivals[client_id]
            body = wire.encode_model(upload.local_model, instance.layout)
            response = server.update(body, str(upload.client_id), upload.base_epoch, key=str(number))
            head = wire.ReplyHead.from_headers(response.headers)
            assert head.mixture == tuple(reply.mixture.tolist())
            assert head.rates == tuple(reply.rates.tolist())
            assert (head.epoch, head.staleness) == (reply.epoch, reply.staleness)
            assert same_bits(response, instance.layout, reply.personal_model)
            assert server.store.client(str(upload.client_id)).memory.defence == reply.verdict.client
            outcomes.add(head.outcome)
        assert not arrivals
        assert same_state(server.engine.state, recording.end)
    return recording, outcomes


def same_bits(response, layout: Layout, vector: torch.Tensor) -> bool:
    return wire.decode_model(response.content, layout).numpy().tobytes() == vector.numpy().tobytes()


@pytest.mark.parametrize("measures", ["plain", "relative"])
def test_concurrent_uploads_and_the_journal_run_again(tmp_path, measures):
    """Six clients at once, honest and not, stale and fresh: whatever order came about is the journal's."""
    instance = tiny_instance().with_settings(max_staleness=9, base_rate=0.5, measures=measures)
    with Live(tmp_path, instance, snapshot_every=7, retention=KEEP_ALL) as server:
        start = server.engine.state
        layout, settings = server.engine.layout, server.engine.settings
        trouble, sent, outcomes = [], {}, []

        def live(number: int, turns: range = range(8)) -> None:
            try:
                name, response = f"client-{number}", server.model(f"client-{number}")
                for turn in turns:
                    if number or turn == 0:  # client 0 trains from what it got first, for ever
                        base_epoch, base = int(response.headers[wire.EPOCH]), decoded(response)
                    wild = 5.0 if (number + turn) % 5 == 0 else 0.05
                    goal = wire.decode_model(near(server, number % 3, seed=100 * number + turn, size=wild), LAYOUT)
                    goal[LAYOUT.num_parameters :] = base[LAYOUT.num_parameters :]
                    body = wire.encode_model(base + 0.5 * (goal - base), LAYOUT)
                    response = server.update(body, name, base_epoch, key=f"key-{turn}")
                    sent[name, base_epoch] = base
                    outcomes.append(response.headers[wire.OUTCOME])
                    if turn >= 8 and outcomes[-1] == "rejected":
                        return
            except BaseException as error:
                trouble.append(error)

        threads = [threading.Thread(target=live, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        live(1, range(8, 60))  # alone, until it has uploaded more than its share; that entry is its last, and kept
        assert not trouble
        end = server.engine.state
    assert set(outcomes) == {"applied", "deprecated", "rejected"}
    with Store.open(tmp_path, retention=KEEP_ALL) as store:  # a running server deletes rejected uploads meanwhile
        entries = store.entries(0)
        kept = Counter(entry.outcome for entry in entries)
        assert end.epoch == kept["applied"] == outcomes.count("applied")
        assert kept["deprecated"] == outcomes.count("deprecated")
        assert 1 <= kept["rejected"] <= outcomes.count("rejected")  # old ones are deleted
        again = anew = start
        for entry in entries:
            if entry.outcome == "applied" and entry.client_id != "client-0":
                base = store.read_model(entry.base, layout)
                assert torch.equal(base, sent[entry.client_id, entry.base_epoch])
            again, _ = store.replay(again, entry, settings, layout)
            anew, _ = store.replay(anew, entry, settings, layout, anew=True)
        assert same_state(again, end)
        assert same_state(anew, end)
        found = verify(store)
        assert found.entries > 0
        assert not found.findings
    with Live(tmp_path, instance) as server:  # and so is what a restart finds
        assert same_state(server.engine.state, end)


@pytest.mark.parametrize("measures", ["plain", "relative"])
def test_recovery_without_a_snapshot_at_the_end(tmp_path, measures):
    """The journal alone, as after a crash."""
    with Live(tmp_path, tiny_instance().with_settings(measures=measures), snapshot_every=1000) as server:
        server.model()
        for epoch in range(5):
            server.update(near(server, epoch % 3, seed=epoch), base_epoch=epoch, key=f"key-{epoch}")
        end = server.engine.state
        server.engine.maintenance.finish = lambda state: None
    with Store.open(tmp_path) as store:
        assert [snapshot.epoch for snapshot in store.snapshots()] == [0]
        recovered = store.recover()
        assert recovered.replayed == 5
        assert same_state(recovered.state, end)
        assert bool(end.estimator_memory.any()) == (measures == "relative")
        assert recovered.settings == server.engine.settings
    assert recovered.layout == LAYOUT
