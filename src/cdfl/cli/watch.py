"""`cdfl watch`: the page, for runs or for a server."""

import webbrowser
from pathlib import Path
from typing import Annotated

import httpx
import typer

from cdfl.cli.options import exit_on, flag
from cdfl.cli.run_folders import find_runs, warn_of_cut_lines

PORT = 8001


def watch(
    places: Annotated[
        list[str], typer.Argument(metavar="RUN...|URL", help="Folders of runs, finished or running; or a server's URL.")
    ],
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help=f"Port of the page; default: {PORT}, or a free one.")
    ] = None,
    no_browser: Annotated[bool, flag("--no-browser", "Print the address, open nothing.")] = False,
) -> None:
    """Show runs or a server in a browser: mixtures, replies, clusters, events. Several runs are side by side.

    The page of runs is served on this machine only, until Ctrl-C. A server shows its page itself.
    """
    with exit_on(ValueError, OSError, needs="the page", extra="watch"):
        is_url = [place.startswith(("http://", "https://")) for place in places]
        if any(is_url) and len(places) > 1:
            raise ValueError("expected folders of runs, or one URL of a server; not both, and not several servers")
        if is_url[0]:
            _open(_server_page(places[0]), no_browser=no_browser)
        else:
            _watch_runs([Path(place) for place in places], port, no_browser=no_browser)


def _server_page(url: str) -> str:
    """Return the address of a server's page; raise if there is no cdfl server."""
    address = url.rstrip("/")
    try:
        answer = httpx.get(f"{address}/healthz", timeout=10, verify=False)  # noqa: S501  the browser checks it
        is_ours = answer.json() == {"status": "alive"}
    except httpx.TransportError as error:
        raise ValueError(f"{address} does not answer: {error}; is the server running?") from None
    except ValueError:
        is_ours = False
    if not is_ours:
        raise ValueError(f"{address} is no cdfl server; expected the address that `cdfl serve` prints")
    return f"{address}/"


def _watch_runs(places: list[Path], port: int | None, *, no_browser: bool) -> None:
    runs = find_runs(places)
    warn_of_cut_lines(runs)
    for run in runs.values():
        run.check()
    from cdfl.watch import serve_runs

    folders = [(name, run.path) for name, run in runs.items()]
    serve_runs(
        folders, PORT if port is None else port, lambda url: _open(url, no_browser=no_browser), any_port=not port
    )


def _open(url: str, *, no_browser: bool) -> None:
    typer.echo(f"watch on {url}")
    if not no_browser:
        webbrowser.open(url)
