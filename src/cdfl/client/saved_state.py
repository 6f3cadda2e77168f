"""What a client keeps on disk to survive a restart: a small JSON file and the models it names.

`state.json` is replaced atomically, after the models it names are on disk. A kill at any moment leaves the old state or
the new one. Models are files named by their SHA-256; they hold the bytes that were received or will be sent.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cdfl.client.errors import StateError
from cdfl.core.quantization import ExpertType
from cdfl.upload_policies import Memory

VERSION = 1


@dataclass(frozen=True, eq=False)
class Blob:
    """A model, experts or a router, as safetensors."""

    data: bytes

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the data, in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, eq=False)
class PendingUpload:
    """An upload that the server has not answered. Every attempt sends the same key and the same bytes."""

    key: str
    base_epoch: int
    upload: Blob
    local_model: Blob  # the trained model; the upload may be rounded or have noise added
    mixture: tuple[float, ...] = ()  # that it was trained from and is sent along; () if none is sent


@dataclass(frozen=True, eq=False)
class SavedState:
    """Everything a client remembers."""

    client_id: str
    epoch: int = 0  # of the last reply: the base epoch of the next upload
    mixture: tuple[float, ...] = ()
    personal_model: Blob | None = None  # the last reply: a model or experts; None: never joined
    pending: PendingUpload | None = None
    uploads: int = 0  # models made for upload, including those that never arrived
    policy: str = ""  # the policy that `memory` belongs to
    memory: Memory = ()
    experts: ExpertType | None = None  # how the experts in the last reply are rounded; None: it is one model
    router: Blob | None = None
    own_mixture: tuple[float, ...] = ()  # the client's own estimate; () if it never made one
    uploaded_mixture: tuple[float, ...] = ()  # the same, at its last upload

    @property
    def blobs(self) -> list[Blob]:
        """All models of this state, and its router."""
        received = [blob for blob in (self.personal_model, self.router) if blob]
        return received + ([self.pending.upload, self.pending.local_model] if self.pending else [])


class StateFolder:
    """A folder that holds the state of one client. Only one process at a time may use it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)  # a model reveals something about its training data
            self._lock = _lock(path)
        except OSError as error:
            raise StateError(f"the state folder {path} cannot be used: {error}") from error

    def load(self, client_id: str) -> SavedState:
        """Read the state. An empty folder gives the state of a client that never joined."""
        file = self.path / "state.json"
        if not file.exists():
            return SavedState(client_id)
        try:
            state = self._read(file)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"the state in {self.path} cannot be read ({error}); restore it from a copy, or delete the folder "
                "to join again: a model that was trained and not yet uploaded is then lost"
            ) from error
        if state.client_id != client_id:
            raise StateError(
                f"{self.path} holds the state of client {state.client_id!r}, not of {client_id!r}; "
                "name another state_dir"
            )
        return state

    def save(self, state: SavedState) -> None:
        """Write the state. It is on disk when this returns."""
        try:
            for blob in state.blobs:
                file = self._file(blob.digest)
                if not file.exists():
                    _write(file, blob.data)
            _write(self.path / "state.json", _to_json(state))
            self._remove_unused({self._file(blob.digest) for blob in state.blobs})
        except OSError as error:
            raise StateError(
                f"the state cannot be written to {self.path}: {error}; free some space, then repeat"
            ) from error

    def close(self) -> None:
        """Release the folder for other processes."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _remove_unused(self, used: set[Path]) -> None:
        """Delete models that the state does not name, and files that a kill left half-written."""
        for pattern in ("*.safetensors", "*.new"):
            for file in self.path.glob(pattern):
                if file not in used:
                    file.unlink()

    def _file(self, digest: str) -> Path:
        return self.path / f"{digest}.safetensors"

    def _read(self, file: Path) -> SavedState:
        values = json.loads(file.read_bytes())
        if values.pop("digest") != _digest(values):
            raise ValueError("its checksum is wrong")
        if values["version"] != VERSION:
            raise ValueError(f"it has version {values['version']}, this cdfl reads version {VERSION}")
        pending = values["pending"]
        return SavedState(
            client_id=values["client_id"],
            epoch=values["epoch"],
            mixture=tuple(values["mixture"]),
            personal_model=None if values["personal_model"] is None else self._blob(values["personal_model"]),
            pending=pending
            and PendingUpload(
                pending["key"],
                pending["base_epoch"],
                self._blob(pending["upload"]),
                self._blob(pending["local_model"]),
                tuple(pending["mixture"]),
            ),
            experts=values["experts"],
            router=None if values["router"] is None else self._blob(values["router"]),
            own_mixture=tuple(values["own_mixture"]),
            uploaded_mixture=tuple(values["uploaded_mixture"]),
            uploads=values["uploads"],
            policy=values["policy"],
            memory=tuple(values["memory"]),
        )

    def _blob(self, digest: str) -> Blob:
        blob = Blob(self._file(digest).read_bytes())
        if blob.digest != digest:
            raise ValueError(f"the checksum of {self._file(digest).name} is wrong")
        return blob


def _to_json(state: SavedState) -> bytes:
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
            "mixture": list(pending.mixture),
        },
        "experts": state.experts,
        "router": state.router and state.router.digest,
        "own_mixture": list(state.own_mixture),
        "uploaded_mixture": list(state.uploaded_mixture),
        "uploads": state.uploads,
        "policy": state.policy,
        "memory": list(state.memory),
    }
    return json.dumps(values | {"digest": _digest(values)}, indent=2).encode() + b"\n"


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _write(file: Path, data: bytes) -> None:
    """Replace a file atomically. Its bytes and its name are on disk when this returns."""
    new = file.with_suffix(".new")
    with new.open("wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
    new.replace(file)
    if os.name == "posix":  # elsewhere a folder cannot be synced
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _lock(path: Path) -> int | None:
    """Lock the folder for this process and return the handle; None on systems without such locks."""
    try:
        import fcntl
    except ModuleNotFoundError:
        return None
    handle = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise StateError(f"{path} is in use by another client; close that one, or name another state_dir") from None
    return handle
