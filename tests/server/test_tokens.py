import pytest
import sqlalchemy as sa

from cdfl.server.auth import Tokens
from cdfl.server.store import Store
from cdfl.server.tables import tokens as table


@pytest.fixture
def tokens(store):
    return Tokens(store.database)


def client_of(tokens, token):
    claim = tokens.claim(token)
    return claim and claim.client_id


def test_a_token_belongs_to_one_client(tokens):
    first, second, other = [tokens.create(name) for name in ("car-7", "car-7", "car-8")]
    assert len({first, second, other}) == 3
    assert all(token.startswith("cdfl_") and len(token) >= 48 for token in (first, second, other))
    assert [client_of(tokens, token) for token in (first, second, other)] == ["car-7", "car-7", "car-8"]
    assert tokens.claim("cdfl_guessed") is None
    assert tokens.claim(first[:-1]) is None
    assert tokens.claim("") is None


def test_only_hashes_are_stored(store, tokens):
    token = tokens.create("car-7")
    with store.reading() as connection:
        stored = str(connection.execute(sa.select(table)).all())
    assert token not in stored
    assert token.removeprefix("cdfl_") not in stored


def test_a_revoked_token_is_unknown(tokens):
    first, second, other = [tokens.create(name) for name in ("car-7", "car-7", "car-8")]
    records = tokens.all()
    assert [record.client_id for record in records] == ["car-7", "car-7", "car-8"]
    assert tokens.revoke(records[0].token_id) == [records[0]]
    assert [client_of(tokens, token) for token in (first, second, other)] == [None, "car-7", "car-8"]
    assert [record.revoked is None for record in tokens.all()] == [False, True, True]
    assert [record.token_id for record in tokens.revoke("car-7")] == [records[1].token_id]
    assert tokens.claim(second) is None
    assert tokens.revoke("car-7") == tokens.revoke("%") == tokens.revoke("") == []
    assert client_of(tokens, other) == "car-8"


def test_a_running_server_sees_them_at_once(tokens, where):
    with Store.open(*where, own=False) as beside:
        token = Tokens(beside.database).create("car-7")
        assert tokens.claim(token).client_id == "car-7"
        Tokens(beside.database).revoke("car-7")
        assert tokens.claim(token) is None
