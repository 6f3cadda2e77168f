"""Show the progress of runs: a bar in a terminal, one line in a notebook, a line now and then elsewhere."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from cdfl.record import Clusters, Diverged, Event, Separated, Started, Uploaded, main_metric

SECONDS_BETWEEN_LINES = 20.0
SECONDS_BETWEEN_UPDATES = 0.5  # of a line in a notebook
RECENT = 100  # uploads averaged in the scores shown


class Display(Protocol):
    """Shows events as they happen, from `with` to its end."""

    def __enter__(self) -> Self:
        """Begin to show."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear what was shown."""
        ...

    def show(self, event: Event) -> None:
        """Take one event."""
        ...


class _Scores:
    """The state of a run in a few words."""

    def __init__(self, num_uploads: int) -> None:
        self.num_uploads = num_uploads
        self.done = 0
        self.stage = "reading data"
        self.metric = ""
        self.cluster: float | None = None
        self._recent: deque[Uploaded] = deque(maxlen=RECENT)
        self._begun = time.monotonic()

    def take(self, event: Event) -> None:
        """Take one event."""
        match event:
            case Started():
                self.metric, self.stage = main_metric([event])[0], "pre-training"
            case Clusters():
                self.cluster, self.stage = sum(event.scores) / len(event.scores), "uploads"
            case Uploaded():
                self._recent.append(event)
        self.done += isinstance(event, Uploaded | Diverged)

    @property
    def text(self) -> str:
        """Return scores before and after the reply, and of the clusters."""
        if not self._recent:
            return ""
        before, after = (sum(getattr(own, name) for own in self._recent) / len(self._recent) for name in BOTH)
        return f"{self.metric}: before {before:.3f}  after {after:.3f}  clusters {self.cluster or 0:.3f}"

    @property
    def seconds_left(self) -> float:
        """Return the seconds until the end, if it continues as so far."""
        return (time.monotonic() - self._begun) / max(1, self.done) * (self.num_uploads - self.done)


BOTH = ("before", "after")


class Bar:
    """A bar in a terminal."""

    def __init__(self, num_uploads: int, console: Console | None = None) -> None:
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        self._progress = Progress(
            *columns,
            TextColumn("{task.fields[scores]}"),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
            transient=True,
        )
        self._state = _Scores(num_uploads)
        self._bar = self._progress.add_task("reading data", total=None, scores="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, event: Event) -> None:
        """Take one event."""
        state = self._state
        state.take(event)
        self._progress.update(
            self._bar, description=state.stage, completed=state.done, total=state.num_uploads, scores=state.text
        )


class Line:
    """One line that is written over, as notebooks can."""

    def __init__(self, num_uploads: int, stream: TextIO | None = None) -> None:
        self._state, self._stream = _Scores(num_uploads), stream or sys.stdout
        self._written, self._width = 0.0, 0

    def __enter__(self) -> Self:
        self._write("reading data")
        return self

    def __exit__(self, *_: object) -> None:
        self._write("")
        self._stream.write("\r")

    def show(self, event: Event) -> None:
        """Take one event."""
        state = self._state
        state.take(event)
        if time.monotonic() - self._written < SECONDS_BETWEEN_UPDATES:
            return
        counted = f"{state.done:,} of {state.num_uploads:,} uploads, {state.seconds_left:.0f} s left"
        self._write(f"{counted}  {state.text}" if state.done else state.stage)

    def _write(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._written, self._width = time.monotonic(), len(text)


class Lines:
    """A line every 20 seconds; a thread writes it, so a run also reports before its first event."""

    def __init__(self, num_uploads: int, write: Callable[[str], None] | None = None) -> None:
        self._write = write or (lambda line: print(line, file=sys.stderr))  # noqa: T201
        self._num_uploads, self._done, self._started = num_uploads, 0, False
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        self._reporter = threading.Thread(target=self._report, daemon=True)
        self._reporter.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._reporter.join()  # the caller's next line comes after all of these

    def show(self, event: Event) -> None:
        """Take one event."""
        self._done, self._started = self._done + isinstance(event, Uploaded | Diverged), True

    def _report(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN_LINES):
            done = f"{self._done:,} of {self._num_uploads:,} uploads"
            state = done if self._started else "reading data and pre-training"
            self._write(f"{state}, {time.monotonic() - self._begun:.0f} s")


class Nothing:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, event: Event) -> None:
        """Take one event."""


def display(num_uploads: int, progress: bool | None = None) -> Display:
    """Return what suits the place this runs in; nothing if `progress` is False."""
    if progress is False:
        return Nothing()
    if in_notebook():
        return Line(num_uploads)
    return Bar(num_uploads) if sys.stderr.isatty() or progress else Lines(num_uploads)


def in_notebook() -> bool:
    """Return whether this runs in a Jupyter notebook."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


@contextmanager
def shown(screen: Display, notes: Callable[[str], object]) -> Iterator[Callable[[Event], None]]:
    """Show progress, and pass notes on the data to a function, each once; yield a function that takes events."""
    told: set[str] = set()
    is_checked = False
    with screen:

        def show(event: Event) -> None:
            nonlocal is_checked
            lines = event.notes.splitlines() if isinstance(event, Started) else []
            if isinstance(event, Separated) and not is_checked:  # other seeds say the same with other numbers
                lines, is_checked = event.warnings, True
            for line in lines:
                if line not in told:
                    told.add(line)
                    notes(line)
            screen.show(event)

        yield show
