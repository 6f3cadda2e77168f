"""A machine that leaves, one that joins, and a full object store: the events stay as they are."""

import numpy as np
import pytest

from benchmarks.ray_cluster import MB, RayCluster
from cdfl.on_ray import RayEngine
from cdfl.on_ray.connection import connected
from cdfl.run_events import Uploaded
from cdfl.sim.runner import configure, run_events

from .test_engine import QUICK

pytestmark = pytest.mark.ray
SMALLEST_STORE = 80  # MB; Ray takes no less


def test_a_machine_leaves_and_another_joins(caplog):
    config, told = configure("digits-4", **QUICK), []
    with RayCluster(1, 1) as cluster:
        for event in run_events(config, engine=RayEngine(cluster.address, 2)):
            told.append(event)
            if isinstance(event, Uploaded) and event.epoch == 15:
                cluster.stop(cluster.nodes[1], kill=True)
            if isinstance(event, Uploaded) and event.epoch == 35:
                cluster.add(1)
    assert told == list(run_events(config))
    assert "a worker is lost" in caplog.text


def test_a_full_object_store():
    """Somebody else's objects fill it, so that Ray writes ours to disk."""
    config = configure("digits-4", **QUICK | {"num_uploads": 30})
    with RayCluster(2, store_mb=SMALLEST_STORE) as cluster, connected(RayEngine(cluster.address)) as ray:
        held = [ray.put(np.zeros(10 * MB, dtype=np.uint8)) for _ in range(12)]  # and they stay
        told = list(run_events(config, engine=RayEngine(cluster.address, 2)))
        assert len(held) * 10 > SMALLEST_STORE
    assert told == list(run_events(config))
