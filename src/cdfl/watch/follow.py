"""Follow the events files of runs while they grow."""

import os
from pathlib import Path

FINISHED = b'{"event": "finished"'
PIECE = 2**20  # bytes read at once


class Follower:
    """Reads the complete new lines of one events file. A file that was begun again is read from its beginning."""

    def __init__(self, run: Path) -> None:
        self.file = run / "events.jsonl"
        self.is_finished = False
        self._identity: tuple[int, int] | None = None
        self._offset = 0

    def read(self) -> tuple[bool, list[bytes]]:
        """Return whether the file was begun again, and the lines that are new, without their ends."""
        try:
            with self.file.open("rb") as file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino)
                is_new = identity != self._identity or status.st_size < self._offset
                was_read = self._identity is not None
                if is_new:
                    self._identity, self._offset, self.is_finished = identity, 0, False
                file.seek(self._offset)
                data = file.read(PIECE)
        except OSError:  # the run has not begun, or its folder was deleted
            return False, []
        complete = data.rfind(b"\n") + 1
        self._offset += complete
        lines = data[:complete].splitlines()
        self.is_finished = self.is_finished or any(line.startswith(FINISHED) for line in lines)
        return is_new and was_read, lines
