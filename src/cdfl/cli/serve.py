"""`cdfl serve`: a server for one problem."""

import logging
import math
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cdfl.cli.options import DataDir, DeviceName, Json, flag
from cdfl.cli.run_options import SetOption, parse_settings
from cdfl.cli.server_console import ServerConsole, StartProgress
from cdfl.cli.stores import DEFAULT_STORE, BlobsPlace, StorePlace, refuse_store
from cdfl.cli.tracking import ToMLflow, ToTensorBoard, ToWandb, chosen, tracked_server
from cdfl.on_ray.connection import RayEngine, import_ray
from cdfl.server.limits import Limits
from cdfl.server.rate_limits import LogLimit
from cdfl.server.store_records import Retention

if TYPE_CHECKING:  # needs the extra `server`
    from cdfl.problems import ProblemInstance
    from cdfl.server.tls import Tls
    from cdfl.server.upload_losses import Evaluators

OPERATOR_TOKEN = "CDFL_OPERATOR_TOKEN"  # noqa: S105  the name of an environment variable


def _above_0(value: float) -> float:
    if not 0 < value < math.inf:  # NaN is neither
        raise typer.BadParameter(f"{value:g} is not a finite number above 0.")
    return value


def serve(
    problem: Annotated[
        str, typer.Argument(help="A Python file or module that sets `problem`, or a name from `cdfl scenarios`.")
    ],
    store: StorePlace = DEFAULT_STORE,
    blobs: BlobsPlace = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain (PEM); with --tls-key makes https.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate (PEM).")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="Require client certificates of this authority (PEM); their names are clients.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name of this server in requests; on loopback, beside localhost.")
    ] = None,
    open_: Annotated[bool, flag("--open", "No tokens: clients name themselves. Loopback only.")] = False,
    open_to_anyone: Annotated[
        bool, flag("--open-to-anyone", "The same on any address: any host that reaches it can take part.")
    ] = False,
    accept_all: Annotated[bool, flag("--accept-all", "Trust every client: do not judge uploads.")] = False,
    device: DeviceName = "auto",
    evaluate_on_ray: Annotated[
        bool, flag("--evaluate-on-ray", "Let workers of a Ray cluster evaluate models (cdfl[ray]).")
    ] = False,
    ray_address: Annotated[
        str | None, typer.Option(help="HOST:PORT of Ray's head; default: $RAY_ADDRESS, or a cluster that runs here.")
    ] = None,
    ray_workers: Annotated[
        int | None,
        typer.Option(min=1, help="Workers at most, for uploads and as many for the guard; default: as it has cores."),
    ] = None,
    setting: SetOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and data split, as in `cdfl run`.")] = 0,
    data_dir: DataDir = None,
    snapshot_every: Annotated[int, typer.Option(min=1, help="Uploads between two snapshots.")] = 100,
    keep_snapshots: Annotated[int, typer.Option(min=1, help="Newest snapshots to keep.")] = Retention.keep_snapshots,
    keep_days: Annotated[
        float, typer.Option(min=0, help="Days for which older snapshots are kept, ever fewer of them, and the best.")
    ] = Retention.keep_days,
    keep_uploads: Annotated[
        bool, flag("--keep-uploads", "Keep uploaded models as long as the newest snapshots.")
    ] = False,
    keep_replies: Annotated[
        float, typer.Option(min=0, help="Seconds that a client's last reply is kept.")
    ] = Retention.keep_replies,
    max_body: Annotated[int | None, typer.Option(min=1, help="Bytes of an upload; default: by the model.")] = None,
    max_queue: Annotated[int, typer.Option(min=1, help="Uploads that may wait.")] = Limits.queue,
    max_rate: Annotated[
        float, typer.Option(callback=_above_0, help="Requests a second of one client.")
    ] = Limits.requests_per_second,
    max_clients: Annotated[int, typer.Option(min=1, help="Clients that the server accepts.")] = Limits.clients,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Open connections; beyond them the idlest is closed.")
    ] = Limits.connections,
    max_streams: Annotated[
        int, typer.Option(min=1, help="Open streams of events: of clients, and as many of operators.")
    ] = Limits.streams,
    idle_seconds: Annotated[
        float, typer.Option(callback=_above_0, help="Seconds a connection may wait for a request.")
    ] = Limits.idle_seconds,
    stall_seconds: Annotated[
        float, typer.Option(callback=_above_0, help="Seconds without a byte of a body.")
    ] = Limits.stall_seconds,
    tensorboard: ToTensorBoard = False,
    mlflow: ToMLflow = False,
    wandb: ToWandb = False,
    json_: Json = False,
) -> None:
    """Serve: pre-train clusters (the first time), then answer every uploaded model with a personal one.

    Stop it with Ctrl-C or SIGTERM: it answers open requests and takes a snapshot; the next start continues from there.
    CDFL_OPERATOR_TOKEN is the operator's token, or several with commas between them, for /metrics, the page and all
    events; an open server needs none.
    """
    console = Console(stderr=True, highlight=False)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(LogLimit(Limits.log_lines_per_second))
    trackers = chosen(tensorboard=tensorboard, mlflow=mlflow, wandb=wandb)
    here = Path() if "://" in store else Path(store)  # for what trackers write
    with refuse_store(), _stop_on_signals(console):
        from cdfl.server.listening_socket import take_port

        is_open = _check_open(host, open_=open_, to_anyone=open_to_anyone)
        cluster = _cluster(ray_address, ray_workers, wanted=evaluate_on_ray)
        tls = _tls(tls_cert, tls_key, tls_client_ca)
        if tls is None and not is_open and not _is_loopback(host):
            console.print(
                f"[yellow]tokens and models are sent to {host} in the clear: use --tls-cert, or a proxy with TLS"
            )
        limits = Limits(
            body_bytes=max_body,
            queue=max_queue,
            requests_per_second=max_rate,
            burst=max(2, int(2 * max_rate)),
            clients=max_clients,
            connections=max_connections,
            streams=max_streams,
            operator_streams=max_streams,
            idle_seconds=idle_seconds,
            stall_seconds=stall_seconds,
        )
        retention = Retention(
            keep_snapshots=keep_snapshots, keep_days=keep_days, keep_uploads=keep_uploads, keep_replies=keep_replies
        )
        with take_port(host, port) as taken:  # from now on clients wait instead of failing
            from cdfl.device import find_device
            from cdfl.malloc_options import keep_freed_memory
            from cdfl.problems import ProblemInstance
            from cdfl.scenarios import load_problem
            from cdfl.server.auth import Access, Tokens
            from cdfl.server.engine_startup import open_engine
            from cdfl.server.metrics import Metrics
            from cdfl.server.readiness import Starting
            from cdfl.server.store import Store
            from cdfl.server.web_server import make_server

            keep_freed_memory(512, one_pool=True)  # before threads start
            starting, metrics = Starting(), Metrics()
            server = make_server(limits, metrics, starting, tls, _hosts(host, allow_host or []))
            with server.serving(taken):
                starting.say("reading the problem and its data")
                described = load_problem(problem).with_settings(**parse_settings(setting or []))
                instance = ProblemInstance.of(described, seed=seed, data_dir=data_dir, device=find_device(device))
                _check_body(max_body, instance)
                instance.check()
                for note in instance.federation.notes:
                    console.print(note, soft_wrap=True)
                with Store.open(store, blobs, retention, shared=True) as opened, _evaluators(instance, cluster) as made:
                    with StartProgress(console, starting, server.url) as shown:
                        engine = open_engine(
                            instance,
                            opened,
                            accept_all=accept_all,
                            evaluators=made,
                            progress=shown.stage,
                            trained=shown.step,
                            replayed=shown.replaying,
                            limits=limits,
                            metrics=metrics,
                            snapshot_every=snapshot_every,
                        )
                    try:
                        operator_token = os.environ.get(OPERATOR_TOKEN)
                        access = Access(Tokens(opened.database), is_open=is_open, operator_token=operator_token)
                        config = engine.settings.to_dict()
                        printed = ServerConsole(console, engine, as_json=json_)
                        with tracked_server(
                            trackers, f"server {server.url}", config, here, engine.cluster_names
                        ) as listeners:
                            engine.listeners += [printed, *listeners]
                            server.stop_on_signals()
                            server.open(engine, access)
                            _welcome(console, server.url, engine.state.epoch, is_open=is_open)
                            printed.show_until_stopped(server)
                    finally:
                        server.finish()  # answers what is under way, for which it needs the engine
                        engine.close()
            console.print(f"stopped at epoch {engine.state.epoch}")
    if engine.lost is not None:
        raise typer.Exit(1)


