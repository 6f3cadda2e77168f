"""Numbers about a run, worked out by hand; costs of every algorithm, for one upload."""

import re
from collections import Counter
from dataclasses import dataclass, replace
from math import log

import pytest
import torch

from cdfl.algorithms import ALGORITHMS
from cdfl.core import flatten
from cdfl.run_events import Clusters, Diverged, Started, Uploaded, from_json, only, to_json
from cdfl.sim.event_builders import divergence, shortfall, staleness_histogram, summarize
from cdfl.sim.time_models import Devices, Span, Tick
from cdfl.wire import encode_model

from .world import SETTINGS, SIZES, assert_same_events, make_instance, run_fast, run_plain

pytestmark = pytest.mark.slow


def test_divergence_by_hand():
    # estimate (1, 0) smoothed: (1.0001, .0001) / 1.0002
    assert divergence([0.5, 0.5], [1.0, 0.0]) == pytest.approx(
        0.5 * log(0.5 * 1.0002 / 1.0001) + 0.5 * log(0.5 * 1.0002 / 0.0001)
    )
    assert divergence([1.0, 0.0], [1.0, 0.0]) == pytest.approx(log(1.0002 / 1.0001))  # 0 log 0 is 0
    assert divergence([0.25] * 4, [0.25] * 4) == 0.0
    assert divergence([1.0], [1.0]) == 0.0


def test_staleness_in_bins():
    assert staleness_histogram([1, 1, 2, 5, 12], width=5) == {"0-4": 3, "5-9": 1, "10-14": 1}
    assert staleness_histogram([3, 4], width=1) == {"3-3": 1, "4-4": 1}
    assert staleness_histogram([], width=5) == {}


METRICS = [{"name": "accuracy", "higher_is_better": True}]
UPLOAD = Uploaded(
    epoch=1, time=1.0, client=0, update=0, samples=10, staleness=1, outcome="applied", held=0.3, before=0.2,
    after=0.4, served=0.7, served_held=0.35, true_mixture=[0.5, 0.5], mixture=[0.5, 0.5], divergence=0.1,
    rates=[0.3, 0.3], bytes_up=10, bytes_down=20, client_flops=300, server_flops=5, trained=50,
)  # fmt: skip


def test_a_summary_by_hand():
    events = [
        Started("s", "a", 0, 16, 2, 4, 10, METRICS, ["a", "b"]),
        Clusters(0, [0.0, 0.1]),
        UPLOAD,
        replace(UPLOAD, epoch=2, client=1, before=0.6, after=0.8, divergence=0.3, staleness=2, outcome="deprecated"),
        Diverged(3.0, 5),
        replace(UPLOAD, epoch=3, client=0, before=0.4, after=0.6, divergence=None, staleness=3),
        Clusters(3, [0.5, 0.7]),
    ]
    end = summarize(events, num_clients=16)
    assert (end.uploads, end.diverged) == (3, 1)
    assert end.before == pytest.approx(0.5)  # the last of client 0 and of client 1
    assert end.after == pytest.approx(0.7)
    assert end.cluster == pytest.approx(0.6)
    assert end.divergence == pytest.approx(0.3)
    assert end.deprecated_share == pytest.approx(1 / 3)
    assert end.staleness == {"0-1": 1, "2-3": 2}
    assert (end.bytes_up, end.bytes_down, end.client_flops, end.server_flops) == (30, 60, 900, 15)
    assert end.trained == 150


def test_a_summary_of_nothing():
    end = summarize([], num_clients=4)
    assert (end.uploads, end.before, end.after, end.divergence, end.staleness) == (0, None, None, None, {})


@dataclass(frozen=True)
class Never:
    def decide(self, memory, turn):
        return memory, False


@dataclass(frozen=True)
class Rarely:
    """Two clients upload, once each."""

    def decide(self, memory, turn):
        return (1.0,), not memory and turn.chance < 0.2


class FewTurns:
    def ticks(self, num_clients, rng):
        yield Tick(0.0, 0, "join")
        yield Tick(1.0, 0)


LEAVING = Devices(stays=Span("constant", 2.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"policy": Never()},
            r"0 of 40 uploads were made: the policy never uploaded in 2012 turns, and a run ends after about "
            "50 turns for each planned upload",
        ),
        ({"policy": Rarely()}, r"\d of 40 uploads were made: the policy uploaded \d times in 2012 turns"),
        ({"time_model": LEAVING}, r"\d+ of 40 uploads were made: all clients have left"),
        ({"time_model": FewTurns()}, "1 of 40 uploads were made: the time model had no more ticks"),
    ],
    ids=["never", "rarely", "left", "over"],
)
def test_a_run_with_fewer_uploads_says_why(options, message):
    fast, plain = run_fast(make_instance(), **options), run_plain(make_instance(), **options)
    end = fast.events[-1]
    assert re.match(message, end.shortfall), end.shortfall
    assert from_json(to_json(end)) == end
    assert (end.after is None) == (end.uploads == 0)
    assert_same_events(fast.events, plain.events)


def test_diverged_uploads_are_missing_ones():
    told = [Clusters(0, [0.5]), *[UPLOAD] * 37, *[Diverged(3.0, 5)] * 3]
    end = "37 of 40 uploads were made: trainings that diverged and were refused: 3"
    assert shortfall(make_instance(), told, Counter(join=12, turn=40)) == end
    assert shortfall(make_instance(), told[:-1], Counter(join=12, turn=39)).endswith("the time model had no more ticks")
    assert shortfall(make_instance(), [UPLOAD] * 40, Counter(join=12, turn=40)) == ""


