"""A server in a `with` block."""

import httpx
import pytest
import torch

import cdfl
from cdfl.core import flatten

from .problems import QUICK, lines

pytestmark = pytest.mark.slow


def test_simulate_then_serve_the_same_problem():
    problem = lines()
    simulated = cdfl.run(problem, num_clients=2, num_uploads=2, **QUICK)
    with cdfl.serve(problem, **QUICK) as server:
        assert repr(server).endswith(", epoch 0)")
        assert list(server.cluster_models) == simulated.clusters
        with server.client("car-7") as client:
            assert client.join().outcome == "joined"
            federation = problem.federation()
            reply = client.update(federation.ready(federation.draw(0, 0).train))
            assert (reply.outcome, server.epoch) == ("applied", 1)
    assert repr(server).endswith(", closed)")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/healthz")


def test_a_store_is_kept(tmp_path):
    with cdfl.serve(lines(), store=tmp_path / "store", **QUICK) as server, server.client("a") as client:
        client.update((torch.zeros(4, 2), torch.zeros(4, 1)))
        models = {name: flatten(model) for name, model in server.cluster_models.items()}
    server = cdfl.serve(lines(), store=tmp_path / "store", **QUICK)
    try:
        assert server.epoch == 1
        assert all(torch.equal(flatten(model), models[name]) for name, model in server.cluster_models.items())
    finally:
        server.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"host": "0.0.0.0"}, "cdfl.serve has no tokens, so it listens on 127.0.0.1 only"),  # noqa: S104
        ({"prot": 1}, r"there is no option or setting 'prot'; did you mean port\?"),
    ],
)
def test_mistakes(options, words):
    with pytest.raises(ValueError, match=words):
        cdfl.serve(lines(), **options)


def test_what_is_checked_before_anything_is_trained():
    wrong = lines(model=lambda: torch.nn.Linear(3, 1))
    with pytest.raises(ValueError, match=r"`model\(inputs\)` on cluster 'up' with a tensor of shape \[15, 2\]"):
        cdfl.serve(wrong)
