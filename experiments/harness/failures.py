"""Groups of cells that failed or were interrupted: what is printed."""

import traceback
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from textwrap import shorten


class UnfinishedError(RuntimeError):
    """Some groups failed; the others are stored."""

    def __init__(self, failures: "Sequence[Failure]", groups: int) -> None:
        lines = [
            f"{len(failures)} of {groups} groups failed; the others are stored; repeat the command to try these again:"
        ]
        lines += [f"  {failure.group}: {failure.error}" for failure in failures]
        if any(failure.memory for failure in failures):
            lines.append("use a smaller --together or --processes to save memory")
        super().__init__("\n".join(lines))


@dataclass(frozen=True)
class Failure:
    """A group that failed. Not an exception: that would keep the group's memory alive."""

    group: str
    error: str
    trace: str = ""  # the traceback, if it is a bug
    memory: bool = False  # out of memory

    @classmethod
    def of(cls, group: str, error: Exception) -> "Failure":
        """Return the failure for an exception; call it in the handler."""
        text = shorten(f"{type(error).__name__}: {error}", 300)
        # A pool breaks when the system kills one of its processes, usually for lack of memory.
        if isinstance(error, MemoryError | BrokenExecutor) or "out of memory" in text or "allocate memory" in text:
            return cls(group, text, memory=True)
        if isinstance(error, ModuleNotFoundError):
            return cls(group, f"{text}; install it with: pip install 'cdfl[sim]'")
        return cls(group, text, "" if isinstance(error, ValueError | OSError) else traceback.format_exc())


def stopped(kept: int, cells: int, together: int) -> str:
    """Return the message for an interruption; `together` is the size of a group.

    >>> stopped(3, 11, 8)
    '3 of 11 cells are stored, 8 are missing; only whole groups are stored: --together 1 loses less, but is slower'
    >>> stopped(3, 11, 1)
    '3 of 11 cells are stored, 8 are missing'
    """
    message = f"{kept} of {cells} cells are stored, {cells - kept} are missing"
    hint = "only whole groups are stored: --together 1 loses less, but is slower"
    return f"{message}; {hint}" if together > 1 and kept < cells else message
