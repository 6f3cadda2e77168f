"""Serve a problem from Python: for notebooks, tests and small programs."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from torch import nn

from cdfl.core.settings import SettingValues, with_settings
from cdfl.device import find_device
from cdfl.model_files import module_of
from cdfl.problems import Problem, ProblemInstance
from cdfl.problems.problem_instance import client_network, client_router
from cdfl.scenarios import load_problem

if TYPE_CHECKING:
    from cdfl.client import Client


class Server:
    """A running server. Use it in a `with` block, or `close` it. `cdfl.serve` makes one."""

    def __init__(
        self,
        problem: Problem,
        store: Path | str | None,
        host: str,
        port: int,
        seed: int,
        device: str,
        data_dir: Path | str | None,
        *,
        accept_all: bool,
    ) -> None:
        from cdfl.server.auth import Access, Tokens
        from cdfl.server.engine_startup import open_engine
        from cdfl.server.limits import Limits
        from cdfl.server.listening_socket import take_port
        from cdfl.server.metrics import Metrics
        from cdfl.server.readiness import Starting
        from cdfl.server.store import Store
        from cdfl.server.web_server import make_server

        if host not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError(
                f"host is {host!r}; cdfl.serve has no tokens, so it listens on 127.0.0.1 only: use `cdfl serve`"
            )
        self.problem = problem
        self._instance = ProblemInstance.of(problem, seed=seed, data_dir=data_dir, device=find_device(device))
        self._instance.check()
        self._temporary = tempfile.TemporaryDirectory(prefix="cdfl-") if store is None else None
        self._open = ExitStack()
        try:
            socket = self._open.enter_context(take_port(host, port))
            opened = self._open.enter_context(Store.open(str(store or self._temporary.name)))  # type: ignore[union-attr]
            limits, metrics = Limits(), Metrics()
            self._engine = open_engine(self._instance, opened, accept_all=accept_all, limits=limits, metrics=metrics)
            self._open.callback(self._engine.close)
            self._web = make_server(limits, metrics, Starting())
            self._web.open(self._engine, Access(Tokens(opened.database), is_open=True))
            self._open.enter_context(self._web.serving(socket))
        except BaseException:
            self.close()
            raise
        self._url = self._web.url

    @property
    def url(self) -> str:
        """The address."""
        return self._url

    @property
    def epoch(self) -> int:
        """The number of uploads so far."""
        return self._engine.state.epoch

    @property
    def cluster_models(self) -> dict[str, nn.Module]:
        """The cluster models as they are now, by name."""
        state, names = self._engine.state, self._instance.federation.names
        pairs = zip(names, state.cluster_models, strict=True)
        return {name: module_of(self._instance.model, model) for name, model in pairs}

    def client(self, client_id: str, **options: Any) -> Client:
        """Return a client of this server with the problem's network, loss and settings; options are `cdfl.Client`'s."""
        from cdfl.client import Client

        router = None if self.problem.router is None else client_router(self.problem)
        given = {"loss": self.problem.loss, "settings": self._instance.settings, "router": router, **options}
        return Client(self.url, client_network(self.problem), client_id, **given)

    def close(self) -> None:
        """Answer open requests, take a snapshot, and stop."""
        self._open.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._web.stopped.is_set() else f"epoch {self.epoch}"
        return f"Server({self.problem.name!r} on {self.url}, {state})"


@with_settings
def serve(
    problem: str | Path | Problem = "digits-4",
    *,
    store: Path | str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    seed: int = 0,
    device: str = "auto",
    data_dir: Path | str | None = None,
    accept_all: bool = False,
    **settings: Unpack[SettingValues],
) -> Server:
    """Pre-train the clusters of a problem and serve them on this machine, without tokens; `cdfl serve` does more.

    Args:
        problem: A `cdfl.Problem`, the name of a scenario, or a .py or .toml file.
        store: The folder of the server's state. Default: a temporary one, deleted at the end.
        host: An address of this machine that others cannot reach.
        port: 0 takes a free one.
        seed: Of weights and data split, as in `cdfl.run`.
        device: "auto", "cpu", "cuda" or "cuda:1".
        data_dir: The folder of the datasets.
        accept_all: Trust every client: do not judge uploads.
        **settings: Any setting by its name.

    """
    from cdfl.sim.runner import check_options

    check_options(settings, serve)
    described = load_problem(problem).with_settings(**settings)
    return Server(described, store, host, port, seed, device, data_dir, accept_all=accept_all)