def test_a_whole_run_says_nothing():
    end = run_fast(make_instance()).events[-1]
    assert end.shortfall == ""
    assert "shortfall" not in to_json(end)


# tiny: 3 filters of 9 weights at 36 places, then 27 x 10 weights; a multiplication and an addition each
CONVOLUTION, LINEAR = 2 * 3 * 9 * 36, 2 * 27 * 10
FORWARD = CONVOLUTION + LINEAR
# back: the gradient of the weights of both, and of the inputs of the second only
TRAINING = FORWARD + CONVOLUTION + 2 * LINEAR
# 3 x 9 + 3 and 27 x 10 + 10 numbers of 8 bytes
BYTES = 8 * (30 + 280)
DOWN = {"fedsoft": 4, "ifca": 4, "local-keep": 0, "local": 0, "frozen": 0}  # models; the others send one


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "fedem"])  # its network has K components
def test_the_costs_of_one_upload_by_hand(name):
    instance = make_instance(SETTINGS.replace(local_epochs=2), num_uploads=1, sizes=replace(SIZES, low=18, high=18))
    assert (instance.flops, instance.model_bytes) == ((FORWARD, TRAINING), BYTES)
    (upload,) = only(run_plain(instance, name).events, Uploaded)
    assert upload.samples == 18
    trained = 5 * 8  # two passes of 18, the last batch filled up
    down = DOWN.get(name, 1)
    assert upload.bytes_up == (BYTES if down else 0)
    assert upload.bytes_down == down * BYTES
    votes = 4 * 18 if name in ("fedsoft", "ifca") else 0  # every sample through every model it was sent
    assert upload.trained == trained
    assert upload.client_flops == trained * TRAINING + votes * FORWARD
    moved = sum(rate > 0 for rate in upload.rates)
    proxies = (4 + moved) * 12 if name == "cdfl" else 0  # the upload on all sets, what moved on its own
    assert upload.server_flops == proxies * FORWARD
    assert name != "cdfl" or 1 <= moved < 4
    assert_same_events(run_fast(instance, name).events, run_plain(instance, name).events)


@pytest.mark.parametrize("model", ["tiny", "normed", "dropping", "frozen", "small-cnn"])
def test_counting_changes_neither_network_nor_chance(model):
    instance = make_instance(model=model)
    before, chance = flatten(instance.model), torch.get_rng_state()
    forward, training = instance.flops
    assert 0 < forward < training < 3 * forward  # the first layer has no gradient of its inputs
    assert torch.equal(flatten(instance.model), before)
    assert torch.equal(torch.get_rng_state(), chance)


@pytest.mark.parametrize("model", ["small-cnn", "normed"])
def test_the_bytes_of_a_model_are_those_of_its_encoding(model):
    instance = make_instance(model=model, dtype=torch.float32)
    body = encode_model(flatten(instance.model), instance.layout)
    header = 8 + int.from_bytes(body[:8], "little")  # of safetensors: the names and shapes, which are not counted
    assert len(body) == header + instance.model_bytes
    (upload,) = only(run_plain(make_instance(model=model, dtype=torch.float32, num_uploads=1)).events, Uploaded)
    assert upload.bytes_up == upload.bytes_down == len(body) - header


def test_too_old_an_upload_costs_the_server_nothing():
    instance = make_instance(SETTINGS.replace(max_staleness=5))
    uploads = only(run_fast(instance).events, Uploaded)
    old = [upload for upload in uploads if upload.staleness > 5]
    assert old
    for upload in uploads:
        deprecated = upload.outcome == "deprecated"
        assert deprecated == (upload.staleness > 5)
        assert (upload.server_flops == 0) == deprecated
        assert any(upload.rates) != deprecated
        assert upload.bytes_down == BYTES  # it still gets a model


def test_what_an_upload_tells():
    instance = make_instance()
    uploads = only(run_fast(instance).events, Uploaded)
    received = dict.fromkeys(range(12), 0)
    counts = dict.fromkeys(range(12), 0)
    for number, upload in enumerate(uploads, start=1):
        assert upload.epoch == number
        assert upload.staleness == number - received[upload.client]
        assert upload.update == counts[upload.client]
        draw = instance.federation.draw(upload.client, upload.update)
        assert upload.true_mixture == draw.true_mixture.tolist()
        assert upload.samples == len(draw.train)
        assert upload.divergence == divergence(upload.true_mixture, upload.mixture)
        assert sum(upload.mixture) == pytest.approx(1)
        received[upload.client], counts[upload.client] = number, counts[upload.client] + 1
    clusters = only(run_fast(instance).events, Clusters)
    assert [event.epoch for event in clusters] == [0, 12, 24, 36, 40]


def test_a_client_held_its_last_reply_when_new_data_came():
    instance = make_instance()
    uploads = only(run_plain(instance, "local-keep").events, Uploaded)
    first = uploads[0]
    start = instance.pretrain().mean(dim=0)
    assert first.held == instance.scores(start, instance.federation.draw(first.client, 0).test)[0]
    # Whoever trains anew each time still held what it had trained before, not the common start.
    again = only(run_plain(make_instance(), "local").events, Uploaded)
    second = next(upload for upload in again if upload.update == 1)
    assert second.held != instance.scores(start, instance.federation.draw(second.client, 1).test)[0]
