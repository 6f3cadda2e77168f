"""`cdfl join`: a client on the command line, for trying things out."""

import logging
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import typer
from rich.console import Console
from torch import nn
from torch.nn.functional import cross_entropy

from cdfl.cli.options import SetOption, flag, parse_settings, refuse
from cdfl.client import Client, ClientError, Reply, Retry, Seen
from cdfl.core import Loss, Settings
from cdfl.core.batches import described
from cdfl.policy import POLICIES, Policy, check_policy
from cdfl.userfile import SetupError, load_python, mistakes_in
from cdfl.wire import DTYPES, DType, WireError

PATIENCE = Retry(attempts=7)  # half a minute: somebody may just be starting the server


class Setup(NamedTuple):
    """What a client uses of a set-up file: the server's, or one that has only these names."""

    model: nn.Module
    loss: Loss = cross_entropy
    settings: Settings = Settings()
    policy: Policy = POLICIES["loss-rises"]
    stream: Callable[[str], Iterable[Any]] | None = None  # fresh data of the client that is named


def join(
    url: Annotated[str, typer.Argument(help="The server, such as http://127.0.0.1:8000.")],
    client_id: Annotated[str, typer.Option(help="The client's name.")],
    setup: Annotated[Path, typer.Option(help="A Python file that names model, and may name loss, policy and stream.")],
    token: Annotated[str | None, typer.Option(envvar="CDFL_TOKEN", help="The client's token.")] = None,
    watch: Annotated[bool, flag("--watch", "Follow the file's stream; upload when the policy says.")] = False,
    policy: Annotated[
        str | None, typer.Option(help=f"When to upload: {', '.join(POLICIES)}. Default: what the file says.")
    ] = None,
    every: Annotated[float, typer.Option(min=0, help="Seconds between two looks at the stream.")] = 1.0,
    looks: Annotated[int | None, typer.Option(min=1, help="Stop after so many looks.")] = None,
    state: Annotated[Path | None, typer.Option(help="Folder in which the client survives its restart.")] = None,
    ca: Annotated[Path | None, typer.Option(help="Certificate of the server, if it signed its own.")] = None,
    dtype: Annotated[str, typer.Option(help=f"Of models on their way: {', '.join(DTYPES)}.")] = "float32",
    compress: Annotated[bool, flag("--compress", "Compress models on their way (zstd).")] = False,
    setting: SetOption = None,
) -> None:
    """Join a server as one client: fetch its model and, with --watch, follow a stream of data and upload by itself."""
    console = Console(highlight=False)
    logging.basicConfig(level=logging.WARNING, format="cdfl: %(message)s")
    logging.getLogger("cdfl.client").setLevel(logging.INFO)  # that a server does not answer, and is asked again
    with refuse(ValueError, OSError, ClientError, WireError):
        mine = read_setup(setup)
        if policy is not None and policy not in POLICIES:
            raise ValueError(f"there is no policy {policy!r}; there are {', '.join(POLICIES)}")
        chosen = POLICIES[policy] if policy else mine.policy
        client = Client(
            url,
            mine.model,
            client_id,
            token,
            loss=mine.loss,
            settings=mine.settings.replace(**parse_settings(setting or [])),
            state_dir=state,
            dtype=cast("DType", dtype),
            reply_dtype=cast("DType", dtype),
            compress=compress,
            verify=ca or True,
            retry=PATIENCE,
        )
        with client:
            reply = client.join()
            console.print(
                f"{client_id}: {_told(reply) if reply else 'the server is away; going on with the last model'}"
            )
            if watch:
                for seen in client.watch(islice(_paced(setup, mine.stream, client_id, every), looks), chosen):
                    console.print(f"{client_id}: {line(seen)}", soft_wrap=True)


def read_setup(path: Path) -> Setup:
    """Read what a client needs from a Python file; `model` may be a network or a function that makes one."""
    module = load_python(str(path), "`cdfl init` writes one")
    names = {name: value for name in Setup._fields if (value := getattr(module, name, None)) is not None}
    model = names.get("model")
    if callable(model) and not isinstance(model, nn.Module):
        with mistakes_in(str(path), "`model()`", "a torch.nn.Module"):
            names["model"] = model()
    setup = Setup(**{"model": None, **names})
    for name, expected, is_fine in (
        ("model", "a torch.nn.Module, or a function that makes one", isinstance(setup.model, nn.Module)),
        ("loss", "a function of (outputs, targets)", callable(setup.loss)),
        ("settings", "cdfl.core.Settings", isinstance(setup.settings, Settings)),
        ("stream", "a function: client_id -> data, again and again", setup.stream is None or callable(setup.stream)),
    ):
        if not is_fine:
            raise SetupError(f"{path}: `{name}` is {described(getattr(setup, name))}; expected {expected}")
    check_policy(setup.policy, f"{path}: `policy`")
    return setup


def line(seen: Seen) -> str:
    """One look in words."""
    loss = "" if seen.loss is None else f", loss {seen.loss:.3f}"
    words = f"look {seen.number}: {seen.samples} samples{loss}"
    if seen.trouble:
        return f"{words}; {seen.trouble}"
    if seen.decided and seen.pending:
        return f"{words}; time to learn: trained, the server is away, uploading later"
    if seen.decided and seen.reply:
        return f"{words}; time to learn: trained and uploaded; {_told(seen.reply)}"
    if seen.reply:
        return f"{words}; the upload that waited went out; {_told(seen.reply)}"
    return f"{words}{'; an upload waits for the server' if seen.pending else ''}"


def _told(reply: Reply) -> str:
    """The outcome; why it is what it is was logged by the client just before."""
    shares = " ".join(f"{share:.2f}" for share in reply.mixture)
    return f"{reply.outcome}, epoch {reply.epoch}, mixture {shares}"


def _paced(path: Path, stream: Callable[[str], Iterable[Any]] | None, client_id: str, seconds: float) -> Iterable[Any]:
    """A stream that takes its time."""
    if stream is None:
        raise ValueError("the set-up file names no `stream`; expected a function: client_id -> data, again and again")
    with mistakes_in(str(path), f"`stream({client_id!r})`", "fresh data, again and again"):
        for number, data in enumerate(stream(client_id)):
            time.sleep(seconds if number else 0)
            yield data
