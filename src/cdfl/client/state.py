"""What a client must not forget when it is switched off: a small file, and the models it names.

`state.json` is replaced in one step, after the models it names are on disk; so at any moment a kill leaves the old
state or the new one. Models are files named by their SHA-256, exactly as they came or will go over the network.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cdfl.client.errors import StateError
from cdfl.policy import Memory

VERSION = 1


@dataclass(frozen=True, eq=False)
class Blob:
    """A model as safetensors."""

    data: bytes

    @cached_property
    def digest(self) -> str:
        """Its name."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, eq=False)
class Pending:
    """An upload that has not been answered. It is sent with the same key and the same bytes until it is."""

    key: str
    base_epoch: int
    upload: Blob
    local_model: Blob  # what was trained: the upload itself may be rounded, or have noise on it


@dataclass(frozen=True, eq=False)
class State:
    """All that a client remembers."""

    client_id: str
    epoch: int = 0  # of the last reply: the base epoch of the next upload
    mixture: tuple[float, ...] = ()
    personal_model: Blob | None = None  # None: never joined
    pending: Pending | None = None
    uploads: int = 0  # models that were made for upload, whether or not they arrived
    policy: str = ""  # whose memory it is
    memory: Memory = ()

    @property
    def blobs(self) -> list[Blob]:
        """The models it names."""
        mine = [self.personal_model] if self.personal_model else []
        return mine + ([self.pending.upload, self.pending.local_model] if self.pending else [])


class Volatile:
    """A state that ends with the process."""

    def load(self, client_id: str) -> State:
        """Nothing is known."""
        return State(client_id)

    def save(self, state: State) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing to do."""


class Folder:
    """A folder that holds the state of one client; one process at a time may use it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)  # a model tells of the data it was trained on
            self._lock = _lock(path)
        except OSError as error:
            raise StateError(f"the state folder {path} cannot be used: {error}") from error

    def load(self, client_id: str) -> State:
        """Read the state; a folder without one is a client that never joined."""
        file = self.path / "state.json"
        if not file.exists():
            return State(client_id)
        try:
            state = self._read(file)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"the state in {self.path} cannot be read ({error}); bring it back from a copy, or delete the folder "
                "to join anew: what was trained and not yet uploaded is then lost"
            ) from error
        if state.client_id != client_id:
            raise StateError(f"{self.path} holds the state of client {state.client_id!r}, not of {client_id!r}")
        return state

    def save(self, state: State) -> None:
        """Keep the state; it is on disk when this returns."""
        try:
            for blob in state.blobs:
                file = self._file(blob.digest)
                if not file.exists():
                    _write(file, blob.data)
            _write(self.path / "state.json", _to_json(state))
            self._sweep({self._file(blob.digest) for blob in state.blobs})
        except OSError as error:
            raise StateError(f"the state cannot be kept in {self.path}: {error}; make room, then repeat") from error

    def close(self) -> None:
        """Let another process use the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _sweep(self, named: set[Path]) -> None:
        """Delete models that nothing names, and what a kill left half-written."""
        for pattern in ("*.safetensors", "*.new"):
            for file in self.path.glob(pattern):
                if file not in named:
                    file.unlink()

    def _file(self, digest: str) -> Path:
        return self.path / f"{digest}.safetensors"

    def _read(self, file: Path) -> State:
        values = json.loads(file.read_bytes())
        if values.pop("digest") != _digest(values):
            raise ValueError("its checksum is wrong")
        if values["version"] != VERSION:
            raise ValueError(f"it has version {values['version']}, this cdfl reads version {VERSION}")
        pending = values["pending"]
        return State(
            client_id=values["client_id"],
            epoch=values["epoch"],
            mixture=tuple(values["mixture"]),
            personal_model=None if values["personal_model"] is None else self._blob(values["personal_model"]),
            pending=pending
            and Pending(
                pending["key"], pending["base_epoch"], self._blob(pending["upload"]), self._blob(pending["local_model"])
            ),
            uploads=values["uploads"],
            policy=values["policy"],
            memory=tuple(values["memory"]),
        )

    def _blob(self, digest: str) -> Blob:
        blob = Blob(self._file(digest).read_bytes())
        if blob.digest != digest:
            raise ValueError(f"the checksum of {self._file(digest).name} is wrong")
        return blob


def _to_json(state: State) -> bytes:
    pending = state.pending
    values: dict[str, Any] = {
        "version": VERSION,
        "client_id": state.client_id,
        "epoch": state.epoch,
        "mixture": list(state.mixture),
        "personal_model": state.personal_model and state.personal_model.digest,
        "pending": pending
        and {
            "key": pending.key,
            "base_epoch": pending.base_epoch,
            "upload": pending.upload.digest,
            "local_model": pending.local_model.digest,
        },
        "uploads": state.uploads,
        "policy": state.policy,
        "memory": list(state.memory),
    }
    return json.dumps(values | {"digest": _digest(values)}, indent=2).encode() + b"\n"


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _write(file: Path, data: bytes) -> None:
    """Replace a file in one step; its bytes and its name are on disk when this returns."""
    new = file.with_suffix(".new")
    with new.open("wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
    new.replace(file)
    if os.name == "posix":  # elsewhere a folder cannot be synced, and need not be
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _lock(path: Path) -> int | None:
    """Take the folder for this process, until it ends; where there are no such locks, trust the user."""
    try:
        import fcntl
    except ModuleNotFoundError:
        return None
    handle = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise StateError(f"{path} is in use by another client; end that one, or name another state_dir") from None
    return handle
