"""Old stores are brought up to date, newer ones refused."""

import json

import pytest
import sqlalchemy as sa

from cdfl.server import schema
from cdfl.server.database import Database, parse_url
from cdfl.server.journal import StoreBusy, StoreVersion
from cdfl.server.store import Store
from cdfl.server.verify import verify

from .toy import HYPERPARAMS, Toy, same_state

VERSION_1 = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE snapshots (epoch BIGINT PRIMARY KEY, created DOUBLE PRECISION NOT NULL, cluster_losses TEXT NOT NULL,
    cluster_epochs TEXT NOT NULL, settings TEXT NOT NULL, models TEXT NOT NULL, digests TEXT NOT NULL);
CREATE TABLE journal (epoch BIGINT PRIMARY KEY, client_id TEXT, base_epoch BIGINT NOT NULL, key TEXT NOT NULL,
    digest TEXT NOT NULL, outcome TEXT NOT NULL, losses TEXT, cluster_losses TEXT NOT NULL, mixture TEXT NOT NULL,
    rates TEXT NOT NULL, staleness BIGINT NOT NULL, received DOUBLE PRECISION NOT NULL, upload TEXT, reply TEXT);
CREATE UNIQUE INDEX journal_key ON journal (client_id, key);
CREATE INDEX journal_client ON journal (client_id, epoch);
CREATE TABLE clients (client_id TEXT PRIMARY KEY, since DOUBLE PRECISION NOT NULL, uploads BIGINT NOT NULL);
CREATE TABLE grants (client_id TEXT NOT NULL, epoch BIGINT NOT NULL, PRIMARY KEY (client_id, epoch));
CREATE TABLE tokens (hash TEXT PRIMARY KEY, client_id TEXT NOT NULL, created DOUBLE PRECISION NOT NULL,
    revoked DOUBLE PRECISION);
