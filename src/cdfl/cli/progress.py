"""How far a run is, live or in plain lines: readers of its events."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from cdfl.record import Clusters, Event, Started, Uploaded
from cdfl.sim import progress


@contextmanager
def lines(console: Console, num_uploads: int) -> Iterator[Callable[[Event], None]]:
    """Take events, and print a plain line on stderr now and then, where there is no terminal for a live one.

    What is notable about the data is printed at the start, once for all runs.
    """
    told = False

    def note(event: Event) -> None:
        nonlocal told
        if isinstance(event, Started) and not told:
            for line in event.notes.splitlines():
                _say(line)
        told = True
        if count is not None:
            count(event)

    with nullcontext() if console.is_terminal else progress.lines(_say, num_uploads) as count:
        yield note


def _say(line: str) -> None:
    typer.echo(line, err=True)


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
