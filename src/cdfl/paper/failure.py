"""Groups of cells that were not run to their end: what is told of them."""

import traceback
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from textwrap import shorten


class UnfinishedError(RuntimeError):
    """Some groups failed; all others are kept."""

    def __init__(self, failures: "Sequence[Failure]", groups: int) -> None:
        lines = [f"{len(failures)} of {groups} groups failed; the others are kept, the same command tries these again:"]
        lines += [f"  {failure.group}: {failure.error}" for failure in failures]
        if any(failure.memory for failure in failures):
            lines.append("a smaller --together or --processes takes less memory")
        super().__init__("\n".join(lines))


@dataclass(frozen=True)
class Failure:
    """What became of a group. No exception, as that would hold on to the group's memory."""

    group: str
    error: str
    trace: str = ""  # of the calls, where only a developer can mend it
    memory: bool = False  # there was too little of it

    @classmethod
    def of(cls, group: str, error: Exception) -> "Failure":
        """What an exception comes to; call it where the exception is handled."""
        text = shorten(f"{type(error).__name__}: {error}", 300)
        # Pools break when the system ends one of their processes, which it does for want of memory.
        if isinstance(error, MemoryError | BrokenExecutor) or "out of memory" in text or "allocate memory" in text:
            return cls(group, text, memory=True)
        if isinstance(error, ModuleNotFoundError):
            return cls(group, f"{text}; what simulations need comes with: pip install 'cdfl[sim]'")
        return cls(group, text, "" if isinstance(error, ValueError | OSError) else traceback.format_exc())


def stopped(kept: int, cells: int, together: int) -> str:
    """What is told of cells when they are interrupted, of which as many as `together` share a group.

    >>> stopped(3, 11, 8)
    '3 of 11 cells are kept, 8 are missing; a group is kept when all of it is done: --together 1 loses less, slower'
    >>> stopped(3, 11, 1)
    '3 of 11 cells are kept, 8 are missing'
    """
    told = f"{kept} of {cells} cells are kept, {cells - kept} are missing"
    hint = "a group is kept when all of it is done: --together 1 loses less, slower"
    return f"{told}; {hint}" if together > 1 and kept < cells else told
