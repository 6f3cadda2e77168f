"""Replies of experts: what the server sends, what clients make of it, and that both agree."""

import logging
import threading
from dataclasses import replace

import httpx
import pytest
import torch
from torch import nn

from cdfl import wire
from cdfl.algorithms.cdfl import CDFL
from cdfl.client import Client, ClientError, FlowerClient
from cdfl.core import Settings, TrainingSettings, experts, flatten, personalize, router
from cdfl.core.proxy_sets import outputs
from cdfl.core.quantization import dequantize, quantize, rounded
from cdfl.data import Sizes
from cdfl.problems import ProblemInstance
from cdfl.run_events import Uploaded, only
from cdfl.scenarios import load_scenario
from cdfl.server.engine_startup import open_engine
from cdfl.server.store import Store
from cdfl.server.store_records import Retention
from cdfl.server.verify import verify
from cdfl.sim.reference_simulation import simulate
from cdfl.sim.runner import configure
from cdfl.sim.scenario_instance import ScenarioInstance
from cdfl.user_code import SetupError

from .live import LAYOUT, NUM_CLUSTERS, Live, near, of_server, tiny_problem
from .toy import same_state

pytestmark = pytest.mark.slow

EXPERTS = Settings(
    shared_epochs=2, separate_epochs=20, batch_size=8, learning_rate=0.03, reply="experts", local_epochs=2
)
KEEP_ALL = Retention(keep_snapshots=100, keep_uploads=True)


def samples(cluster: int, count: int = 40, seed: int = 0):
    """Clusters that lie in different places, each with a rule of its own."""
    noise = torch.Generator().manual_seed(100 * seed + cluster)
    angle = torch.tensor(2.0 * cluster)
    place = 4 * torch.stack([angle.cos(), angle.sin()])
    inputs = torch.randn(count, 2, generator=noise)
    return inputs + place, (inputs @ torch.stack([angle.sin(), angle.cos()]) > 0).long()


def problem(**changes):
    sets = [[samples(cluster, 60, seed) for cluster in range(NUM_CLUSTERS)] for seed in (1, 2)]
    return tiny_problem(**{"clusters": of_server(*sets), "settings": EXPERTS} | changes)


