"""The errors of a store.

StoreError
├── StoreUnavailable   database or disk unreachable, full or read-only; nothing was changed, try again later
├── StoreBusy          another server owns this store
├── StoreLost          another server has taken over this store; this one must stop, or follow it
├── Withdrawn          a client was forgotten, its token revoked, or another upload of it taken, before its data were
│                      written
├── StoreVersion       another version of cdfl made the tables
└── StoreDamaged       a stored value is not what was written
"""


class StoreError(Exception):
    """The store cannot do what was asked; the message says why and what to do."""


class StoreUnavailable(StoreError):  # noqa: N818 - named for what it says to the caller
    """Database or disk are unreachable, full or read-only. Nothing was changed; repeat the call later."""


class StoreBusy(StoreError):  # noqa: N818
    """Another process owns the store."""


class StoreLost(StoreError):  # noqa: N818
    """Another server took over the store while this one could not reach it. This one must stop, or follow it."""


class StoreVersion(StoreError):  # noqa: N818
    """Another version of cdfl, or another program, made the tables."""


class StoreDamaged(StoreError):  # noqa: N818
    """A stored value is not what was written."""

    def __init__(self, what: str, remedy: str = "restore a backup, or go back with `cdfl rollback`") -> None:
        super().__init__(f"{what}; {remedy}")
        self.what = what


class Withdrawn(StoreError):  # noqa: N818
    """Clients may not write what they were about to write. Nothing was written."""

    def __init__(self, client_ids: set[str], overtaken: set[str]) -> None:
        super().__init__(
            f"{len(client_ids)} clients were forgotten, or their tokens revoked, in the meantime; of {len(overtaken)} "
            "another upload was taken"
        )
        self.client_ids = client_ids  # forgotten, or with a token that was revoked
        self.overtaken = overtaken  # of which another upload was taken
