"""What is left of a run that does not reach its end: something to go on with, or nothing at all."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import typer

from cdfl.record import Finished, RunFolder, Uploaded, only
from cdfl.signals import sigterm_interrupts
from cdfl.sim import checkpoint


@contextmanager
def keeping(folder: RunFolder, runs: Sequence[RunFolder], num_uploads: int) -> Iterator[None]:
    """Run into folders: `folder` is what `--out` names, `runs` are the runs in it, `num_uploads` those of all of them.

    Ctrl-C and SIGTERM (Slurm, docker stop) end it with exit code 130, and tell what is kept and how to go on. An error
    before anything is told, such as data that are not there, leaves no folder behind; one that comes later, such as a
    full disk, tells how to go on as well.
    """
    try:
        with sigterm_interrupts():
            yield
    except KeyboardInterrupt:
        typer.secho(f"cdfl: stopped; {_left(folder, runs, num_uploads)}", err=True)
        raise typer.Exit(130) from None
    except Exception as error:
        for made in (*runs, folder):
            _remove_unused(made.path)
        if isinstance(error, OSError) and (folder.path / "config.json").exists():
            raise OSError(f"{folder.path}: {error}; {_left(folder, runs, num_uploads)}") from error
        raise


def _left(folder: RunFolder, runs: Sequence[RunFolder], num_uploads: int) -> str:
    """What is kept, and the command that goes on."""
    known = [uploads for run in runs if (uploads := num_kept(run)) is not None]
    state = f"{sum(known):,} of {num_uploads:,} uploads are kept" if known else "nothing is kept yet"
    return f"{state}; {'go on' if known else 'begin again'} with:\n{command_to_go_on(folder.path)}"


def num_kept(run: RunFolder) -> int | None:
    """How many uploads of an interrupted run need not be computed again; None if it has to begin anew."""
    told = run.events()
    if checkpoint.exists(run.path):
        return len(only(told[: checkpoint.num_events(run.path)], Uploaded))
    return len(only(told, Uploaded)) if told and isinstance(told[-1], Finished) else None


def command_to_go_on(out: Path) -> str:
    """The command that was given, with what it takes to find and resume its folder."""
    given = ["cdfl", *sys.argv[1:]]
    named = any(word == "--out" or word.startswith("--out=") for word in given)
    given += [] if named else ["--out", str(out)]
    return shlex.join(given if "--resume" in given else [*given, "--resume"])


def _remove_unused(path: Path) -> None:
    if not (path / "events.jsonl").exists() and not any(path.glob("*/events.jsonl")):
        for name in ("config.json", "versions.json"):
            (path / name).unlink(missing_ok=True)
        with suppress(OSError):  # something else is in there
            path.rmdir()