def client_of(server: Live, name: str = "car-7", **options) -> Client:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    return Client(server.url, model, name, **{"settings": EXPERTS} | options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("experts")


@pytest.fixture(scope="module")
def server(folder):
    with Live(folder, ProblemInstance.of(problem()), retention=KEEP_ALL, accept_all=True) as live:
        yield live


# -- the wire


def test_the_router_comes_once(server):
    response = server.http.get("/v1/router", headers={wire.CLIENT: "car-7"})
    status = server.http.get("/v1/status").json()
    assert (status["reply"], status["expert_dtype"], status["num_clusters"]) == ("experts", "int8", NUM_CLUSTERS)
    assert response.headers["ETag"] == f'"{status["router"]}"'
    message = wire.decode_router(response.content)
    assert wire.encode_router(message) == response.content
    assert message.router.accuracy > 0.9
    for known, expected in ((response.headers["ETag"], 304), ('"other"', 200), (f"W/{response.headers['ETag']}", 304)):
        again = server.http.get("/v1/router", headers={wire.CLIENT: "car-7", "If-None-Match": known})
        assert (again.status_code, len(again.content) > 0) == (expected, expected == 200)


def test_replies_carry_all_clusters_or_one_model_if_asked(server):
    response = server.model("car-1")
    head = wire.ReplyHead.from_headers(response.headers)
    assert (head.experts, head.router) == ("int8", server.engine.replies.router_digest)
    sent = wire.decode_experts(response.content, LAYOUT, NUM_CLUSTERS, "int8")
    assert torch.equal(sent, rounded(server.engine.state.cluster_models, LAYOUT, "int8"))
    one = server.model("car-2", headers={wire.REPLY: "model"})
    assert wire.ReplyHead.from_headers(one.headers).experts is None
    assert torch.allclose(wire.decode_model(one.content, LAYOUT), server.engine.state.cluster_models.mean(dim=0))
    assert server.refused(server.model("car-2", headers={wire.REPLY: "two"})) == (
        400,
        "CDFL-Reply is 'two'; expected model or experts",
    )


def test_a_client_of_another_network_is_told(server):
    words = "the server's model is not this client's: the body has .* experts of this model in int8; use the same model"
    client = Client(server.url, nn.Linear(2, 3), "car-9", settings=EXPERTS)
    with client, pytest.raises(wire.UnfitError, match=words):
        client.join()


def test_an_upload_brings_its_mixture(server):
    epoch = int(server.model("car-3").headers[wire.EPOCH])
    response = server.update(near(server, 1), "car-3", epoch, "a", headers={wire.MIXTURE: "0.2,0.7,0.1"})
    head = wire.ReplyHead.from_headers(response.headers)
    assert (head.mixture, head.outcome, head.experts) == ((0.2, 0.7, 0.1), "applied", "int8")
    last = server.store.client("car-3").last
    assert (last.own_mixture, last.losses) == ((0.2, 0.7, 0.1), ())  # it was not measured
    again = server.update(near(server, 1), "car-3", head.epoch, "b")  # another one, without: the server estimates
    head = wire.ReplyHead.from_headers(again.headers)
    assert head.mixture != (0.2, 0.7, 0.1)
    assert server.store.client("car-3").last.losses
    body = near(server, 0)
    first = server.update(body, "car-3", head.epoch, "c", headers={wire.MIXTURE: "0,0,1"})
    repeated = server.update(body, "car-3", head.epoch, "c", headers={wire.MIXTURE: "0,0,1"})
    assert (repeated.content, repeated.headers[wire.REPLY]) == (first.content, first.headers[wire.REPLY])
    assert verify(server.store).findings == []


@pytest.mark.parametrize("text", ["", "1", "0.5,0.5", "0.5,0.6,-0.1", "0.5,0.5,0.1", "nan,1,0", "a,b,c", "inf,0,0"])
def test_mixtures_that_are_refused(server, text):
    epoch = int(server.model("car-4").headers[wire.EPOCH])
    status, sentence = server.refused(server.update(near(server, 1), "car-4", epoch, "x", headers={wire.MIXTURE: text}))
    assert status == 400
    assert sentence.startswith("CDFL-Mixture is ")


def test_the_base_of_an_upload_is_the_mix_of_what_was_sent(server):
    response = server.model("car-5")
    sent = wire.decode_experts(response.content, LAYOUT, NUM_CLUSTERS, "int8")
    mixture = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    epoch = int(response.headers[wire.EPOCH])
    server.update(near(server, 0), "car-5", epoch, "a", headers={wire.MIXTURE: "0.6,0.3,0.1"})
    entry = server.store.client("car-5").last
    assert torch.equal(server.store.read_model(entry.base, LAYOUT), personalize(sent, mixture))


def test_a_client_that_returns_to_an_older_reply_is_mixed_as_it_was_then(server):
    """Without a mixture of its own: by that of the reply at its base epoch, not by its last one."""
    joined = int(server.model("car-9").headers[wire.EPOCH])
    mixtures, epochs = {joined: (1 / 3,) * 3}, [joined]
    for number, header in enumerate(("0.8,0.1,0.1", "0.1,0.8,0.1", "0.1,0.1,0.8")):
        response = server.update(near(server, 0), "car-9", epochs[-1], f"a{number}", headers={wire.MIXTURE: header})
        head = wire.ReplyHead.from_headers(response.headers)
        epochs.append(head.epoch)
        mixtures[head.epoch] = head.mixture
    for base_epoch in epochs[:-1]:
        weights = torch.tensor(mixtures[base_epoch], dtype=torch.float64)
        expected = personalize(server.engine.state.cluster_models, weights)
        server.update(near(server, 0), "car-9", base_epoch, f"b{base_epoch}")
        entry = server.store.client("car-9").last
        assert (entry.last_mixture or (1 / 3,) * 3) == pytest.approx(mixtures[base_epoch])
        assert torch.allclose(server.store.read_model(entry.base, LAYOUT), expected, atol=1e-6)
    assert verify(server.store).findings == []


def test_servers_that_estimate_themselves(tmp_path):
    for settings in (EXPERTS.replace(send_mixture=False), EXPERTS.replace(reply="model")):
        with Live(tmp_path / settings.replies.reply, ProblemInstance.of(problem(settings=settings))) as live:
            live.model()
            refused = live.update(near(live, 0), headers={wire.MIXTURE: "1,0,0"})
            assert live.refused(refused) == (422, "this server estimates mixtures itself; leave CDFL-Mixture out")
            if settings.replies.reply == "model":
                there = live.http.get("/v1/router", headers={wire.CLIENT: "car-7"})
                assert live.refused(there)[0] == 404
                with client_of(live) as client:
                    client.join()
                    assert not client.has_experts
                    assert client.predict(samples(0)[0]).shape == (40, 2)
                    with pytest.raises(ClientError, match="there is no router yet"):
                        client.see(samples(0)[0])


# -- the store


def test_a_restart_has_the_same_router_and_does_not_train_it(tmp_path, monkeypatch):
    with Live(tmp_path, ProblemInstance.of(problem())) as live:
        body, first = live.engine.replies.router, live.model().content
    monkeypatch.setattr(ProblemInstance, "train_router", None)
    with Live(tmp_path, ProblemInstance.of(problem())) as live:
        assert live.engine.replies.router == body
        assert live.model().content == first


def test_a_kill_before_the_router_is_kept(tmp_path, monkeypatch):
    """The clusters are there, the router is not: the next start trains it, and gets the same one."""
    with Store.open(tmp_path / "whole") as store:
        open_engine(ProblemInstance.of(problem()), store).close()
        expected = store.router()

    def killed(*_):
        raise KeyboardInterrupt

    instance = ProblemInstance.of(problem())
    for place in (
        "cdfl.problems.problem_instance.ProblemInstance.train_router",
        "cdfl.problems.problem_instance.ProblemInstance.loss_scale",
        "cdfl.server.tables.put",
    ):
        with monkeypatch.context() as patch, Store.open(tmp_path / "cut") as store:
            patch.setattr(place, killed)
            with pytest.raises(KeyboardInterrupt):
                open_engine(instance, store)
    with Store.open(tmp_path / "cut") as store:
        open_engine(ProblemInstance.of(problem()), store).close()
        assert store.router() == expected
        assert [name for name in store.blobs.names() if name.startswith("router")] == [
            name for name in store.all_blobs() if name.startswith("router")
        ]


def test_a_router_of_another_problem_is_refused(tmp_path):
    with Store.open(tmp_path) as store:
        open_engine(ProblemInstance.of(problem()), store).close()
        other = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, NUM_CLUSTERS))
        with pytest.raises(SetupError, match="the problem's router is not the stored one: expected"):
            open_engine(ProblemInstance.of(problem(router=other)), store)


