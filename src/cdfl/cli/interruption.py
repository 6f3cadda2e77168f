"""Interrupted runs: say what is stored and how to resume."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import typer

from cdfl.run_events import Finished, Uploaded, only
from cdfl.run_folder import RunFolder
from cdfl.signals import sigterm_interrupts
from cdfl.sim import checkpoint


@contextmanager
def interruptible(folder: RunFolder, runs: Sequence[RunFolder], num_uploads: int) -> Iterator[None]:
    """Handle interruptions of runs. `folder` is `--out`, `runs` are the runs in it, `num_uploads` is their total.

    Ctrl-C and SIGTERM end the command with exit code 130; a message says how many uploads are stored and how to resume.
    An error before the first event, such as missing data, leaves no folder behind. A later one, such as a full disk,
    also says how to resume.
    """
    try:
        with sigterm_interrupts():
            yield
    except KeyboardInterrupt:
        typer.secho(f"cdfl: stopped; {_how_to_resume(folder, runs, num_uploads)}", err=True)
        raise typer.Exit(130) from None
    except Exception as error:
        for made in (*runs, folder):
            _remove_unused(made.path)
        if isinstance(error, OSError) and (folder.path / "config.json").exists():
            raise OSError(f"{folder.path}: {error}; {_how_to_resume(folder, runs, num_uploads)}") from error
        raise


def _how_to_resume(folder: RunFolder, runs: Sequence[RunFolder], num_uploads: int) -> str:
    """Return how many uploads are stored, and the command that resumes the run."""
    stored = [uploads for run in runs if (uploads := num_stored(run)) is not None]
    state = f"{sum(stored):,} of {num_uploads:,} uploads are stored" if stored else "nothing is stored yet"
    return f"{state}; {'continue' if stored else 'start again'} with:\n{resume_command(folder.path)}"


def num_stored(run: RunFolder) -> int | None:
    """Return how many uploads of an interrupted run need not be repeated; None if the run has to start again."""
    events = run.events()
    if checkpoint.exists(run.path):
        return len(only(events[: checkpoint.num_events(run.path)], Uploaded))
    return len(only(events, Uploaded)) if events and isinstance(events[-1], Finished) else None


def resume_command(out: Path) -> str:
    """Return the command line of this process with `--out` and `--resume`."""
    given = ["cdfl", *sys.argv[1:]]
    named = any(word == "--out" or word.startswith("--out=") for word in given)
    given += [] if named else ["--out", str(out)]
    return shlex.join(given if "--resume" in given else [*given, "--resume"])


def _remove_unused(path: Path) -> None:
    if not (path / "events.jsonl").exists() and not any(path.glob("*/events.jsonl")):
        for name in ("config.json", "versions.json"):
            (path / name).unlink(missing_ok=True)
        with suppress(OSError):  # the folder has other files
            path.rmdir()
