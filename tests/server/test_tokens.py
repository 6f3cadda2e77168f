import sqlalchemy as sa

from cdfl.server.auth import Tokens
from cdfl.server.store import Store
from cdfl.server.tables import tokens as table


def test_a_token_belongs_to_one_client(store):
    first, second, other = [Tokens(store.database).create(name) for name in ("car-7", "car-7", "car-8")]
    assert len({first, second, other}) == 3
    assert all(token.startswith("cdfl_") and len(token) >= 48 for token in (first, second, other))
    assert [Tokens(store.database).client(token) for token in (first, second, other)] == ["car-7", "car-7", "car-8"]
    assert Tokens(store.database).client("cdfl_guessed") is None
    assert Tokens(store.database).client(first[:-1]) is None
    assert Tokens(store.database).client("") is None


def test_only_hashes_are_stored(store):
    token = Tokens(store.database).create("car-7")
    with store.reading() as connection:
        stored = str(connection.execute(sa.select(table)).all())
    assert token not in stored
    assert token.removeprefix("cdfl_") not in stored


def test_a_revoked_token_is_unknown(store):
    first, second, other = [Tokens(store.database).create(name) for name in ("car-7", "car-7", "car-8")]
    records = Tokens(store.database).all()
    assert [record.client_id for record in records] == ["car-7", "car-7", "car-8"]
    assert Tokens(store.database).revoke(records[0].token_id) == [records[0]]
    assert [Tokens(store.database).client(token) for token in (first, second, other)] == [None, "car-7", "car-8"]
    assert [record.revoked is None for record in Tokens(store.database).all()] == [False, True, True]
    assert [record.token_id for record in Tokens(store.database).revoke("car-7")] == [records[1].token_id]
    assert Tokens(store.database).client(second) is None
    assert Tokens(store.database).revoke("car-7") == store.tokens.revoke("%") == store.tokens.revoke("") == []
    assert Tokens(store.database).client(other) == "car-8"


def test_a_running_server_sees_them_at_once(store, where):
    with Store.open(*where, own=False) as beside:
        token = beside.tokens.create("car-7")
        assert Tokens(store.database).client(token) == "car-7"
        beside.tokens.revoke("car-7")
        assert Tokens(store.database).client(token) is None