# -- the client


def test_it_follows_without_labels_and_predicts_behind_the_router(server, caplog):
    with client_of(server, "car-8") as client:
        client.join()
        sent = client._experts.models
        assert client.own_mixture == (1 / 3,) * 3
        for cluster in range(NUM_CLUSTERS):  # jumps, before any upload
            inputs, targets = samples(cluster, 300, seed=7)
            seen = client.see(inputs)
            assert (seen.inputs, seen.mixture) == (300, client.own_mixture)
            assert seen.mixture[cluster] > 0.9
            right = (client.predict(inputs).argmax(dim=1) == targets).double().mean()
            expert = outputs(client.model, LAYOUT, sent[cluster], inputs)
            assert right > (expert.argmax(dim=1) == targets).double().mean() - 0.05  # as good as the right expert
            one = client.predict(inputs, one_expert=True)
            assert (one.argmax(dim=1) == client.predict(inputs).argmax(dim=1)).double().mean() > 0.9
            assert one.exp().sum(dim=1) == pytest.approx(1, abs=1e-5)
        few = client.see(samples(0, 10, seed=8)[0])
        assert few.inputs == 200  # the last ones
        assert client.uploads == 0
        assert client.mixture_moved > 0.3
        with caplog.at_level(logging.WARNING):
            strange = client.see(50 + torch.randn(400, 2))
            client.see(50 + torch.randn(400, 2))
        assert strange.strange > 0.9
        assert caplog.text.count("fit no cluster") == 1


