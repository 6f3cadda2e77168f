"""Poisoned uploads, against a real server: what they move, and what their clients are told."""

import logging

import pytest
import torch

from cdfl import wire
from cdfl.core import Settings, flatten
from cdfl.core.harm_test import WARM_UP
from cdfl.server.run import MAX_HARM
from cdfl.server.verify import verify

from .live import LAYOUT, Live, decoded, near, tiny_setup

P = LAYOUT.num_parameters
NOISE = torch.randn(P, generator=torch.Generator().manual_seed(1))
ATTACKS = {  # on the parameters; negative variances would have no finite loss, and get 422
    "sign-flipping": lambda honest, base: base - 8 * (honest - base),
    "noise": lambda honest, base: base + 3 * NOISE.abs(),
    "upside-down": lambda honest, base: -honest,
    "absurdly-large": lambda honest, base: 1e6 * honest,
}


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    with Live(tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture(scope="module")
def trusting(tmp_path_factory):
    with Live(tmp_path_factory.mktemp("store"), accept_all=True) as server:
        yield server


def honest_work(server: Live) -> None:
    """As many uploads as make it clear what is usual."""
    if server.engine.state.epoch == 0:
        for number in range(WARM_UP):
            server.model(f"honest-{number}")
            body = near(server, number % 3, seed=number, size=0.1)
            head = server.update(body, f"honest-{number}", server.engine.state.epoch).headers
            assert (head[wire.OUTCOME], wire.DETAIL in head) == ("applied", False)


def poisoned(server: Live, attack: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What an attacker was given and what it makes of it."""
    base = decoded(server.model(attack))
    honest = wire.decode_model(near(server, 0, size=0.1), LAYOUT)
    return base, torch.cat([ATTACKS[attack](honest[:P], base[:P]), base[P:]])


@pytest.mark.parametrize("attack", ATTACKS)
def test_poison_moves_nothing_and_is_answered(strict, attack, caplog):
    honest_work(strict)
    _, upload = poisoned(strict, attack)
    before = strict.engine.state
    with caplog.at_level(logging.WARNING, "cdfl.server"):
        response = strict.update(wire.encode_model(upload, LAYOUT), attack, before.epoch, key=attack)
    head = wire.ReplyHead.from_headers(response.headers)
    assert (head.outcome, head.epoch) == ("rejected", before.epoch + 1)
    assert head.rates == (0, 0, 0)
    assert torch.equal(strict.engine.state.cluster_models, before.cluster_models)
    weights = torch.tensor(head.mixture, dtype=torch.float64).float()  # its estimate, over clusters that stayed
    torch.testing.assert_close(decoded(response), weights @ before.cluster_models)
    entry = strict.store.entries(before.epoch)[0]
    assert (entry.outcome, entry.upload) == ("rejected", None)
    harm, usual_harm = entry.verdict.seen
    assert usual_harm == before.defence_memory.median()
    assert harm > MAX_HARM * usual_harm
    assert entry.last_defence == ()
    assert f"moved no cluster: it would do {harm / usual_harm:.3g} times the usual harm" in head.detail
    assert caplog.messages == [
        f"an upload of {attack} was rejected, measured {entry.verdict.seen}: {entry.verdict.reason}"
    ]
    again = strict.update(wire.encode_model(upload, LAYOUT), attack, before.epoch, key=attack)
    assert wire.ReplyHead.from_headers(again.headers) == head


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_server_that_trusts_everybody_is_moved(trusting, attack):
    honest_work(trusting)
    _, upload = poisoned(trusting, attack)
    before = trusting.engine.state
    response = trusting.update(wire.encode_model(upload, LAYOUT), attack, before.epoch)
    if response.status_code == 200:  # else it was so absurd that a cluster would have no finite loss
        assert response.headers[wire.OUTCOME] == "applied"
        assert not torch.equal(trusting.engine.state.cluster_models, before.cluster_models)
    else:
        assert trusting.refused(response)[0] == 422


def test_the_memory_of_what_is_usual_survives_a_restart(tmp_path):
    with Live(tmp_path) as server:
        honest_work(server)
        harms = server.engine.state.defence_memory
        server.engine.maintenance.finish = lambda state: None  # a crash: no snapshot at the end
    with Live(tmp_path) as server:
        assert server.engine.state.defence_memory.tolist() == harms.tolist()
        assert len(harms) == WARM_UP


def send(server: Live, client_id: str, times: float = 1.5) -> wire.ReplyHead:
    """Upload a model that is so many times as far away as the usual one."""
    epoch = int(server.model(client_id).headers[wire.EPOCH])
    usual = server.engine.state.defence_memory.median().sqrt()
    model = server.engine.state.cluster_models[0].clone()
    model[:P] += times * usual / P**0.5
    response = server.update(wire.encode_model(model, LAYOUT), client_id, epoch, key=f"key-{epoch}")
    return wire.ReplyHead.from_headers(response.headers)


PAST = "The limit is lower for you because earlier uploads were harmful; usual uploads raise it again."


def test_a_little_harm_again_and_again(tmp_path):
    """What everybody may send once is refused of a client that has often sent the like, also after a restart."""
    with Live(tmp_path) as server:
        honest_work(server)
        outcomes = [send(server, "bad").outcome for _ in range(2)]
        server.engine.maintenance.finish = lambda state: None  # a crash
    with Live(tmp_path) as server:
        while outcomes[-1] == "applied" and len(outcomes) < 9:
            head = send(server, "bad")
            outcomes.append(head.outcome)
        assert outcomes[:2] == ["applied"] * 2
        assert outcomes[-1] == "rejected"
        assert PAST in head.detail
        last = server.store.client("bad").last
        assert last.verdict.client[0] > last.last_defence[0] > 1
        assert send(server, "good").outcome == "applied"
        assert verify(server.store).findings == []


def test_a_bad_past_is_made_up_for_by_a_few_usual_uploads(tmp_path):
    with Live(tmp_path) as server:
        honest_work(server)
        first = send(server, "sorry", times=20)
        assert first.outcome == "rejected"
        assert PAST not in first.detail  # it has none yet
        heads = [send(server, "sorry", times=0.9) for _ in range(5)]
        outcomes = [head.outcome for head in heads]
        refused = outcomes.index("applied")
        assert 1 <= refused <= 3
        assert outcomes[refused:] == ["applied"] * (5 - refused)
        for head in heads[:refused]:
            assert float(head.detail.split("it would do ")[1].split()[0]) < 1
            assert PAST in head.detail


@pytest.mark.parametrize("apart", [0.0, 0.001])
def test_clusters_that_start_alike_refuse_no_first_upload(tmp_path, apart):
    """How far apart pre-training leaves them says nothing of how far honest trainings lead."""
    setup = tiny_setup(settings=Settings(shared_epochs=0, separate_epochs=0))
    with Live(tmp_path, setup) as server:
        models = server.engine.state.cluster_models
        server.engine.state = server.engine.state.replace(cluster_models=models + apart * torch.rand(3, 1))
        start, random = flatten(setup.model), torch.Generator().manual_seed(0)
        for number in range(WARM_UP):
            server.model(f"c{number}")
            noise = torch.zeros(LAYOUT.size)
            noise[:P] = 2.0 ** -(number % 5) * torch.randn(P, generator=random)
            response = server.update(wire.encode_model(start + noise, LAYOUT), f"c{number}", number)
            assert response.headers[wire.OUTCOME] == "applied"


@pytest.mark.parametrize("factor", [-1e6, 1e3, 1e6])
def test_a_model_of_absurd_size_is_refused_from_the_first_upload_on(tmp_path, factor, caplog):
    with Live(tmp_path) as server:
        base = decoded(server.model("absurd"))
        before = server.engine.state
        upload = torch.cat([factor * base[:P], base[P:]])
        response = server.update(wire.encode_model(upload, LAYOUT), "absurd", 0)
        assert torch.equal(server.engine.state.cluster_models, before.cluster_models)
        head = wire.ReplyHead.from_headers(response.headers)
        assert head.outcome == "rejected"
        assert "far from every cluster" in head.detail
        assert server.store.entries(0)[0].verdict.seen[1] is None
        honest_work(server)
