"""Who is asking."""

import hmac
from collections.abc import Mapping

from cdfl.server.store import Store
from cdfl.wire import CLIENT, ForbiddenError, UnauthorizedError, bearer_token, check_client_id


class Access:
    """Tokens, each of exactly one client; or, in open mode, whatever name a client gives itself.

    An operator's token is of no client: it sees all events and the metrics.
    """

    def __init__(self, store: Store, *, is_open: bool = False, operator_token: str | None = None) -> None:
        self.is_open = is_open
        self._tokens = store.tokens
        self._operator_token = operator_token

    def client(self, headers: Mapping[str, str]) -> str:
        """The client that a request comes from."""
        named = headers.get(CLIENT)
        if self.is_open:
            if named is None:
                raise UnauthorizedError(f"the header {CLIENT} is missing; the server is open, but it needs a name")
            return check_client_id(named)
        token = bearer_token(headers.get("Authorization"))
        if token is None:
            raise UnauthorizedError("the Authorization header is missing; expected 'Bearer ' and a token")
        # Found by its hash: how long that takes tells nothing about any other token.
        client_id = self._tokens.client(token)
        if client_id is None:
            raise UnauthorizedError("the token is unknown or was revoked; ask the operator for a new one")
        if named is not None and named != client_id:
            raise ForbiddenError(f"the token does not belong to the client that {CLIENT} names")
        return client_id

    def is_operator(self, headers: Mapping[str, str]) -> bool:
        """Does the operator ask?"""
        if self._operator_token is None:
            return False
        token = bearer_token(headers.get("Authorization")) or ""
        return hmac.compare_digest(token.encode(), self._operator_token.encode())

    def check_metrics(self, headers: Mapping[str, str]) -> None:
        """The metrics are for everybody, or for the operator if there is one."""
        if self._operator_token is not None and not self.is_operator(headers):
            raise UnauthorizedError("the metrics are for the operator; expected 'Bearer ' and the operator's token")
