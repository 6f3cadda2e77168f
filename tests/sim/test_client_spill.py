"""Clients that sleep hold no models, and a run gives the same events as one in which all models stay in memory."""

import errno
import gc
import random
from importlib import import_module
from itertools import islice

import pytest
import torch

from cdfl.algorithms import CDFL, make_algorithm, reads_state
from cdfl.run_events import Uploaded, only
from cdfl.sim import checkpoint
from cdfl.sim.client_spill import ClientStore, Held, SpillFile
from cdfl.sim.engine_choice import make_engines
from cdfl.sim.population import Client, Population
from cdfl.sim.serialization import Serializer
from cdfl.sim.simulation import Simulation
from cdfl.sim.time_models import TIME_MODELS, Devices, Span, Tick
from cdfl.sim.upcoming_turns import Agenda
from cdfl.upload_policies import Sometimes

from .world import SETTINGS, UNIFORM, assert_same, assert_same_events, make_instance, run_fast, run_plain

SIMULATION = import_module("cdfl.sim.simulation")


@pytest.fixture
def sleepy(monkeypatch):
    """Everything goes to the file, and few clients are trained at once."""
    monkeypatch.setattr(SIMULATION, "AWAKE_BYTES", 0)
    monkeypatch.setattr(SIMULATION, "MOST_TRAINED", 4)


def models_in_memory(size):
    """Count the tensors in memory that hold one model each, or several."""
    gc.collect()
    found = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor) and each.shape[-1:] == (size,)]
    return len({each.untyped_storage().data_ptr() for each in found})


@pytest.mark.slow
def test_sleeping_clients_hold_no_models(sleepy):
    instance = make_instance(num_clients=100, num_uploads=80)
    engines = make_engines(instance)
    simulation = Simulation(instance, make_algorithm("cdfl", SETTINGS), UNIFORM, engines)
    before = models_in_memory(instance.layout.size)
    events, counts, asleep = [], [], []
    for event in simulation.events():
        events.append(event)
        if isinstance(event, Uploaded) and event.epoch % 20 == 0:
            counts.append(models_in_memory(instance.layout.size) - before)
            sleeping = [client for _, client in simulation.clients.items() if client.prepared is None]
            asleep.append(sum(client.kept.is_asleep for client in sleeping) / len(sleeping))
    uploaded = {event.client for event in only(events, Uploaded)}
    assert len(uploaded) > 45  # and each was sent a model of its own
    assert max(counts) < 24, counts  # those of a stack and its scores, not one for each client
    assert counts[-1] < counts[0] + 4  # nor more and more
    assert min(asleep) > 0.9
    assert simulation.store.bytes_awake < 8 * instance.model_bytes
    assert_same_events(events, run_plain(instance).events)
    models = dict(simulation.personal_models())
    assert len(models) == 100
    assert len({model.numpy().tobytes() for model in models.values()}) == len(uploaded) + 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedsoft", "fedem", "local"])
