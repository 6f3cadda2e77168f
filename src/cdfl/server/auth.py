"""Who may use the server: the tokens of clients, and the operator's."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy import select

from cdfl.server.database import Database
from cdfl.server.records import TokenRecord
from cdfl.server.tables import tokens
from cdfl.wire import CLIENT, ForbiddenError, UnauthorizedError, bearer_token, check_client_id

ID_LENGTH = 12  # digits of the hash: enough to identify a token, too few to guess it


class Tokens:
    """The tokens of a store. Only hashes are stored. May be used beside a running server."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, client_id: str) -> str:
        """Return a new token of a client; it cannot be read again. Earlier ones stay valid until revoked."""
        token = f"cdfl_{secrets.token_urlsafe(32)}"
        row = {"hash": _hash(token), "client_id": client_id, "created": time.time()}
        with self._database.write() as connection:
            connection.execute(sa.insert(tokens).values(row))
        return token

    def all(self) -> list[TokenRecord]:
        """Return all tokens, by client and age."""
        with self._database.read() as connection:
            rows = connection.execute(select(tokens).order_by(tokens.c.client_id, tokens.c.created)).all()
        return [TokenRecord(row.hash[:ID_LENGTH], row.client_id, row.created, row.revoked) for row in rows]

    def revoke(self, name: str) -> list[TokenRecord]:
        """Revoke all tokens of a client, or one by its id; return those that were valid until now."""
        named = [token for token in self.all() if name in (token.client_id, token.token_id) and token.revoked is None]
        with self._database.write() as connection:
            for token in named:
                chosen = sa.update(tokens).where(tokens.c.hash.startswith(token.token_id, autoescape=True))
                connection.execute(chosen.values(revoked=time.time()))
        return named

    def client(self, token: str) -> str | None:
        """Return the client of a token; None if it is unknown or revoked."""
        # A lookup by hash: the time it takes reveals nothing about other tokens.
        valid = select(tokens.c.client_id).where(tokens.c.hash == _hash(token), tokens.c.revoked.is_(None))
        with self._database.read() as connection:
            return connection.execute(valid).scalar()


class Access:
    """Finds the client of a request: by its token or, in open mode, by the name it gives.

    An operator's token belongs to no client: it sees all events and the metrics. There may be several, with commas.
    """

    def __init__(self, tokens: Tokens, *, is_open: bool = False, operator_token: str | None = None) -> None:
        self.is_open = is_open
        self._tokens = tokens
        self._operator_tokens = [token.strip() for token in (operator_token or "").split(",") if token.strip()]

    def client(self, headers: Mapping[str, str]) -> str:
        """Return the client that sent a request."""
        named = headers.get(CLIENT)
        if self.is_open:
            if named is None:
                raise UnauthorizedError(f"the header {CLIENT} is missing; the server is open, but it needs a name")
            return check_client_id(named)
        token = bearer_token(headers.get("Authorization"))
        if token is None:
            raise UnauthorizedError("the Authorization header is missing; expected 'Bearer ' and a token")
        client_id = self._tokens.client(token)
        if client_id is None:
            raise UnauthorizedError("the token is unknown or was revoked; ask the operator for a new one")
        if named is not None and named != client_id:
            raise ForbiddenError(f"the token does not belong to the client that {CLIENT} names")
        return client_id

    def is_operator(self, headers: Mapping[str, str]) -> bool:
        """Return whether the operator sent a request."""
        token = (bearer_token(headers.get("Authorization")) or "").encode() if self._operator_tokens else b""
        return sum(hmac.compare_digest(token, own.encode()) for own in self._operator_tokens) > 0  # always all

    def check_metrics(self, headers: Mapping[str, str]) -> None:
        """Refuse the metrics to others if there is an operator's token."""
        if self._operator_tokens and not self.is_operator(headers):
            raise UnauthorizedError("the metrics are for the operator; expected 'Bearer ' and the operator's token")


def _hash(token: str) -> str:
    """Hash a token. A token is random, so neither salt nor a slow hash is needed."""
    return hashlib.sha256(token.encode()).hexdigest()