def _cluster(address: str | None, workers: int | None, *, wanted: bool) -> RayEngine | None:
    """Return the cluster that evaluates; None if this process does."""
    if wanted:
        import_ray()
        return RayEngine(address, workers)
    if address is not None or workers is not None:
        raise ValueError("--ray-address and --ray-workers are for --evaluate-on-ray; use it, too, or omit them")
    return None


@contextmanager
def _evaluators(instance: "ProblemInstance", cluster: RayEngine | None) -> "Iterator[Evaluators | None]":
    """Yield the evaluators on a cluster, if there is one."""
    if cluster is None:
        yield None
        return
    from cdfl.server.on_ray.evaluation import evaluators_on_ray

    with evaluators_on_ray(instance, cluster) as made:
        yield made


@contextmanager
def _stop_on_signals(console: Console) -> Iterator[None]:
    """Exit with 0 on SIGTERM and Ctrl-C while the server is not open yet."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        console.print("stopped before it was open; the next start begins again")
        raise typer.Exit(0) from None
    finally:
        if signal.getsignal(signal.SIGTERM) is signal.default_int_handler:  # otherwise the server handles it
            signal.signal(signal.SIGTERM, before)


def _welcome(console: Console, url: str, epoch: int, *, is_open: bool) -> None:
    console.print(f"serving on {url}, epoch {epoch}; open it in a browser to watch", soft_wrap=True)
    if is_open:
        console.print("open: clients need no token, only a name")


def _check_open(host: str, *, open_: bool, to_anyone: bool) -> bool:
    """Refuse a server without tokens on other addresses than loopback, unless --open-to-anyone confirms it."""
    if open_ and not to_anyone and not _is_loopback(host):
        raise ValueError(
            f"--open on {host} would let any host that reaches it take part; listen on 127.0.0.1, "
            "use tokens (`cdfl token create`), or confirm with --open-to-anyone"
        )
    return open_ or to_anyone


def _check_body(most: int | None, instance: "ProblemInstance") -> None:
    """Refuse a limit that is smaller than an upload."""
    from cdfl.wire import body_size

    needed = body_size(instance.layout)
    if most is not None and most < needed:
        raise ValueError(f"--max-body is {most}; an upload of this model has {needed} bytes, expected at least that")


def _tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> "Tls | None":
    """Return TLS with these files; refuse one without the other, and files that cannot be used."""
    from cdfl.server.tls import Tls

    if (cert is None) != (key is None):
        raise ValueError("--tls-cert and --tls-key belong together; one of them is missing")
    if cert is None or key is None:
        if client_ca is not None:
            raise ValueError("--tls-client-ca needs --tls-cert and --tls-key")
        return None
    return Tls(cert, key, client_ca)


def _hosts(host: str, allowed: list[str]) -> list[str]:
    """Return the names that requests may use for this server; any if there are none."""
    from cdfl.server.host_check import LOOPBACK

    return [*LOOPBACK, host, *allowed] if _is_loopback(host) or allowed else []


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
