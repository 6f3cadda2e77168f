"""Models are evaluated on a real cluster, a head and a second node; the server goes on without it."""

import os
import signal
import threading
import time
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks.fleet.measure import measure
from benchmarks.fleet.server import Server
from benchmarks.processes import family
from benchmarks.ray_cluster import RayCluster
from cdfl.cli.init import EXAMPLE
from cdfl.core import ProxySets, flatten
from cdfl.core.guard import TRIAL_SAMPLES
from cdfl.on_ray import RayEngine
from cdfl.server.on_ray import evaluation
from cdfl.server.on_ray.evaluation import evaluators_on_ray
from cdfl.server.on_ray.worker import Order

from ..live import NUM_CLUSTERS, Live, near, tiny_instance, wait_for

pytestmark = pytest.mark.ray
IDLE = 2.0
SLOW = 0.2  # seconds


@pytest.fixture(scope="module")
def cluster():
    with RayCluster(2, 2) as made:
        yield made


def slow_loss(outputs, targets):
    """A loss that takes its time, and that no model with infinite outputs has."""
    if not outputs.isfinite().all():
        raise ZeroDivisionError("an output is infinite")
    time.sleep(SLOW / NUM_CLUSTERS)
    return cross_entropy(outputs, targets)


def some_models(instance, number):
    return [flatten(instance.model) + 0.01 * step for step in range(number)]


def workers(cluster):
    """The processes that evaluate on this cluster."""
    found = []
    for pid in {pid for node in cluster.nodes for pid in family(node.pid)}:
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::EvaluationWorker"):
                found.append(pid)
    return found


def start_workers(evaluate, models):
    """Evaluate until the workers have started: before that the models are evaluated here."""
    orders = [Order(0, model.numpy(), [0]) for model in models]
    wait_for(lambda: all(map(len, evaluate.driver.evaluate(orders))), 60)


@contextmanager
def nothing_here():
    """Make evaluation in this process fail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProxySets, "__call__", None)
        yield


def upload(server, number):
    """A new client takes part."""
    name, epoch = f"car-{number}", server.engine.state.epoch
    server.model(name)
    answer = server.update(near(server, number % 3, number), name, epoch, f"key-{number}")
    assert answer.status_code == 200, answer.text


def test_losses_are_those_of_the_server_to_the_bit(cluster):
    instance = tiny_instance()
    models, here = some_models(instance, 5), instance.evaluator()
    each, own = torch.stack(models), torch.tensor([2, 0, 1, 1, 0])
    tried = torch.stack(models[:2]).repeat_interleave(NUM_CLUSTERS, dim=0)
    everywhere = torch.arange(NUM_CLUSTERS).repeat(2)
    with evaluators_on_ray(instance, RayEngine(cluster.address, 2)) as used:
        for evaluate in (used.uploads, used.clusters):
            start_workers(evaluate, models)
        with nothing_here():
            losses = used.uploads.of_each(models)
            found, tries = used.clusters(each, own), used.trial(tried, everywhere)
    assert torch.equal(losses, here.of_each(models))
    assert torch.equal(found, here(each, own))
    assert torch.equal(tries, instance.evaluator(TRIAL_SAMPLES)(tried, everywhere))


def test_a_worker_is_killed_while_it_evaluates(cluster):
    instance = tiny_instance(loss=slow_loss)
    models = some_models(instance, 6)
    with evaluators_on_ray(instance, RayEngine(cluster.address, 2)) as used:
        start_workers(used.uploads, models)
        wait_for(lambda: len(workers(cluster)) == 2, 60)
        (victim, *_) = workers(cluster)
        killer = threading.Timer(2 * SLOW, os.kill, (victim, signal.SIGKILL))
        killer.start()
        with nothing_here():
            found = used.uploads.of_each(models)
        killer.join()
        assert victim not in workers(cluster)
        used.uploads.of_each(models)
        wait_for(lambda: len(workers(cluster)) == 2, 60)
    assert torch.equal(found, instance.evaluator().of_each(models))


def test_workers_come_with_the_load_and_go_without(cluster):
    instance = tiny_instance(loss=slow_loss)
    models = some_models(instance, 6)
    with evaluators_on_ray(instance, RayEngine(cluster.address, 3), idle_seconds=IDLE) as used:
        assert workers(cluster) == []
        start_workers(used.uploads, models[:1])
        assert len(workers(cluster)) == 1  # one model at a time needs one
        used.uploads.of_each(models)
        used.uploads.of_each(models)
        wait_for(lambda: len(workers(cluster)) == 3, 60)
        begun = time.monotonic()
        wait_for(lambda: workers(cluster) == [], 60)
        assert time.monotonic() - begun < 30
        start_workers(used.uploads, models)


def test_a_model_that_cannot_be_evaluated_raises_here(cluster):
    instance = tiny_instance(loss=slow_loss)
    models = some_models(instance, 2)
    with evaluators_on_ray(instance, RayEngine(cluster.address, 1)) as used:
        start_workers(used.uploads, models)
        before = workers(cluster)
        with pytest.raises(ZeroDivisionError, match="an output is infinite"):
            used.uploads.of_each([models[0], torch.full_like(models[1], torch.inf)])
        assert workers(cluster) == before


def test_a_server_goes_on_while_the_cluster_is_away(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(evaluation, "SECONDS_TO_RETRY", 1.0)
    instance = tiny_instance()
    with (
        RayCluster(1, 1) as cluster,
        evaluators_on_ray(instance, RayEngine(cluster.address)) as used,
        Live(tmp_path / "store", instance, evaluators=used) as server,
    ):
        numbers = count()

        def upload_until(condition):
            upload(server, next(numbers))
            return condition()

        wait_for(lambda: upload_until(lambda: workers(cluster)), 60)
        assert "cannot be used" not in caplog.text
        for node in reversed(list(cluster.nodes)):
            cluster.stop(node, kill=True)
        wait_for(lambda: upload_until(lambda: caplog.text.count("cannot be used") == 2), 60)
        assert "it is gone; uploads are evaluated here meanwhile" in caplog.text
        assert "it is gone; clusters are evaluated here meanwhile" in caplog.text
        cluster.add(1)
        wait_for(lambda: upload_until(lambda: workers(cluster)), 60)
        assert caplog.text.count("cannot be used") == 2
        assert "the Ray cluster can be used again" in caplog.text


def test_cdfl_serve(cluster, tmp_path):
    quick = ("--set", "shared_epochs=1", "--set", "separate_epochs=1", "--max-rate", "1000")
    options = ("--evaluate-on-ray", "--ray-address", cluster.address, "--ray-workers", "1")
    with Server(EXAMPLE, tmp_path, 2, *quick, *options) as server:
        assert sum(measure(server, 2, 40)["outcomes"].values()) == 40
        wait_for(lambda: workers(cluster), 60)
    assert "cannot be used" not in server.said
    wait_for(lambda: workers(cluster) == [])
