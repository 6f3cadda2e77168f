"""Who may use the server: the tokens of clients, and the operator's."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy import select

from cdfl.server.database import Database
from cdfl.server.queries import VALID_TOKEN
from cdfl.server.store_records import Claim, TokenRecord
from cdfl.server.tables import tokens
from cdfl.wire import CLIENT, ForbiddenError, UnauthorizedError, bearer_token, check_client_id

ID_LENGTH = 12  # digits of the hash: enough to identify a token, too few to guess it


class Tokens:
    """The tokens of a store. Only hashes are stored. May be used beside a running server."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, client_id: str, seconds: float | None = None) -> str:
        """Return a new token of a client, valid for so many seconds; it cannot be read again.

        Earlier ones stay valid until they are revoked or expire.
        """
        token, now = f"cdfl_{secrets.token_urlsafe(32)}", time.time()
        expires = None if seconds is None else now + seconds
        row = {"hash": _hash(token), "client_id": client_id, "created": now, "expires": expires}
        with self._database.write() as connection:
            connection.execute(sa.insert(tokens).values(row))
        return token

    def all(self) -> list[TokenRecord]:
        """Return all tokens, by client and age."""
        with self._database.read() as connection:
            rows = connection.execute(select(tokens).order_by(tokens.c.client_id, tokens.c.created)).all()
        return [TokenRecord(row.hash[:ID_LENGTH], row.client_id, row.created, row.revoked, row.expires) for row in rows]

    def revoke(self, name: str) -> list[TokenRecord]:
        """Revoke all tokens of a client, or one by its id; return those that were valid until now."""
        named = [token for token in self.all() if name in (token.client_id, token.token_id) and token.revoked is None]
        with self._database.write() as connection:
            for token in named:
                chosen = sa.update(tokens).where(tokens.c.hash.startswith(token.token_id, autoescape=True))
                connection.execute(chosen.values(revoked=time.time()))
        return named

    def claim(self, token: str) -> Claim | None:
        """Return what a token allows; None if it is unknown, revoked or expired."""
        # A lookup by hash: the time it takes reveals nothing about other tokens.
        hashed = _hash(token)
        client_id = self._client_of(hashed)
        return None if client_id is None else Claim(client_id, hashed)

    def is_valid(self, claim: Claim) -> bool:
        """Return whether the token of a claim is still valid; always on an open server."""
        return claim.token is None or self._client_of(claim.token) is not None

    def _client_of(self, hashed: str) -> str | None:
        with self._database.read() as connection:
            found: str | None = connection.execute(_CLIENT_OF, {"hash": hashed, "now": time.time()}).scalar()
        return found


_CLIENT_OF = select(tokens.c.client_id).where(tokens.c.hash == sa.bindparam("hash"), VALID_TOKEN)


class Access:
    """Finds the client of a request: by its token or, in open mode, by the name it gives.

    An operator's token belongs to no client: it sees all events and the metrics. There may be several, with commas.
    """

    def __init__(self, tokens: Tokens, *, is_open: bool = False, operator_token: str | None = None) -> None:
        self.is_open = is_open
        self.tokens = tokens
        self._operator_tokens = [_checked(token) for token in (operator_token or "").split(",") if token]

    def identify(self, headers: Mapping[str, str], certified: str | None = None) -> Claim:
        """Return the client that sent a request; `certified` is the name in its TLS certificate, if it has one."""
        claim = self._claim(headers)
        if certified is not None and certified != claim.client_id:
            raise ForbiddenError("the TLS certificate belongs to another client than the token")
        return claim

    def _claim(self, headers: Mapping[str, str]) -> Claim:
        named = headers.get(CLIENT)
        if self.is_open:
            if named is None:
                raise UnauthorizedError(f"the header {CLIENT} is missing; the server is open, but it needs a name")
            return Claim(check_client_id(named))
        token = bearer_token(headers.get("Authorization"))
        if token is None:
            raise UnauthorizedError("the Authorization header is missing; expected 'Bearer ' and a token")
        claim = self.tokens.claim(token)
        if claim is None:
            raise UnauthorizedError("the token is unknown, expired or revoked; ask the operator for a new one")
        if named is not None and named != claim.client_id:
            raise ForbiddenError(f"the token does not belong to the client that {CLIENT} names")
        return claim

    def is_operator(self, headers: Mapping[str, str]) -> bool:
        """Return whether the operator sent a request."""
        token = (bearer_token(headers.get("Authorization")) or "").encode() if self._operator_tokens else b""
        return sum(hmac.compare_digest(token, own.encode()) for own in self._operator_tokens) > 0  # always all

    def check_metrics(self, headers: Mapping[str, str]) -> None:
        """Refuse the metrics to all but the operator; an open server without an operator shows them to all."""
        if not self.is_operator(headers) and (self._operator_tokens or not self.is_open):
            raise UnauthorizedError(
                "the metrics are for the operator; expected 'Bearer ' and the token in the server's CDFL_OPERATOR_TOKEN"
            )


def _hash(token: str) -> str:
    """Hash a token. A token is random, so neither salt nor a slow hash is needed."""
    return hashlib.sha256(token.encode()).hexdigest()


def _checked(token: str) -> str:
    """Return the operator's token without surrounding white space; refuse one that no request could send."""
    try:
        found = bearer_token(f"Bearer {token.strip()}")
    except UnauthorizedError:
        found = None
    if not found:
        raise ValueError(
            "the operator's token (CDFL_OPERATOR_TOKEN) is empty, too long or has white space or other characters that "
            "a header cannot carry; expected 1 to 512 visible ASCII characters"
        )
    return found
