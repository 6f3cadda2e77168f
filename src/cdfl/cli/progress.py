"""Show the progress of runs: a live bar in a terminal, plain lines elsewhere."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from cdfl.record import Clusters, Event, Started, Uploaded, main_metric
from cdfl.sim import progress_log


@contextmanager
def log_progress(console: Console, num_uploads: int) -> Iterator[Callable[[Event], None]]:
    """Print notes on the data once, and progress lines if the console is no terminal. Pass events to the result.

    All lines go to stderr.
    """
    is_started = False

    def note(event: Event) -> None:
        nonlocal is_started
        if isinstance(event, Started) and not is_started:
            for line in event.notes.splitlines():
                _print(line)
        is_started = True
        if count is not None:
            count(event)

    with nullcontext() if console.is_terminal else progress_log.lines(_print, num_uploads) as count:
        yield note


def _print(line: str) -> None:
    typer.echo(line, err=True)


def show_progress(events: Iterable[Event], console: Console) -> Iterator[Event]:
    """Pass events through, and show uploads done, scores before and after the reply, and time left."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[metric]} before {task.fields[before]}"),
        TextColumn("after {task.fields[after]}  clusters {task.fields[cluster]}"),
        TimeRemainingColumn(),
    )
    recent: deque[Uploaded] = deque(maxlen=100)
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("reading data", total=None, metric="", before="-", after="-", cluster="-")
        for event in events:
            match event:
                case Started():
                    name, _ = main_metric([event])
                    progress.update(bar, description="pre-training", total=event.num_uploads, metric=f"{name}:")
                case Clusters():
                    score = sum(event.scores) / len(event.scores)
                    progress.update(bar, description="uploads", cluster=f"{score:.3f}")
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
