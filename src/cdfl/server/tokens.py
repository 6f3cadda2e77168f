"""Tokens of clients. Only their hashes are stored: who reads the database cannot speak for a client."""

import hashlib
import secrets
import time

import sqlalchemy as sa
from sqlalchemy import select

from cdfl.server.database import Database
from cdfl.server.journal import TokenRecord
from cdfl.server.schema import tokens

ID_LENGTH = 12  # of the hash: enough to name a token, too little to guess anything


class Tokens:
    """The tokens of a store. May be used beside a running server."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, client_id: str) -> str:
        """A new token of a client: 256 random bits, shown this once. Earlier ones stay valid until revoked."""
        token = f"cdfl_{secrets.token_urlsafe(32)}"
        row = {"hash": _hash(token), "client_id": client_id, "created": time.time()}
        with self._database.write() as connection:
            connection.execute(sa.insert(tokens).values(row))
        return token

    def all(self) -> list[TokenRecord]:
        """All tokens, by client and age."""
        with self._database.read() as connection:
            rows = connection.execute(select(tokens).order_by(tokens.c.client_id, tokens.c.created)).all()
        return [TokenRecord(row.hash[:ID_LENGTH], row.client_id, row.created, row.revoked) for row in rows]

    def revoke(self, name: str) -> list[TokenRecord]:
        """Revoke all tokens of a client, or one by its id; returns those that were valid until now."""
        named = [token for token in self.all() if name in (token.client_id, token.token_id) and token.revoked is None]
        with self._database.write() as connection:
            for token in named:
                chosen = sa.update(tokens).where(tokens.c.hash.startswith(token.token_id, autoescape=True))
                connection.execute(chosen.values(revoked=time.time()))
        return named

    def client(self, token: str) -> str | None:
        """The client a token belongs to; None: unknown or revoked."""
        valid = select(tokens.c.client_id).where(tokens.c.hash == _hash(token), tokens.c.revoked.is_(None))
        with self._database.read() as connection:
            return connection.execute(valid).scalar()


def _hash(token: str) -> str:
    """No salt, no slow hash: a token is random already, there is nothing to guess."""
    return hashlib.sha256(token.encode()).hexdigest()
