import os

import pytest

from cdfl.server import database_engine
from cdfl.server.store import Store

from .postgres import Postgres, find_binaries
from .toy import Toy


def pytest_collection_modifyitems(items):
    """`make test-fast` runs the tests of the store on SQLite only."""
    for item in items:
        if "postgresql" in item.name:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def disk(request, monkeypatch):
    """Do not wait for the disk, unless a test asks for `real_disk`: it may be slow, and nothing is cut off here."""
    if "real_disk" not in request.fixturenames:
        monkeypatch.setattr(os, "fsync", lambda file: None)
        monkeypatch.setattr(
            database_engine, "SQLITE", ("journal_mode = WAL", "synchronous = OFF", "secure_delete = ON")
        )


@pytest.fixture
def real_disk():
    """Wait for the disk in this test."""


@pytest.fixture(scope="session")
def postgres():
    """A running PostgreSQL; a test that stops it starts it again."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed: there is no initdb in /usr/lib/postgresql/*/bin or on the PATH")
    server = Postgres(binaries)
    try:
        server.start()
        yield server
    finally:
        server.delete()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request, tmp_path):
    """The URL of an empty database, once of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return request.getfixturevalue("postgres").new_schema()


@pytest.fixture
def where(store_url, tmp_path):
    """The places of an empty store, as `Store.open` takes them."""
    return store_url, tmp_path / "blobs"


@pytest.fixture
def store(where):
    """An open store, on each kind of database."""
    with Store.open(*where) as store:
        yield store


@pytest.fixture
def toy(store):
    """A small server on that store."""
    return Toy(store)
