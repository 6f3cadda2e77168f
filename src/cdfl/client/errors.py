"""Errors of a client.

ClientError
  ServerAwayError   the server gave no usable answer after all attempts; nothing is lost, try again later
    UntrustedError  the server's certificate is not trusted; trying again does not help
  DivergedError     training gave NaN or infinity; nothing was uploaded and the model is unchanged
  StateError        the state folder cannot be read or written, belongs to another client, or is in use

A refusal by the server is a `cdfl.wire.WireError`: `status` is its HTTP status, its text is the server's message.
"""


class ClientError(Exception):
    """Base class of a client's errors."""


class ServerAwayError(ClientError):
    """The server cannot be reached, or cannot answer now."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # seconds; None: the server did not say


class UntrustedError(ServerAwayError):
    """The server's certificate is not trusted."""


class DivergedError(ClientError):
    """Training gave a model that is not finite."""


class StateError(ClientError):
    """The state folder cannot be used."""
