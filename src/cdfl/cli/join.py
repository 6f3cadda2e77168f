"""`cdfl join`: run a client on the command line."""

import json
import logging
import random
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from cdfl.cli.options import Json, exit_on, flag
from cdfl.cli.run_options import SetOption, parse_settings
from cdfl.client import Client, ClientError, Reply, Retry, ServerAwayError, Turn, UntrustedError
from cdfl.problems import Problem
from cdfl.problems.problem_instance import client_network, client_router
from cdfl.scenarios import load_problem
from cdfl.upload_policies import ALWAYS, POLICIES, find_policy
from cdfl.user_code import report_errors
from cdfl.wire import DTYPES, DType, WireError

PATIENCE = 30.0  # seconds to wait for an answer without --watch; as long as it takes if the server asks to wait
ONCE = Retry(attempts=1)  # `wait_for_server` and the follower repeat
WAITS = Retry(first_wait=0.5, longest_wait=15.0)


def join(
    url: Annotated[str, typer.Argument(help="Address of the server, such as http://127.0.0.1:8000.")],
    client_id: Annotated[str, typer.Option(help="The client's name.")],
    setup: Annotated[str, typer.Option(help="The problem: the file or name that the server got.")],
    token: Annotated[str | None, typer.Option(envvar="CDFL_TOKEN", help="The client's token.")] = None,
    watch: Annotated[bool, flag("--watch", "Follow the stream; upload when the policy says so.")] = False,
    policy: Annotated[
        str | None, typer.Option(help=f"When to upload: {', '.join(POLICIES)}. Default: that of the file, or always.")
    ] = None,
    every: Annotated[float, typer.Option(min=0, help="Seconds between two turns.")] = 1.0,
    turns: Annotated[int | None, typer.Option(min=1, help="Number of turns; default: until the stream ends.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Folder for the client's state, to survive a restart.")] = None,
    verify: Annotated[Path | None, typer.Option(help="Certificate of the server (PEM), if it is self-signed.")] = None,
    dtype: Annotated[str, typer.Option(help=f"Number format of transferred models: {', '.join(DTYPES)}.")] = "float32",
    compress: Annotated[bool, flag("--compress", "Compress transferred models (zstd).")] = False,
    send_mixture: Annotated[
        bool, flag("--send-mixture", "Send the client's own mixture with uploads, where the server takes it.")
    ] = False,
    no_report: Annotated[
        bool, flag("--no-report", "Do not tell the server how good its replies are on the client's data.")
    ] = False,
    setting: SetOption = None,
    json_: Json = False,
) -> None:
    """Join a server as one client: fetch a model; with --watch, follow a stream of data and upload updates.

    With --watch it waits for a server that is away, however long, and keeps its upload meanwhile.
    """
    console = Console(highlight=False)
    logging.basicConfig(level=logging.WARNING, format="cdfl: %(message)s")
    with exit_on(ValueError, OSError, ClientError, WireError):
        mine = load_problem(setup).with_settings(**parse_settings(setting or []))
        chosen = find_policy(policy) if policy else mine.policy or ALWAYS
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
            send_mixture=send_mixture,
            router=None if mine.router is None else client_router(mine),
            report=not no_report,
            verify=verify or True,
            retry=ONCE,
        )
        with client:
            reply = wait_for_server(client, forever=watch)
            if json_:
                typer.echo(json.dumps({"client_id": client_id, "reply": None if reply is None else asdict(reply)}))
            else:
                state = _reply_text(reply) if reply else "the server is away; continuing with the last model"
                console.print(f"{client_id}: {state}", soft_wrap=True)
            if watch:
                for turn in client.watch(islice(_paced(mine, client_id, every), turns), chosen):
                    if json_:
                        typer.echo(json.dumps({"client_id": client_id, **asdict(turn)}))
                    else:
                        console.print(f"{client_id}: {turn_text(turn)}", soft_wrap=True)


def wait_for_server(client: Client, *, forever: bool, sleep: Callable[[float], None] = time.sleep) -> Reply | None:
    """Join; wait for a server that is away or still starting, and say so once.

    A server that answers and asks to wait is waited for as long as it takes, another one `PATIENCE` seconds, or
    `forever`.
    """
    begun, failures, said = time.monotonic(), 0, set[bool]()
    while True:
        try:
            return client.join()
        except UntrustedError:
            raise
        except ServerAwayError as away:
            asks_to_wait = away.retry_after is not None
            if not (forever or asks_to_wait) and time.monotonic() - begun > PATIENCE:
                raise
            if asks_to_wait not in said:
                said.add(asks_to_wait)
                typer.echo(f"cdfl: {away}; waiting for it", err=True)
            failures += 1
            sleep(max(away.retry_after or 0.0, WAITS.wait(failures, random.random())))  # noqa: S311


def turn_text(turn: Turn) -> str:
    """Return one turn as a line of text."""
    loss = "" if turn.loss is None else f", loss {turn.loss:.3f}"
    loss += "" if turn.served is None else f", served {turn.served:.3f}"
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