@pytest.mark.parametrize("send", [True, False])
def test_what_it_trains_from_is_what_the_server_takes_it_for(server, send):
    with client_of(server, f"car-send-{send}", send_mixture=send, mixture_noise=0.05 * send) as client:
        for turn in range(3):
            client.update(samples(1, seed=turn))
            entry = server.store.client(client.client_id).last
            assert entry.outcome == "applied"
            assert bool(entry.own_mixture) == send
            base = server.store.read_model(entry.base, LAYOUT)
            weights = torch.tensor(entry.own_mixture or entry.last_mixture or [1 / 3] * 3, dtype=torch.float64)
            assert float((base - personalize(client_sent(server, entry), weights)).abs().max()) < 1e-6
        assert torch.allclose(flatten(client.model), client.start_model())
        assert client.own_mixture[1] > 0.9
        if send:
            assert 0 < abs(client.mixture[1] - client.own_mixture[1]) < 0.4  # the noise


def client_sent(server: Live, entry) -> torch.Tensor:
    """The experts of an epoch, from the journal."""
    state = next(each for each in states(server) if each.epoch == entry.base_epoch)
    return rounded(state.cluster_models, LAYOUT, "int8")


def states(server: Live):
    store, layout = server.store, LAYOUT
    first = store.snapshots()[0]
    state = store.load_state(first, layout)
    yield state
    for entry in store.all_entries(first.epoch):
        if entry.epoch > state.epoch:
            state, _ = store.replay(state, entry, first.settings, layout)
            yield state


def test_it_survives_restarts_and_works_offline(server, tmp_path):
    with client_of(server, "car-9", state_dir=tmp_path, send_mixture=True) as client:
        client.update(samples(2))
        own, guesses = client.own_mixture, client.predict(samples(2, seed=5)[0])
        model = flatten(client.model).clone()
    asked = []
    with client_of(server, "car-9", state_dir=tmp_path, send_mixture=True) as client:
        client._connection.fetch_router = asked.append
        assert client.has_experts
        assert client.own_mixture == own
        assert torch.equal(client.predict(samples(2, seed=5)[0]), guesses)
        assert torch.equal(client.start_model(), model)
        client.update(samples(0))
        assert asked == []  # the router is known
    (file,) = [path for path in tmp_path.glob("*.safetensors") if b"confusion" in path.read_bytes()]
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ClientError, match=r"the checksum of .* is wrong"):
        client_of(server, "car-9", state_dir=tmp_path)


def test_an_upload_that_waits_keeps_its_mixture(server):
    with client_of(server, "car-10", send_mixture=True) as client:
        client.join()
        epoch, url = client.epoch, client._connection.url
        client.follow(samples(0))
        mixture = client._base
        start = client.start_model()
        local = client.train(samples(0))
        client._connection._http.close()  # the server is away
        client.retry = client._connection.retry = type(client.retry)(attempts=1)
        client._connection._http = httpx.Client(base_url="http://127.0.0.1:9")
        assert client.upload(local) is None
        client.follow(samples(2))  # what it sees now does not change what it trained from
        assert client._state.pending.mixture == mixture
        assert torch.equal(client._personal_model(), start)
        client._connection._http = client._connection._make_http()
        assert client.flush().outcome == "applied"
        entry = server.store.client("car-10").last
        assert (entry.own_mixture, entry.base_epoch, url) == (mixture, epoch, client._connection.url)


def test_flower_clients_get_one_model(server):
    class Numpy:
        def fit(self, parameters, config):
            return [each + 0.01 if each.dtype.kind == "f" else each for each in parameters], 1, {}

    with client_of(server, "car-11") as client:
        flower = FlowerClient(Numpy(), client)
        flower.join()
        assert flower.update().outcome == "applied"
        assert not client.has_experts


def test_a_module_of_ones_own(tmp_path):
    torch.manual_seed(0)
    mine = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, NUM_CLUSTERS))
    with Live(tmp_path, ProblemInstance.of(problem(router=mine))) as live:
        with client_of(live, router=mine) as client:
            client.join()
            assert client.see(samples(1)[0]).mixture[1] > 0.8
        with client_of(live, "car-2") as client, pytest.raises(ClientError, match="pass the same one: Client"):
            client.join()


# -- parity