def test_every_kind_of_state_comes_back(name, sleepy):
    instance = make_instance(num_uploads=30)
    assert_same(run_fast(instance, name), run_plain(instance, name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cdfl"])
def test_experts_come_back(name, sleepy):
    instance = make_instance(SETTINGS.replace(reply="experts"), num_uploads=12)
    assert_same(run_fast(instance, name), run_plain(instance, name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "clock", [TIME_MODELS["few-active"], Devices(joins=Span("exponential", 2.0), stays=Span("exponential", 4.0))]
)
@pytest.mark.parametrize("policy", [Sometimes(0.4), SIMULATION.ALWAYS])
def test_turns_in_any_order(clock, policy, sleepy):
    instance = make_instance(num_uploads=30)
    assert_same(
        run_fast(instance, time_model=clock, policy=policy), run_plain(instance, time_model=clock, policy=policy)
    )


def test_a_checkpoint_stores_newcomers_once(tmp_path):
    instance = make_instance(num_clients=3000, num_uploads=8)
    simulation = Simulation(instance, make_algorithm("ifca", SETTINGS), UNIFORM, make_engines(instance))
    told = list(islice(simulation.events(), 5))
    checkpoint.save(tmp_path, simulation.bookmark, instance.start)
    assert (tmp_path / checkpoint.FILE).stat().st_size < 60_000 + 60 * instance.model_bytes
    twin = Simulation(instance, make_algorithm("ifca", SETTINGS), UNIFORM, make_engines(instance))
    found = checkpoint.load(tmp_path, twin)
    clients = found.moment.clients()
    assert list(clients) == list(range(3000))
    assert len({id(client) for client in clients.values()}) < 20
    assert len(told) == 5


# -- the parts


def turns(*clients):
    return [Tick(float(place), client, "turn") for place, client in enumerate(clients)]


def test_the_agenda_knows_who_is_next():
    joins = [Tick(0.0, client, "join") for client in (1, 2, 3)]
    agenda = Agenda(iter([*joins, *turns(2, 1, 2, 3, 2), Tick(9.0, 1, "leave"), *turns(3)]), read_ahead=100)
    for _ in range(4):
        last = agenda.take()
    assert last == Tick(0.0, 2, "turn")
    assert agenda.soonest(1, lambda client: True) == [1]
    assert agenda.soonest(9, lambda client: client != 1) == [3]  # 2 has its turn now
    assert agenda.returns_within(2, 3)
    assert not agenda.returns_within(2, 1)
    assert not agenda.returns_within(1, 100)  # it leaves
    assert agenda.take().client == 1
    assert agenda.soonest(9, lambda client: True) == [2]  # its turn is over, and it waits for the next one
    assert [agenda.take().kind for _ in range(5)] == ["turn", "turn", "turn", "leave", "turn"]
    assert agenda.take() is None
    assert (agenda.taken, dict(agenda.passed)) == (10, {"join": 3, "turn": 6, "leave": 1})


def test_the_agenda_ends_with_the_last_turn_and_reads_no_further():
    given = iter(turns(*range(100)))
    agenda = Agenda(given, most_turns=5, read_ahead=2)
    agenda.skip(3)
    assert next(given).client == 4  # it has read one more than it gave
    assert agenda.taken == 3


def test_a_moment_of_the_population_stays_as_it_was():
    chance, people = random.Random(0), Population()  # noqa: S311
    kept = []
    for step in range(600):
        number = chance.randrange(40)
        if number in people and chance.random() < 0.3:
            del people[number]
        else:
            people[number] = Client(kept=None, turns=step)
        if chance.random() < 0.05:
            kept.append((people.mark(), dict(people.items())))
    for moment, expected in kept:
        assert moment.clients() == dict(sorted(expected.items()))


def held(value):
    return Held(CDFL(SETTINGS).join(first_state(value)))


def first_state(value):
    return CDFL(SETTINGS).initial(torch.full((2, 500), value), lambda models, clusters: torch.ones(2), 500)


def test_the_store_keeps_the_newest_in_memory_and_uses_the_file_again():
    store = ClientStore(Serializer(Held), limit=3 * 2100)
    kept = [store.keep(held(float(value))) for value in range(6)]
    store.shrink()
    assert [each.is_asleep for each in kept] == [True, True, True, False, False, False]
    for value, each in enumerate(kept):
        assert torch.equal(each.load().reply.personal_model, torch.full((500,), float(value)))
    size = store.file.num_bytes
    del kept[:2]
    more = [store.keep(held(7.5)) for _ in range(2)]
    store.shrink()
    assert store.file.num_bytes == size  # the two freed places were enough
    assert [each.is_asleep for each in (*kept, *more)] == [True, True, True, False, False, False]
    assert torch.equal(kept[1].load().reply.personal_model, torch.full((500,), 3.0))
    del each
    more.clear()
    kept.clear()
    assert (store.num_awake, store.bytes_awake) == (0, 0)


def test_a_record_is_exact_and_refers_to_what_is_shared():
    shared = torch.rand(1000)
    odd = torch.tensor([float("nan"), -0.0, 1e-45])
    serializer = Serializer(Held, shared={"start": shared})
    record = serializer.dumps(
        {"all": [shared, odd, torch.arange(3), (1, None, "word"), torch.empty(0, dtype=torch.float64)]}
    )
    assert len(record) < 500
    start, found, numbers, words, nothing = serializer.loads(record)["all"]
    assert start is shared
    assert found.numpy().tobytes() == odd.numpy().tobytes()
    assert (numbers.tolist(), words) == ([0, 1, 2], (1, None, "word"))
    assert (nothing.shape, nothing.dtype) == ((0,), torch.float64)
    with pytest.raises(TypeError, match="cannot be stored"):
        serializer.dumps(object())


def test_a_full_disk_is_told(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(OSError, match="set TMPDIR to a larger disk"):
        SpillFile().write(b"x")


def test_an_overridden_assign_may_read_the_state():
    class Own(CDFL):
        def assign(self, state, reply, view):
            return super().assign(state, reply, view)

    assert not reads_state(CDFL(SETTINGS))
    assert reads_state(Own(SETTINGS))
