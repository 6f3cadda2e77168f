"""Show the progress of runs: a bar in a terminal, one line in a notebook, a line now and then elsewhere."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from cdfl.run_events import (
    Diverged,
    Event,
    Separated,
    Started,
    Uploaded,
    main_metric,
    pretraining,
    score_text,
)
from cdfl.run_series import SCORE_WORDS

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
        self.pretraining = 0, 1  # steps so far, steps in all
        self._recent: deque[Uploaded] = deque(maxlen=RECENT)
        self._begun = time.monotonic()

    def take(self, event: Event) -> None:
        """Take one event."""
        match event:
            case Started():
                self.metric, self.stage, self._begun = main_metric([event])[0], "uploads", time.monotonic()
            case Uploaded():
                self._recent.append(event)
        self.done += isinstance(event, Uploaded | Diverged)

    def pretrained(self, done: int, total: int) -> None:
        """Note how many steps of pre-training are done."""
        if self.stage != "pre-training":
            self.stage, self._begun = "pre-training", time.monotonic()
        self.pretraining = done, total

    @property
    def words(self) -> str:
        """Return what is done, and about how long the rest takes."""
        if self.stage == "pre-training":
            done, total = self.pretraining
            return f"pre-training, {done / total:.0%}{self._left(done, total)}"
        if self.stage == "uploads":
            return f"{self.done:,} of {self.num_uploads:,} uploads{self._left(self.done, self.num_uploads)}"
        return self.stage

    def _left(self, done: int, total: int) -> str:
        if done < 2:  # too early to say
            return ""
        seconds = (time.monotonic() - self._begun) * (total - done) / done
        return f", about {seconds:.0f} s left" if seconds < 100 else f", about {seconds / 60:.0f} min left"

    @property
    def text(self) -> str:
        """Return the scores of old and new models."""
        if not self._recent:
            return ""
        old, new = (sum(getattr(own, name) for own in self._recent) / len(self._recent) for name in ("held", "after"))
        return f"{self.metric}: {SCORE_WORDS['held']} {score_text(old)}, {SCORE_WORDS['after']} {score_text(new)}"


@contextmanager
def pretraining_shown_by(show: Callable[[int, int], Any]) -> Iterator[None]:
    """Let the runs in this block report the steps of their pre-training to a function."""
    before = pretraining.set(show)
    try:
        yield
    finally:
        pretraining.reset(before)


class Bar:
    """A bar in a terminal."""

    def __init__(self, num_uploads: int, console: Console | None = None) -> None:
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=12), MofNCompleteColumn()
        self._progress = Progress(
            *columns,
            TextColumn("{task.fields[scores]}"),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
            transient=True,
        )
        self._state = _Scores(num_uploads)
        self._bar = self._progress.add_task("reading data", total=None, scores="")
        self._told = pretraining_shown_by(self._pretrained)

    def __enter__(self) -> Self:
        self._told.__enter__()
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        self._told.__exit__(None, None, None)

    def _pretrained(self, done: int, total: int) -> None:
        self._progress.update(self._bar, description="pre-training", completed=done, total=total)

    def show(self, event: Event) -> None:
        """Take one event."""
        state = self._state
        state.take(event)
        if isinstance(event, Started):
            self._progress.reset(self._bar, scores="")  # its time left is that of uploads
        self._progress.update(
            self._bar, description=state.stage, completed=state.done, total=state.num_uploads, scores=state.text
        )


class Line:
    """One line that is written over, as notebooks can."""

    def __init__(self, num_uploads: int, stream: TextIO | None = None) -> None:
        self._state, self._stream = _Scores(num_uploads), stream or sys.stdout
        self._written, self._width = 0.0, 0
        self._told = pretraining_shown_by(self._pretrained)

    def __enter__(self) -> Self:
        self._told.__enter__()
        self._write("reading data")
        return self

    def __exit__(self, *_: object) -> None:
        self._told.__exit__(None, None, None)
        self._write("")
        self._stream.write("\r")

    def show(self, event: Event) -> None:
        """Take one event."""
        self._state.take(event)
        self._update()

    def _pretrained(self, done: int, total: int) -> None:
        self._state.pretrained(done, total)
        self._update()

    def _update(self) -> None:
        if time.monotonic() - self._written >= SECONDS_BETWEEN_UPDATES:
            self._write(f"{self._state.words}  {self._state.text}".rstrip())

    def _write(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._written, self._width = time.monotonic(), len(text)


class Lines:
    """A line every 20 seconds; a thread writes it, so a run also reports before its first event."""

    def __init__(self, num_uploads: int, write: Callable[[str], None] | None = None) -> None:
        self._write = write or (lambda line: print(line, file=sys.stderr))  # noqa: T201
        self._state, self._over = _Scores(num_uploads), threading.Event()
        self._told = pretraining_shown_by(self._state.pretrained)

    def __enter__(self) -> Self:
        self._told.__enter__()
        self._begun = time.monotonic()
        self._reporter = threading.Thread(target=self._report, daemon=True)
        self._reporter.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._told.__exit__(None, None, None)
        self._over.set()
        self._reporter.join()  # the caller's next line comes after all of these

    def show(self, event: Event) -> None:
        """Take one event."""
        self._state.take(event)

    def _report(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN_LINES):
            self._write(f"{self._state.words}, {time.monotonic() - self._begun:.0f} s so far")


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
