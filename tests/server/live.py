"""A real server on loopback, inside this process: sockets, routes, threads and store."""

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cdfl import wire
from cdfl.core import Layout, Settings
from cdfl.data import Dataset, Datasets, Sizes
from cdfl.problems import Problem, ProblemInstance
from cdfl.server.auth import Access, Tokens
from cdfl.server.engine_startup import open_engine
from cdfl.server.limits import Limits
from cdfl.server.listening_socket import take_port
from cdfl.server.readiness import Starting
from cdfl.server.store import Store
from cdfl.server.store_records import Retention
from cdfl.server.tls import Tls
from cdfl.server.web_server import make_server

NUM_CLUSTERS = 3
FAST = Limits(requests_per_second=1e6, burst=10**6)


def tiny_problem(**changes: Any) -> Problem:
    """Three clusters that lie in different directions; a network of 8 parameters and 4 statistics."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    sets = [[data(cluster, 20) for cluster in range(NUM_CLUSTERS)] for _ in range(2)]
    parts: dict[str, Any] = {
        "model": model,
        "loss": cross_entropy,
        "clusters": of_server(sets[1], sets[0]),
        "sizes": Sizes(pretraining=20, proxy=20),
        "settings": Settings(shared_epochs=2, separate_epochs=20, batch_size=8, learning_rate=0.03, reply="model"),
    }
    return Problem(**(parts | changes))


def of_server(pretraining: list[Any], proxy: list[Any], num_classes: int | None = 2) -> Datasets:
    """Clusters whose samples are all the server's: some to pre-train with, others to recognise uploads by."""
    pairs = enumerate(zip(pretraining, proxy, strict=True))
    return Datasets(tuple(Dataset(f"cluster {number}", *one, *two, num_classes) for number, (one, two) in pairs))


def tiny_instance(**changes: Any) -> ProblemInstance:
    """The problem, read."""
    return ProblemInstance.of(tiny_problem(**changes))


def data(cluster: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(count, 2)
    angle = torch.tensor(2.0 * cluster)
    return inputs, (inputs @ torch.stack([angle.cos(), angle.sin()]) > 0).long()


LAYOUT = Layout.of(tiny_instance().model)


class Live:
    """`with Live(folder) as server:` serves until the block ends."""

    def __init__(
        self,
        place: Path | str,
        instance: ProblemInstance | None = None,
        *,
        blobs: Path | None = None,
        limits: Limits = FAST,
        is_open: bool = True,
        operator_token: str | None = None,
        retention: Retention | None = None,
        tls: tuple[Path, Path] | None = None,  # certificate and key
        shared: bool = False,  # one of several front ends
        **options: Any,
    ) -> None:
        self.store = Store.open(place, blobs, retention, shared=shared)
        try:
            self.engine = open_engine(instance or tiny_instance(), self.store, limits=limits, **options)
        except BaseException:
            self.store.close()
            raise
        self.access = Access(Tokens(self.store.database), is_open=is_open, operator_token=operator_token)
        self.server = make_server(limits, self.engine.metrics, Starting(), Tls(*tls) if tls else None)
        self.server.open(self.engine, self.access)
        self._taken = take_port("127.0.0.1", 0)
        self._thread = threading.Thread(target=self.server.run, args=([self._taken],))

    def __enter__(self) -> "Live":
        self._thread.start()
        assert self.server.listens.wait(20)
        self.url = self.server.url
        self.port = int(self.url.rpartition(":")[2])
        self.http = httpx.Client(base_url=self.url, timeout=30, verify=False)  # noqa: S501  where it is https
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: TracebackType | BaseException | None) -> None:
        self.http.close()
        self.server.should_exit = True
        self._thread.join()
        self._taken.close()
        self.engine.close()
        self.store.close()

    def model(self, client_id: str = "car-7", **options: Any) -> httpx.Response:
        return self.http.get("/v1/model", headers={wire.CLIENT: client_id} | options.pop("headers", {}), **options)

    def update(
        self, body: bytes, client_id: str = "car-7", base_epoch: Any = 0, key: str = "key-1", **options: Any
    ) -> httpx.Response:
        headers = {
            wire.CLIENT: client_id,
            wire.BASE_EPOCH: str(base_epoch),
            wire.KEY: key,
            "Content-Type": wire.CONTENT_TYPE,
        }
        headers |= options.pop("headers", {})
        return self.http.post("/v1/updates", content=body, headers=headers, **options)

    def refused(self, response: httpx.Response) -> tuple[int, str]:
        """Status and sentence of a refusal, which must be one sentence."""
        detail = response.json()["detail"]
        assert isinstance(detail, str)
        assert 10 < len(detail) < 300
        assert "Traceback" not in detail
        return response.status_code, detail


def near(server: Live, cluster: int, seed: int = 0, size: float = 0.01) -> bytes:
    """An honest upload: a model near one of the clusters."""
    noise = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(seed))
    noise[LAYOUT.num_parameters :] = 0  # a variance must not become negative
    return wire.encode_model(server.engine.state.cluster_models[cluster] + size * noise, LAYOUT)


def decoded(response: httpx.Response) -> torch.Tensor:
    assert response.status_code == 200, response.text
    return wire.decode_model(response.content, LAYOUT)


def wait_for(condition, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
