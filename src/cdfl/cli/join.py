"""`cdfl join`: run a client on the command line."""

import logging
import time
import zlib
from collections.abc import Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from cdfl.cli.options import SetOption, exit_on, flag, parse_settings
from cdfl.client import Client, ClientError, Reply, Retry, Turn
from cdfl.policy import POLICIES, find_policy
from cdfl.problems import Problem
from cdfl.problems.task import client_network
from cdfl.scenarios import load_problem
from cdfl.userfile import report_errors
from cdfl.wire import DTYPES, DType, WireError

PATIENCE = Retry(attempts=7)  # half a minute: the server may be starting


def join(
    url: Annotated[str, typer.Argument(help="Address of the server, such as http://127.0.0.1:8000.")],
    client_id: Annotated[str, typer.Option(help="The client's name.")],
    setup: Annotated[str, typer.Option(help="The problem: the file or name that the server got.")],
    token: Annotated[str | None, typer.Option(envvar="CDFL_TOKEN", help="The client's token.")] = None,
    watch: Annotated[bool, flag("--watch", "Follow the stream; upload when the policy says so.")] = False,
    policy: Annotated[
        str | None, typer.Option(help=f"When to upload: {', '.join(POLICIES)}. Default: the policy of the file.")
    ] = None,
    every: Annotated[float, typer.Option(min=0, help="Seconds between two turns.")] = 1.0,
    turns: Annotated[int | None, typer.Option(min=1, help="Number of turns; default: until the stream ends.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Folder for the client's state, to survive a restart.")] = None,
    verify: Annotated[Path | None, typer.Option(help="Certificate of the server (PEM), if it is self-signed.")] = None,
    dtype: Annotated[str, typer.Option(help=f"Number format of transferred models: {', '.join(DTYPES)}.")] = "float32",
    compress: Annotated[bool, flag("--compress", "Compress transferred models (zstd).")] = False,
    setting: SetOption = None,
) -> None:
    """Join a server as one client: fetch a model; with --watch, follow a stream of data and upload updates."""
    console = Console(highlight=False)
    logging.basicConfig(level=logging.WARNING, format="cdfl: %(message)s")
    logging.getLogger("cdfl.client").setLevel(logging.INFO)  # shows retries
    with exit_on(ValueError, OSError, ClientError, WireError):
        mine = load_problem(setup).with_settings(**parse_settings(setting or []))
        chosen = find_policy(policy) if policy else mine.policy or POLICIES["loss-rises"]
        client = Client(
            url,
            client_network(mine),
            client_id,
            token,
            loss=mine.loss,
            settings=mine.all_settings,
            state_dir=state_dir,
            dtype=cast("DType", dtype),
            reply_dtype=cast("DType", dtype),
            compress=compress,
            verify=verify or True,
            retry=PATIENCE,
        )
        with client:
            reply = client.join()
            state = _reply_text(reply) if reply else "the server is away; continuing with the last model"
            console.print(f"{client_id}: {state}")
            if watch:
                for turn in client.watch(islice(_paced(mine, client_id, every), turns), chosen):
                    console.print(f"{client_id}: {turn_text(turn)}", soft_wrap=True)


def turn_text(turn: Turn) -> str:
    """Return one turn as a line of text."""
    loss = "" if turn.loss is None else f", loss {turn.loss:.3f}"
    text = f"turn {turn.number}: {turn.samples} samples{loss}"
    if turn.error:
        return f"{text}; {turn.error}"
    if turn.decided and turn.pending:
        return f"{text}; trained; the server is away, the upload is sent later"
    if turn.decided and turn.reply:
        return f"{text}; trained and uploaded; {_reply_text(turn.reply)}"
    if turn.reply:
        return f"{text}; the waiting upload was sent; {_reply_text(turn.reply)}"
    return f"{text}{'; an upload waits for the server' if turn.pending else ''}"


def _reply_text(reply: Reply) -> str:
    """Return outcome, epoch and mixture. The client has logged `detail` already."""
    shares = " ".join(f"{share:.2f}" for share in reply.mixture)
    return f"{reply.outcome}, epoch {reply.epoch}, mixture {shares}"


def _paced(problem: Problem, client_id: str, seconds: float) -> Iterator[Any]:
    """Yield fresh data with pauses between them."""
    stream = problem.stream or partial(simulated_stream, problem)
    with report_errors(problem.place, f"`stream({client_id!r})`", "an iterable of fresh data"):
        for number, data in enumerate(stream(client_id)):
            time.sleep(seconds if number else 0)
            yield data


def simulated_stream(problem: Problem, client_id: str) -> Iterator[Any]:
    """Yield the data of a simulated client, turn by turn: samples that the server does not train or evaluate on."""
    federation, client = problem.federation(), zlib.crc32(client_id.encode())
    for turn in count():
        yield federation.ready(federation.draw(client, turn).train)