"""
# What version 1 did not know.
LATER = ("harm", "usual_harm", "past_harm", "recent_harms", "base", "model", "given", "distances", "usual_measures")
LATER_HYPERPARAMS = ("max_harm", "cluster_step", "measures")
TOWARDS = HYPERPARAMS.replace(cluster_step="towards")


@pytest.fixture
def engine(store_url):
    engine = sa.create_engine(parse_url(store_url), poolclass=sa.NullPool)
    yield engine
    engine.dispose()


@pytest.fixture
def old(where, engine, tmp_path):
    """A store of version 1, with a snapshot, uploads after it, a grant and a token; and the server it belongs to."""
    with Store.open(f"sqlite:///{tmp_path}/new.db", where[1]) as new:
        toy = Toy(new, settings=TOWARDS)
        toy.upload("car-7", "car-8")
        toy.snapshot()
        toy.upload("car-7", "car-9")
        new.grant("car-8", 3)
        toy.token = new.tokens.create("car-7")
    source = sa.create_engine(f"sqlite:///{tmp_path}/new.db", poolclass=sa.NullPool)
    with engine.begin() as target, source.connect() as rows:
        for statement in filter(str.strip, VERSION_1.split(";")):
            target.execute(sa.text(statement))
        for table in ("meta", "snapshots", "journal", "clients", "grants", "tokens"):
            for row in rows.execute(sa.text(f"SELECT * FROM {table}")).mappings():  # noqa: S608
                columns = {name: row[name] for name in row if name not in LATER}
                if table == "snapshots":
                    chosen = json.loads(row["settings"])
                    known = {name: value for name, value in chosen.items() if name not in LATER_HYPERPARAMS}
                    columns["settings"] = json.dumps(known)
                named = ", ".join(columns), ", ".join(f":{name}" for name in columns)
                target.execute(sa.text(f"INSERT INTO {table} ({named[0]}) VALUES ({named[1]})"), columns)  # noqa: S608
        target.execute(sa.text("UPDATE meta SET value = '1' WHERE name = 'schema_version'"))
    return toy


def columns_of(engine) -> dict[str, set[str]]:
    inspector = sa.inspect(engine)
    return {table: {column["name"] for column in inspector.get_columns(table)} for table in inspector.get_table_names()}


def columns_of_ours() -> dict[str, set[str]]:
    return {table.name: set(table.c.keys()) for table in schema.TABLES.sorted_tables}


def test_the_steps_lead_to_the_tables_we_use(where, engine):
    Store.open(*where).close()
    assert columns_of(engine) == columns_of_ours()


def test_an_old_store_is_brought_up_to_date(old, where, engine):
    assert Database.version(where[0]) == 1
    with Store.open(*where) as store:
        recovered = store.recover()
        assert same_state(recovered.state.replace(recent_harms=old.state.recent_harms), old.state)
        assert recovered.settings == TOWARDS
        assert store.client("car-7").uploads == 2
        assert store.entries(after=0)[0].harm is None
        assert store.entries(after=0)[0].past_harm == 1
        assert store.entries(after=0)[0].distances is None
        assert store.was_given("car-8", 3)
        assert store.tokens.client(old.token) == "car-7"
        assert verify(store).findings == []
        toy = Toy(store, settings=TOWARDS)
        toy.upload("car-7")
        assert store.entries(after=4)[0].base is None
        toy.settings = HYPERPARAMS  # from here on, steps need what uploads were trained from
        store.snapshot(toy.state, HYPERPARAMS)
        toy.upload("car-7", "car-8")
        assert same_state(store.recover().state, toy.state)
        assert verify(store).findings == []
        store.ask_to_forget("car-7")
    assert Database.version(where[0]) == schema.VERSION
    assert columns_of(engine) == columns_of_ours()


def test_relative_measures_begin_in_a_store_of_version_5(where, engine):
    relative = HYPERPARAMS.replace(measures="relative")
    with Store.open(*where) as store:
        toy = Toy(store)
        toy.upload("car-7", "car-8")
        toy.snapshot()
        toy.upload("car-7")
    with engine.begin() as connection:
        for table, column in (("journal", "distances"), ("snapshots", "usual_measures")):
            connection.execute(sa.text(f"ALTER TABLE {table} DROP COLUMN {column}"))
        for epoch, text in connection.execute(sa.text("SELECT epoch, settings FROM snapshots")).all():
            known = {name: value for name, value in json.loads(text).items() if name != "measures"}
            changed = sa.text("UPDATE snapshots SET settings = :known WHERE epoch = :epoch")
            connection.execute(changed, {"known": json.dumps(known), "epoch": epoch})
        connection.execute(sa.text("UPDATE meta SET value = '5' WHERE name = 'schema_version'"))
    with Store.open(*where) as store:
        assert columns_of(engine) == columns_of_ours()
        recovered = store.recover()
        assert same_state(recovered.state, toy.state)
        assert recovered.state.usual_measures.tolist() == [[0.0] * 3] * 3
        assert recovered.settings == HYPERPARAMS
        assert verify(store).findings == []
        toy = Toy(store, settings=relative)
        store.snapshot(toy.state, relative)
        toy.upload("car-7", "car-8")
        assert bool(toy.state.usual_measures.all())
        assert same_state(store.recover().state, toy.state)
        assert verify(store).findings == []


def test_a_command_brings_an_old_store_up_to_date_as_well(old, where):
    with Store.open(*where, own=False) as store:
        assert store.asked_to_forget() == []
    assert Database.version(where[0]) == schema.VERSION


def test_but_not_behind_the_back_of_a_server(where, monkeypatch):
    with Store.open(*where):
        monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)  # a newer cdfl beside an older server
        with pytest.raises(StoreBusy, match="the store is in use"):
            Store.open(*where, own=False)


def test_a_step_that_fails_changes_nothing(old, where, engine, monkeypatch):
    before = columns_of(engine)
    monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, ("CREATE TABLE more (name TEXT)", "DROP TABLE nothing")))
    monkeypatch.setattr(schema, "VERSION", len(schema.STEPS))
    with pytest.raises(Exception, match="nothing"):
        Store.open(*where)
    assert columns_of(engine) == before
    monkeypatch.undo()
    with Store.open(*where) as store:
        assert store.recover().replayed == 2


@pytest.mark.parametrize("own", [True, False])
def test_a_newer_store_is_refused(where, engine, own):
    with Store.open(*where) as store:
        Toy(store).upload("car-7")
    newer = schema.VERSION + 1
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE meta SET value = '{newer}' WHERE name = 'schema_version'"))  # noqa: S608
    expected = f"the store has schema {newer}, this cdfl knows schemas up to {schema.VERSION}; upgrade cdfl"
    with pytest.raises(StoreVersion, match=expected):
        Store.open(*where, own=own)