class Recording(CDFL):
    """CDFL that remembers what it was sent."""

    def __init__(self, settings):
        super().__init__(settings)
        self.states, self.uploads = [], []

    def server_update(self, state, upload, assignment, evaluate):
        after, reply = super().server_update(state, upload, assignment, evaluate)
        self.states.append(after)
        self.uploads.append(upload)
        return after, reply


@pytest.mark.parametrize(("send", "sure"), [(True, True), (True, False), (False, True)])
def test_clients_of_a_service_are_those_of_a_simulation(tmp_path, monkeypatch, send, sure):
    """Real clients get the data of simulated ones: the same states, and the same predictions."""
    monkeypatch.setattr(router, "router_training", lambda count: TrainingSettings(learning_rate=4e-3, local_epochs=3))
    monkeypatch.setattr(experts, "SURE", 0.0 if sure else 1.1)
    config = configure(
        replace(load_scenario("digits-4"), sizes=Sizes(low=20, high=40, test=40, pretraining=50, proxy=50)),
        num_uploads=10,
        num_clients=3,
        local_epochs=1,
        shared_epochs=2,
        separate_epochs=2,
        shared_step=0.25,
        guard=True,
        reply="experts",
        send_mixture=send,
    )
    instance = ScenarioInstance(config.scenario, config.scenario.federation(config.seed), config.settings)
    problem = ProblemInstance.of(config.scenario, seed=config.seed).with_settings(**config.settings.leaves())
    with Live(tmp_path, problem, clock=lambda: 0.0) as live:
        live.engine.stepper.trial = None  # the simulation tries steps on whole proxy sets
        message = wire.decode_router(live.engine.replies.router)
        instance.routing.router = message.router  # trained one by one, not in a stack: equal but for rounding
        instance.routing.__dict__["loss_scale"] = message.loss_scale
        recording = Recording(config.settings)
        events = only(list(simulate(instance, recording, config.time_model)), Uploaded)
        clients = {
            number: Client(live.url, problem.model, str(number), settings=config.settings, send_mixture=send)
            for number in range(3)
        }
        for client in clients.values():
            client.join()
        for event, upload, state in zip(events, recording.uploads, recording.states, strict=True):
            client = clients[event.client]
            turn = instance.turn_data(event.client, event.update)
            inputs, targets = instance.inputs(turn.draw.train)
            client.follow((inputs, targets))
            reply = client.upload(client.train([(inputs[batch], targets[batch]) for batch in turn.plan]))
            assert (reply.outcome, reply.epoch) == (event.outcome, state.epoch)
            if send:
                assert reply.mixture == pytest.approx(event.mixture, abs=1e-4)
                assert torch.allclose(live.engine.state.cluster_models, state.cluster_models, atol=1e-4)
            else:
                assert same_state(live.engine.state, state)
            assert str(upload.client_id) == client.client_id
            tests, expected = instance.inputs(turn.draw.test)
            score = float(instance.metrics[0](client.predict(tests), expected))
            assert score == pytest.approx(event.served, abs=0.03)  # one sample in forty, where shares are nearly equal
        for client in clients.values():
            client.close()


def test_many_clients_at_once(tmp_path):
    trouble = []

    def live_a_while(number):
        try:
            with client_of(live, f"car-{number}", send_mixture=number % 2 == 0) as client:
                for turn in range(4):
                    client.update(samples(number % 3, seed=turn))
        except BaseException as error:
            trouble.append(error)

    with Live(tmp_path, ProblemInstance.of(problem()), retention=KEEP_ALL, snapshot_every=5) as live:
        threads = [threading.Thread(target=live_a_while, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not trouble
        end = live.engine.state
        found = verify(live.store)
        assert (found.findings, found.replies > 0) == ([], True)
    with Live(tmp_path, ProblemInstance.of(problem())) as live:
        assert same_state(live.engine.state, end)


def test_unpacked_models_are_what_the_simulator_rounds():
    models = torch.randn(3, LAYOUT.size)
    for dtype in ("int8", "float16", "float32"):
        quantized = quantize(models, LAYOUT, dtype)
        assert torch.equal(dequantize(quantized, LAYOUT, dtype), rounded(models, LAYOUT, dtype))
