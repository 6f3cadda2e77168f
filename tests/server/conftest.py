import pytest

from .postgres import Postgres, find_binaries


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
