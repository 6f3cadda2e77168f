"""Keep what clients were sent: in memory up to a limit, and spilled to a temporary file beyond it.

A client sleeps from a reply to its next turn. In a large population most clients sleep for most of the run. Then the
model of a client lies in the file, bit for bit, and the client costs a few hundred bytes of memory.
"""

import errno
import os
import tempfile
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, ref

from torch import Tensor

from cdfl.core import Reply
from cdfl.sim.serialization import Serializer

BLOCK = 512  # records take whole blocks of the file, so that a record fits where another one was


@dataclass(frozen=True, eq=False)
class Held:
    """What a client holds between a reply and its next turn."""

    reply: Reply
    state: Any = None  # of the server at that reply, if clients read it
    experts: Tensor | None = None  # (K, P) the cluster models of the reply, as they came
    mixture: Tensor | None = None  # (K,) its own estimate at its last upload, by the router


class Kept:
    """What one or several clients hold, in memory or in the file; the file's blocks are freed with it."""

    __slots__ = ("__weakref__", "_held", "_size", "_store", "place")

    def __init__(self, store: "ClientStore", held: Held | None, size: int, place: tuple[int, int] | None) -> None:
        self._store = store
        self._held = held
        self._size = size
        self.place = place  # offset and length in the file; None if it is not there

    @property
    def is_asleep(self) -> bool:
        """Whether it is in the file alone."""
        return self._held is None

    def load(self) -> Held:
        """Return what is held."""
        return self._store.read(self) if self._held is None else self._held

    def sleep(self) -> None:
        """Keep it in the file alone."""
        if self._held is not None:
            if self.place is None:
                self.place = self._store.file.write(self._store.serializer.dumps(self._held))
            self._held = None
            self._store.count_awake(-1, self._size)

    def __del__(self) -> None:
        if self._held is not None:
            self._store.count_awake(-1, self._size)
        if self.place is not None:
            self._store.file.free(self.place)


class ClientStore:
    """Keeps what clients hold."""

    def __init__(self, serializer: Serializer, limit: int) -> None:
        self.serializer = serializer
        self.limit = limit  # bytes of tensors in memory
        self.num_awake, self.bytes_awake = 0, 0
        self.file = SpillFile()
        self._awake: deque[ReferenceType[Kept]] = deque()  # the oldest first

    def keep(self, held: Held) -> Kept:
        """Keep this, in memory for now."""
        size = self.serializer.num_bytes(held)
        kept = Kept(self, held, size, None)
        self.count_awake(1, size)
        self._awake.append(ref(kept))
        return kept

    def keep_record(self, record: bytes) -> Kept:
        """Keep a serialized record, in the file."""
        return Kept(self, None, 0, self.file.write(record))

    def read(self, kept: Kept) -> Held:
        """Read what is held from the file."""
        held: Held = self.serializer.loads(self.record(kept))
        return held

    def record(self, kept: Kept) -> bytes:
        """Return what is held as a record."""
        return self.serializer.dumps(kept.load()) if kept.place is None else self.file.read(kept.place)

    def shrink(self) -> None:
        """Move the oldest to the file until the limit is kept."""
        while self.bytes_awake > self.limit and self._awake:
            if (kept := self._awake.popleft()()) is not None:
                kept.sleep()
        if len(self._awake) > 2 * self.num_awake + 1000:  # most of them are gone
            self._awake = deque(each for each in self._awake if each() is not None)

    def count_awake(self, change: int, size: int) -> None:
        """Count one more or less in memory."""
        self.num_awake += change
        self.bytes_awake += change * size


class SpillFile:
    """A temporary file without a name: it is gone when the program ends, however it ends."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._end = 0
        self._free: dict[int, list[int]] = defaultdict(list)  # offsets, by the number of blocks

    def write(self, data: bytes) -> tuple[int, int]:
        """Write a record; return its offset and length."""
        if self._file is None:
            with tempfile.TemporaryFile(prefix="cdfl-") as file:
                self._file = os.dup(file.fileno())
        blocks = -(-len(data) // BLOCK)
        if free := self._free[blocks]:
            offset = free.pop()
        else:
            offset, self._end = self._end, self._end + blocks * BLOCK
        try:
            if os.pwrite(self._file, data, offset) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise OSError(
                f"models of sleeping clients cannot be written to {tempfile.gettempdir()} ({error.strerror}, "
                f"{self._end / 1e9:.1f} GB needed so far); free space there, or set TMPDIR to a larger disk"
            ) from error
        return offset, len(data)

    def read(self, place: tuple[int, int]) -> bytes:
        """Return a record."""
        assert self._file is not None  # noqa: S101  it was written
        return os.pread(self._file, place[1], place[0])

    def free(self, place: tuple[int, int]) -> None:
        """Let another record take the place of this one."""
        self._free[-(-place[1] // BLOCK)].append(place[0])

    @property
    def num_bytes(self) -> int:
        """The size of the file."""
        return self._end

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)
