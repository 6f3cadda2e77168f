"""The metrics of a server, for Prometheus."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from torch import Tensor

from cdfl.core import Outcome

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
STAGES = ("receive", "decode", "evaluate", "apply", "commit")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        here = self.registry
        self.uploads = Counter("cdfl_uploads", "Uploads that were answered with a model.", ["outcome"], registry=here)
        self.repeated = Counter("cdfl_uploads_repeated", "Repeated uploads that got their stored reply.", registry=here)
        self.refused = Counter("cdfl_requests_refused", "Requests that were refused.", ["status"], registry=here)
        self.auth_failures = Counter("cdfl_auth_failures", "Requests with no valid token.", registry=here)
        self.damaged = Counter("cdfl_blobs_damaged", "Stored models that are missing or have changed.", registry=here)
        self.joins = Counter("cdfl_joins", "Models sent without an upload.", registry=here)
        self.seconds = Histogram(
            "cdfl_upload_seconds",
            "Seconds of each stage; evaluate and commit are of a group.",
            ["stage"],
            buckets=SECONDS,
            registry=here,
        )
        self.group = Histogram(
            "cdfl_group_size", "Uploads that were committed together.", buckets=(1, 2, 4, 8, 16, 32, 64), registry=here
        )
        self.staleness = Histogram(
            "cdfl_staleness",
            "Epochs between the download and the upload of a client.",
            buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
            registry=here,
        )
        self.clients = Gauge("cdfl_clients", "Clients that are known.", registry=here)
        self.streams = Gauge("cdfl_streams", "Open streams of events.", registry=here)
        self.queue = Gauge("cdfl_queue_depth", "Uploads that wait or are processed.", registry=here)
        self.owner = Gauge("cdfl_owner", "1 if this server applies the uploads, of those on its store.", registry=here)
        self.connections = Gauge("cdfl_connections", "Open connections.", registry=here)
        self.epoch = Gauge("cdfl_epoch", "The server's epoch.", registry=here)
        self.losses = Gauge("cdfl_cluster_loss", "Loss of each cluster on its proxy set.", ["cluster"], registry=here)
        for outcome in get_args(Outcome):
            self.uploads.labels(outcome)
        for stage in STAGES:
            self.seconds.labels(stage)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Measure the time of a stage."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds.labels(stage).observe(time.perf_counter() - begun)

    def show(self, epoch: int, cluster_losses: Tensor) -> None:
        """Set the epoch and the losses of the clusters."""
        self.epoch.set(epoch)
        for cluster, loss in enumerate(cluster_losses.tolist()):
            self.losses.labels(str(cluster)).set(loss)

    def page(self) -> bytes:
        """Return the page that Prometheus reads."""
        return generate_latest(self.registry)
