"""Poisoned uploads, against a real server: what they move, and what their clients are told."""

import pytest
import torch

from cdfl import wire
from cdfl.core import flatten
from cdfl.server.run import MAX_HARM

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
    """A few clients that make it clear what is usual."""
    if server.session.state.epoch == 0:
        for number in range(8):
            server.model(f"honest-{number}")
            body = near(server, number % 3, seed=number, size=0.1)
            assert (
                server.update(body, f"honest-{number}", server.session.state.epoch).headers[wire.OUTCOME] == "applied"
            )


def poisoned(server: Live, attack: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What an attacker was given and what it makes of it."""
    base = decoded(server.model(attack))
    honest = wire.decode_model(near(server, 0, size=0.1), LAYOUT)
    return base, torch.cat([ATTACKS[attack](honest[:P], base[:P]), base[P:]])


@pytest.mark.parametrize("attack", ATTACKS)
def test_poison_moves_nothing_and_is_answered(strict, attack):
    honest_work(strict)
    _, upload = poisoned(strict, attack)
    before = strict.session.state
    response = strict.update(wire.encode_model(upload, LAYOUT), attack, before.epoch)
    head = wire.ReplyHead.from_headers(response.headers)
    assert (head.outcome, head.epoch) == ("rejected", before.epoch + 1)
    assert head.rates == (0, 0, 0)
    assert torch.equal(strict.session.state.cluster_models, before.cluster_models)
    weights = torch.tensor(head.mixture, dtype=torch.float64).float()  # its estimate, over clusters that stayed
    torch.testing.assert_close(decoded(response), weights @ before.cluster_models)
    entry = strict.store.entries(before.epoch)[0]
    assert (entry.outcome, entry.upload) == ("rejected", None)
    assert entry.harm > MAX_HARM * before.recent_harms.median()


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_server_that_trusts_everybody_is_moved(trusting, attack):
    honest_work(trusting)
    _, upload = poisoned(trusting, attack)
    before = trusting.session.state
    response = trusting.update(wire.encode_model(upload, LAYOUT), attack, before.epoch)
    if response.status_code == 200:  # else it was so absurd that a cluster would have no finite loss
        assert response.headers[wire.OUTCOME] == "applied"
        assert not torch.equal(trusting.session.state.cluster_models, before.cluster_models)
    else:
        assert trusting.refused(response)[0] == 422


def test_the_memory_of_what_is_usual_survives_a_restart(tmp_path):
    with Live(tmp_path) as server:
        honest_work(server)
        harms = server.session.state.recent_harms
        server.session.chores.finish = lambda state: None  # a crash: no snapshot at the end
    with Live(tmp_path) as server:
        assert server.session.state.recent_harms.tolist() == harms.tolist()
        assert len(harms) == 3 + 8  # the clusters' own guess, and eight uploads


def test_clusters_that_start_alike_refuse_nobody(tmp_path):
    """All distances are 0 then: there is nothing to compare with until uploads have come."""
    setup = tiny_setup(pretraining_sets=None)
    with Live(tmp_path, setup) as server:
        start = flatten(setup.model)
        for number in range(4):
            server.model(f"c{number}")
            noise = torch.zeros(LAYOUT.size)
            noise[:P] = 0.1 * torch.randn(P)
            response = server.update(wire.encode_model(start + noise, LAYOUT), f"c{number}", number)
            assert response.headers[wire.OUTCOME] == "applied"
