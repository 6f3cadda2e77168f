"""Clipping, noise and epsilon."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cdfl import wire
from cdfl.client import Privacy
from cdfl.core import flatten

from .faults import BadNetwork
from .toy import make_data


def test_a_large_change_is_clipped_and_a_small_one_is_not():
    quiet = Privacy(clip=1.0, noise=1e-12)
    start = torch.tensor([1.0, 2.0, 5.0])
    private = quiet.apply(start + torch.tensor([3.0, 4.0, 9.0]), start, num_parameters=2)
    assert private.tolist() == pytest.approx([1.6, 2.8, 5.0])  # a fifth of the way; the buffer as it came
    private = quiet.apply(start + torch.tensor([0.3, 0.4, 9.0]), start, num_parameters=2)
    assert private.tolist() == pytest.approx([1.3, 2.4, 5.0])
    assert quiet.apply(start, start, 2).tolist() == pytest.approx(start.tolist())


def test_the_noise_has_the_given_deviation():
    start = torch.zeros(50_000)
    noise = Privacy(clip=0.5, noise=3.0).apply(start, start, len(start), np.random.default_rng(0))
    assert float(noise.std()) == pytest.approx(1.5, rel=0.02)
    assert abs(float(noise.mean())) < 0.03


def test_the_noise_is_drawn_each_time():
    start = torch.zeros(4)
    privacy = Privacy(clip=1.0, noise=1.0)
    assert not torch.equal(privacy.apply(start, start, 4), privacy.apply(start, start, 4))


def gaussian_delta(epsilon, shift):
    """By definition: the largest P(S) - e^epsilon Q(S) of two unit Gaussians `shift` apart, as a sum."""
    x = np.linspace(-40, 40, 800_001)
    p = np.exp(-((x - shift) ** 2) / 2) / math.sqrt(2 * math.pi)
    q = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0]))


@pytest.mark.parametrize("noise", [1.0, 2.0, 5.0, 20.0])
@pytest.mark.parametrize("uploads", [1, 10])
def test_epsilon_matches_the_definition(noise, uploads):
    delta = 1e-3
    epsilon = Privacy(clip=7.0, noise=noise).epsilon(delta, uploads)
    shift = 2 * math.sqrt(uploads) / noise
    assert gaussian_delta(epsilon, shift) == pytest.approx(delta, rel=1e-3)


@settings(max_examples=50, deadline=None)
@given(noise=st.floats(0.3, 100), delta=st.floats(1e-12, 0.1), uploads=st.integers(1, 1000))
def test_epsilon_grows_with_uploads_and_falls_with_noise(noise, delta, uploads):
    epsilon = Privacy(1.0, noise).epsilon(delta, uploads)
    assert 0 <= epsilon < math.inf
    assert Privacy(1.0, noise).epsilon(delta, uploads + 1) >= epsilon
    assert Privacy(1.0, noise * 1.1).epsilon(delta, uploads) <= epsilon
    # the textbook bound (Dwork and Roth, theorem A.1), valid for epsilon < 1, is never better
    shift = 2 * math.sqrt(uploads) / noise
    textbook = shift * math.sqrt(2 * math.log(1.25 / delta))
    assert textbook >= 1 or epsilon <= textbook


def test_no_uploads_spend_no_privacy():
    assert Privacy(1.0, 1.0).epsilon(1e-5, uploads=0) == 0
    assert Privacy(1.0, 100.0).epsilon(delta=0.1) == 0  # so much noise that delta covers it all


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clip": 0.0, "noise": 1.0}, "clip is 0.0; expected a number above 0"),
        ({"clip": 1.0, "noise": -1.0}, "noise is -1.0"),
        ({"clip": math.inf, "noise": 1.0}, "clip is inf"),
    ],
)
def test_invalid_clip_and_noise_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Privacy(**settings)


def test_an_invalid_delta_is_refused():
    with pytest.raises(ValueError, match="delta is 1"):
        Privacy(1.0, 1.0).epsilon(delta=1)


@pytest.mark.parametrize("uploads", [-1, 2.5, math.nan, "3", True])
def test_an_invalid_number_of_uploads_is_refused(uploads):
    with pytest.raises(ValueError, match=rf"uploads is {uploads!r}; expected a whole number, 0 or more"):
        Privacy(1.0, 1.0).epsilon(1e-5, uploads)


def test_an_upload_is_clipped_and_its_buffers_are_unchanged(server, make_client):
    client = make_client(privacy=Privacy(clip=0.1, noise=0.01))
    client.join()
    received = flatten(client.model)
    assert client.update(make_data()).outcome == "applied"
    sent = wire.decode_model(server.requests[-1].content, server.layout)
    way = sent - received
    parameters = server.layout.num_parameters
    assert 0 < float(way[:parameters].norm()) <= 0.1 + 0.001 * 10 * math.sqrt(parameters)
    assert torch.equal(sent[parameters:], received[parameters:])


def test_a_retry_sends_the_same_noise(server, make_client):
    """Else the server could average the noise away."""
    client = make_client(BadNetwork(server.handle, ["fine", "reply lost", "busy"]), privacy=Privacy(0.1, 1.0))
    client.join()
    client.update(make_data())
    bodies = {request.content for request in server.requests if request.method == "POST"}
    assert len(bodies) == 1
    assert client.uploads == 1


def test_local_training_continues_without_noise(server, make_client):
    network = BadNetwork(server.handle)
    client = make_client(network, privacy=Privacy(0.1, 50.0))
    client.join()
    received = flatten(client.model)
    network.faults = ["refused"] * 100
    client.update(make_data())
    assert float((client.start_model() - received).norm()) < 1
    assert torch.equal(client.start_model(), flatten(client.model))
