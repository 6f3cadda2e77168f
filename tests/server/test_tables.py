"""One schema: other tables are refused, and nothing is changed in them."""

from dataclasses import fields

import pytest
import sqlalchemy as sa

from cdfl.core import Verdict
from cdfl.server import tables
from cdfl.server.auth import Tokens
from cdfl.server.database import Database
from cdfl.server.database_engine import parse_url
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreVersion
from cdfl.server.store_records import IDENTITY, Claim, Entry

from .toy import Toy, keep, some_entry, stored_blobs


@pytest.fixture
def engine(store_url):
    engine = sa.create_engine(parse_url(store_url), poolclass=sa.NullPool)
    yield engine
    engine.dispose()


def columns_of(engine) -> dict[str, set[str]]:
    inspector = sa.inspect(engine)
    return {table: {column["name"] for column in inspector.get_columns(table)} for table in inspector.get_table_names()}


@pytest.mark.parametrize("own", [True, False])
def test_a_new_store_has_the_tables(where, engine, own):
    assert not Database.exists(where[0])
    Store.open(*where, own=own).close()
    assert Database.exists(where[0])
    assert columns_of(engine) == {table.name: set(table.c.keys()) for table in tables.TABLES.sorted_tables}


UNKNOWN = "the database holds tables of another program or of an unknown version; expected those of 'cdfl 3': "


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            "UPDATE meta SET value = 'cdfl 7' WHERE name = 'schema'",
            "the database holds the tables of 'cdfl 7'; expected those of 'cdfl 3': use the cdfl that made them",
        ),
        ("DELETE FROM meta WHERE name = 'schema'", UNKNOWN),
        ("DROP TABLE meta", UNKNOWN),
    ],
)
def test_other_tables_are_refused(where, engine, own, change, words):
    with Store.open(*where) as store:
        Toy(store).upload("car-7")
    with engine.begin() as connection:
        connection.execute(sa.text(change))
    before = columns_of(engine)
    with pytest.raises(StoreVersion, match=f"^{words}"):
        Store.open(*where, own=own)
    assert columns_of(engine) == before


def test_tables_of_other_programs_may_be_beside_ours(where, engine):
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE theirs (name TEXT)"))
    with Store.open(*where) as store:
        Toy(store).upload("car-7")
    assert "theirs" in columns_of(engine)


def test_an_entry_comes_back_with_every_field(store, toy):
    """A field of the decision that a row lost would be lost in a crash, too."""
    entry = some_entry(
        0,
        outcome="rejected",
        base_epoch=1,
        losses=(0.1, 1e300, 5e-324),
        loss_gaps=(0.3, 0.2, 0.1),
        distances=(None, 2.0, 3.0),
        evaluated=(0.5, None),
        own_mixture=(0.25, 0.75, 0.0),
        verdict=Verdict(is_accepted=False, seen=(0.1, None), client=(2.5,), reason="too far"),
        last_mixture=(1.0, 0.0, 0.0),
        last_defence=(1.5,),
        report=(1.5, 0.25),
        upload=keep(store, b"upload"),
    )
    defaults = {field.name: field.default for field in fields(Entry)}
    told = [name for name in defaults if name not in IDENTITY and getattr(entry, name) == defaults[name]]
    assert told == []  # or this test says nothing of them
    store.commit([(entry, b"reply")])
    (kept,) = store.entries(after=0)
    assert kept.decision == entry.decision
    assert (kept.outcome, kept.key, kept.received) == (entry.outcome, entry.key, entry.received)
    assert stored_blobs(store, "upload") == []  # it moved nothing


def test_an_upload_costs_two_queries(store, toy):
    """One about the client and two, for a whole group: whether its clients may write, and what they were sent."""
    for client_id in ("car-7", "car-8"):
        toy.join(client_id)
        toy.upload(client_id)
    queries = []
    group = [
        toy.take(toy.state.replace(epoch=toy.state.epoch + number), f"car-{7 + number}", "k")[1] for number in (0, 1)
    ]

    def count(connection, cursor, statement, *_):
        if statement.lstrip().startswith("SELECT"):
            queries.append(statement)

    sa.event.listen(store.database.engine, "before_cursor_execute", count)
    assert store.client("car-7", epoch=2, key="key").last.epoch == 1
    assert len(queries) == 1
    claims = [Claim(name, since=store.client(name).since) for name in ("car-7", "car-8")]
    queries.clear()
    store.commit([(entry, b"reply") for entry in group], claims)
    assert len(queries) == 2
    assert Tokens(store.database).claim("nobody's") is None
    assert len(queries) == 3


def test_an_upload_costs_the_same_with_a_long_journal(tmp_path):
    """Counted in steps of SQLite's virtual machine: a statement that reads all entries of a client needs more."""
    steps = 0

    def step():
        nonlocal steps
        steps += 1

    with Store.open(f"sqlite:///{tmp_path}/store.db", tmp_path / "blobs") as store:
        toy = Toy(store)
        sa.event.listen(
            store.database.engine,
            "before_cursor_execute",
            lambda connection, cursor, *_: cursor.connection.set_progress_handler(step, 1),
        )

        def upload() -> int:
            """Look a client up and commit its upload; return the number of steps."""
            nonlocal steps
            toy.join("car-7")
            steps = 0
            store.client("car-7", epoch=toy.state.epoch, key="a new key")
            toy.upload("car-7")
            return steps

        upload()
        short = upload()
        for _ in range(300):
            toy.upload("car-7")
        assert short > 100  # they are counted
        assert upload() < 1.5 * short
