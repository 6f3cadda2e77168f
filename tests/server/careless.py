"""Servers that do not keep their word: whoever claims to notice that is tried on them."""

import os
from dataclasses import replace
from typing import Any

from benchmarks.crash.fork_server import cdfl
from cdfl.server import database, database_engine
from cdfl.server.store import Store


def without_syncing_files(*arguments: str) -> None:
    os.fsync = lambda file: None
    cdfl(*arguments)


def without_syncing_sqlite(*arguments: str) -> None:
    set_up = database_engine._set_up_sqlite

    def careless(connection: Any, record: object) -> None:
        set_up(connection, record)
        connection.execute("PRAGMA synchronous = OFF").close()

    database_engine._set_up_sqlite = careless
    cdfl(*arguments)


def without_syncing_postgresql(*arguments: str) -> None:
    options = str(database_engine._POSTGRES["options"])
    assert "synchronous_commit=on" in options
    database_engine._POSTGRES["options"] = options.replace("synchronous_commit=on", "synchronous_commit=off")
    cdfl(*arguments)


def recovering_other_models(*arguments: str) -> None:
    recover = Store.recover

    def careless(store: Store, *others: Any) -> Any:
        found = recover(store, *others)
        return found and replace(found, state=found.state.replace(cluster_models=found.state.cluster_models * 1.001))

    Store.recover = careless
    cdfl(*arguments)


def with_a_short_lease(*arguments: str) -> None:
    """Not careless: a front end that is paused is replaced soon."""
    database.LEASE_SECONDS, database.BEAT_SECONDS = 1, 0.2
    cdfl(*arguments)
