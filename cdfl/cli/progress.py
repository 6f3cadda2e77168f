"""How far a run is, live or in plain lines: readers of its events."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from cdfl.record import Clusters, Diverged, Event, Started, Uploaded

SECONDS_BETWEEN_LINES = 20.0


@contextmanager
def lines(console: Console, num_uploads: int) -> Iterator[Callable[[Event], None]]:
    """Take events, and print a plain line on stderr now and then: for logs, where there is no terminal for a live one.

    A thread prints, so that a run that trains for an hour before it tells anything is not silent either. What is
    notable about the data is printed at the start, once for all runs.
    """
    done, told, over, begun = 0, False, threading.Event(), time.monotonic()

    def count(event: Event) -> None:
        nonlocal done, told
        if isinstance(event, Started) and not told:
            for note in event.notes.splitlines():
                typer.echo(note, err=True)
        done, told = done + isinstance(event, Uploaded | Diverged), True

    def talk() -> None:
        while not over.wait(SECONDS_BETWEEN_LINES):
            state = f"{done:,} of {num_uploads:,} uploads" if told else "reading data and pre-training"
            typer.echo(f"{state}, {time.monotonic() - begun:.0f} s", err=True)

    if not console.is_terminal:
        threading.Thread(target=talk, daemon=True).start()
    try:
        yield count
    finally:
        over.set()


def watch(events: Iterable[Event], console: Console) -> Iterator[Event]:
    """Show how far a run is: uploads done, accuracy before and after the reply, time left."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("before {task.fields[before]}  after {task.fields[after]}  clusters {task.fields[cluster]}"),
        TimeRemainingColumn(),
    )
    recent: deque[Uploaded] = deque(maxlen=100)
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("reading data", total=None, before="-", after="-", cluster="-")
        for event in events:
            match event:
                case Started():
                    progress.update(bar, description="pre-training", total=event.num_uploads)
                case Clusters():
                    accuracy = sum(event.accuracies) / len(event.accuracies)
                    progress.update(bar, description="uploads", cluster=f"{accuracy:.3f}")
                case Uploaded():
                    recent.append(event)
                    progress.update(
                        bar,
                        completed=event.epoch,
                        before=f"{sum(past.before for past in recent) / len(recent):.3f}",
                        after=f"{sum(past.after for past in recent) / len(recent):.3f}",
                    )
                case _:
                    pass
            yield event
