"""The core agrees with a second implementation, written from the paper in loops over floats."""

import random
import warnings
from collections import Counter

import pytest
import torch

from cdfl.core import NEWCOMER, Settings, Upload, initial_state, server_update

from .naive import Server
from .toy import Proxy

SERVERS, UPLOADS = 250, 4  # a thousand inputs


def settings(rng):
    """The same random settings in the paper's words and in ours."""
    c1 = rng.choice([0.0, 0.5, 0.9, 1.0, rng.random()])
    c2 = rng.choice([0.0, 1 - c1, (1 - c1) * rng.random()])
    numeric = [0.0, 1.0, 8.0, 40.0, 30 * rng.random()]
    bars = [rng.choice(["min", "min", *numeric]) for _ in range(3)]
    s = {
        "c1": c1,
        "c2": c2,
        "A": tuple(rng.choice([1, 3, 7, 15 * rng.random() + 0.1]) for _ in range(rng.choice([1, 1, 2, 3]))),
        "l_bar": bars[0],
        "d1_bar": bars[1],
        "d2_bar": bars[2],
        "beta_0": rng.choice([0.025, 0.3, 1.0, 0.0, rng.random()]),
        "beta_1bar": rng.choice(["ave", "ave", 0.0, 1.0, rng.random()]),
        "a": rng.choice([0.0, 10.0, rng.random()]),
        "b": rng.choice([0, 1, 5, 4 * rng.random()]),
        "tau_0": rng.choice([None, None, 0, 2, 5]),
        "hinge": rng.choice(["paper", "continuous"]),
        "e_k": rng.choice(["before", "after"]),
        "reply": rng.choice(["all", "moved"]),
        "step": rng.choice(["towards", "along"]),
        "measures": rng.choice(["plain", "relative"]),
    }
    ours = Settings(
        loss_weight=s["c1"],
        gap_weight=s["c2"],
        sharpness=s["A"],
        loss_bar=s["l_bar"],
        gap_bar=s["d1_bar"],
        distance_bar=s["d2_bar"],
        base_rate=s["beta_0"],
        rate_floor="mean" if s["beta_1bar"] == "ave" else s["beta_1bar"],
        staleness_slope=s["a"],
        staleness_grace=s["b"],
        max_staleness=s["tau_0"],
        staleness_hinge=s["hinge"],
        cluster_epochs_set=s["e_k"],
        reply_clusters=s["reply"],
        cluster_step=s["step"],
        measures=s["measures"],
    )
    return s, ours


def close(found, expected):
    assert torch.as_tensor(found).flatten().tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def flat(rows):
    return [value for row in rows for value in row]


@pytest.mark.parametrize("seed", range(5))
def test_the_core_agrees_with_the_naive_server(seed):
    rng = random.Random(seed)  # noqa: S311
    seen = Counter()
    for _ in range(SERVERS // 5):
        num_clusters, size = rng.randint(1, 6), rng.randint(1, 4)
        # Whole numbers make ties, zeros and sums that cancel.
        draw = rng.choice([lambda: float(rng.randint(-2, 2)), lambda: rng.gauss(0, 3)])

        def vector(draw=draw, size=size):
            return [draw() for _ in range(size)]

        centres = [vector() for _ in range(num_clusters)]
        start = [vector() for _ in range(num_clusters)]
        if rng.random() < 0.2:  # clusters that are all the same
            centres, start = [centres[0]] * num_clusters, [start[0]] * num_clusters

        def loss(model, k, centres=centres):
            return sum((a - b) ** 2 for a, b in zip(model, centres[k], strict=True))

        printed, ours = settings(rng)
        naive = Server(start, loss, **printed)
        proxy = Proxy(torch.tensor(centres, dtype=torch.float64))
        state = initial_state(torch.tensor(start, dtype=torch.float64), proxy)
        remembered = {}
        naive.t = naive.t + (skip := rng.choice([0, 6]))  # so that the first upload can be old
        state = state.replace(epoch=skip)
        for _ in range(UPLOADS):
            client, v, tau = rng.randint(0, 2), vector(), rng.randint(0, naive.t)
            began = rng.choice([None, vector()])  # the model that it was trained from, if known
            u, alpha, beta, deprecated = naive.receive(client, v, tau, began)
            base_model = None if began is None else torch.tensor(began, dtype=torch.float64)
            upload = Upload(torch.tensor(v, dtype=torch.float64), tau, client, base_model=base_model)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                state, reply = server_update(state, upload, ours, proxy, remembered.get(client, NEWCOMER))
            remembered[client] = reply.client

            close(reply.mixture, alpha)
            close(reply.rates, beta)
            close(reply.personal_model, u)
            close(state.cluster_models, flat(naive.w))
            close(state.cluster_losses, [loss(model, k) for k, model in enumerate(naive.w)])
            close(
                state.estimator_memory if len(state.estimator_memory) else torch.zeros(3, num_clusters),
                flat(naive.means),
            )
            assert state.cluster_epochs.tolist() == naive.e
            assert state.epoch == reply.epoch == naive.t
            assert reply.staleness == naive.t - tau
            assert reply.outcome == ("deprecated" if deprecated else "applied")
            assert len(caught) == naive.below_bar

            seen["uploads"] += 1
            seen["relative"] += not deprecated and naive.means[0][0] > 0
            seen["deprecated"] += deprecated
            seen["one cluster"] += num_clusters == 1
            seen["below the bar"] += naive.below_bar > 0
            seen["damped"] += not deprecated and max(beta) < printed["beta_0"]
            seen["some stand still"] += not deprecated and 0.0 in beta and max(beta) > 0
            seen["uniform"] += not deprecated and num_clusters > 1 and max(alpha) - min(alpha) < 1e-12
    assert seen["uploads"] == SERVERS * UPLOADS // 5
    assert min(seen.values()) >= 5, f"a case is rare: {seen}"
