"""What `cdfl serve` prints: progress until it is open, then a line for each join and upload, and a status line."""

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from cdfl.cli.options import counted

if TYPE_CHECKING:  # needs the extra `server`
    from cdfl.server.engine import Engine
    from cdfl.server.readiness import Starting
    from cdfl.server.store_records import Entry
    from cdfl.server.web_server import WebServer

PAINT_SECONDS = 0.25
MOST_LINES = 8  # printed at once; a busy server would print faster than anyone reads
RATE_SECONDS = 10.0  # uploads a second are counted over this time
OUTCOMES = {"applied": "applied", "deprecated": "too stale", "rejected": "rejected"}


class StartProgress:
    """Shows progress before the server opens: pre-training, or replaying the journal. `starting` is told, too."""

    def __init__(self, console: Console, starting: "Starting", url: str) -> None:
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
        self._console, self._starting, self._url = console, starting, url
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._bar: TaskID | None = None  # without a terminal, lines replace it
        self._is_first = True

    def __enter__(self) -> "StartProgress":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def stage(self, message: str) -> None:
        """Show what is done now."""
        self._starting.say(message)
        if self._is_first:
            self._console.print(f"listening on {self._url}; clients wait until it serves", soft_wrap=True)
            self._is_first = False
        if self._progress.disable:
            self._console.print(message)
        elif self._bar is None:
            self._bar = self._progress.add_task(message, total=None)
        else:
            self._progress.update(self._bar, description=message)

    def step(self, done: int, total: int) -> None:
        """Show how much of it is done."""
        self._starting.step(done, total)
        if self._bar is not None:
            self._progress.update(self._bar, completed=done, total=total)

    def replaying(self, done: int, total: int) -> None:
        """Show how many entries of the journal are done."""
        if not self._starting.stage.startswith("replaying"):
            self.stage(f"replaying the journal, {counted(total, 'entry', 'entries')}")
        self.step(done, total)


class ServerConsole:
    """A listener of the engine. In a terminal it prints lines and a status line; with `as_json`, lines for programs.

    The engine's threads only append to a queue; a thread of its own prints.
    """

    def __init__(self, console: Console, engine: "Engine", *, as_json: bool) -> None:
        self._console, self._names, self._as_json = console, engine.cluster_names, as_json
        self._is_quiet = not (as_json or console.is_terminal)
        self._lines: deque[dict[str, Any]] = deque()
        self._times: deque[float] = deque()
        self._outcomes: Counter[str] = Counter()
        self._num_clients, self._epoch = engine.store.num_clients(), engine.state.epoch
        self._over = threading.Event()

    # -- from the engine's threads

    def joined(self, client_id: str) -> None:
        """Note that a new client was sent a model."""
        self._num_clients += 1
        self._add({"event": "joined", "time": time.time(), "client_id": client_id})

    def committed(self, entries: "Sequence[Entry]") -> None:
        """Note that uploads were answered."""
        for entry in entries:
            self._outcomes[entry.outcome] += 1
            self._epoch = entry.epoch
            self._times.append(entry.received)
            line = {"event": "uploaded", "time": entry.received, "client_id": entry.client_id, "epoch": entry.epoch}
            line |= {"outcome": entry.outcome, "staleness": entry.staleness, "mixture": list(entry.mixture)}
            self._add(line | ({"reason": entry.verdict.reason} if entry.verdict.reason else {}))

    def forgot(self, client_id: str) -> None:
        """Note that a client was forgotten."""
        self._num_clients -= 1
        self._add({"event": "forgotten", "time": time.time()})

    def _add(self, line: dict[str, Any]) -> None:
        if not self._is_quiet:
            self._lines.append(line)

    # -- from the main thread

    def show_until_stopped(self, server: "WebServer") -> None:
        """Print until the server stops."""
        if self._is_quiet:
            server.wait_until_stopped()
            return
        painter = threading.Thread(target=self._paint, args=(server,), name="cdfl-console", daemon=True)
        painter.start()
        try:
            server.wait_until_stopped()
        finally:
            self._over.set()
            painter.join()

    def _paint(self, server: "WebServer") -> None:
        if self._as_json:
            while not self._over.wait(PAINT_SECONDS):
                self._print_json()
            self._print_json()
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while not self._over.wait(PAINT_SECONDS):
                self._print_lines()
                live.update(self._status(server.notifier.num_streams), refresh=True)
        self._print_lines()

    def _print_json(self) -> None:
        while self._lines:
            typer.echo(json.dumps(self._lines.popleft()))

    def _print_lines(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        for line in lines[:MOST_LINES]:
            self._console.print(Text(line_text(line, self._names)), soft_wrap=True)
        if len(lines) > MOST_LINES:
            self._console.print(Text(f"         and {counted(len(lines) - MOST_LINES, 'more line')}"))

    def _status(self, watchers: int) -> Text:
        now = time.time()
        while self._times and now - self._times[0] > RATE_SECONDS:
            self._times.popleft()
        parts = [f"epoch {self._epoch}" if self._epoch else "no upload yet", counted(self._num_clients, "client")]
        parts.append(f"{len(self._times) / RATE_SECONDS:.1f} uploads/s")
        parts += [f"{self._outcomes[name]} {words}" for name, words in OUTCOMES.items() if self._outcomes[name]]
        parts += [f"{watchers} watching"] if watchers else []
        return Text(" · ".join(parts), style="dim", no_wrap=True, overflow="ellipsis")


def line_text(line: dict[str, Any], names: Sequence[str]) -> str:
    """Return one event as a short line.

    >>> when = {"time": 0.0, "client_id": "car-7"}
    >>> line_text({"event": "joined", **when}, [])[9:]
    'car-7 joined'
    >>> upload = {"event": "uploaded", "epoch": 12, "outcome": "applied", "staleness": 1, "mixture": [0.2, 0.8]}
    >>> line_text({**upload, **when}, ["upright", "turned"])[9:]
    'car-7 uploaded: epoch 12, applied, estimate: 80 % turned, staleness 1'
    """
    clock = time.strftime("%H:%M:%S", time.localtime(line["time"]))
    if line["event"] == "joined":
        return f"{clock} {line['client_id']} joined"
    if line["event"] == "forgotten":
        return f"{clock} a client was forgotten"
    words = f"{clock} {line['client_id']} uploaded: epoch {line['epoch']}, {OUTCOMES[line['outcome']]}"
    if line.get("reason"):
        return f"{words}: {line['reason']}"
    if line["mixture"]:
        share, main = max((share, name) for share, name in zip(line["mixture"], names, strict=True))
        words += f", estimate: {share:.0%} {main}".replace("%", " %")
    return f"{words}, staleness {line['staleness']}"
