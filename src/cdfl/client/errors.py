"""What can go wrong on a client.

ClientError
  ServerAwayError   no answer, or none that can be used, after all attempts: nothing is lost, try again later
  DivergedError     a training gave NaN or infinity: nothing was uploaded, the model is what it was
  StateError        the state folder cannot be read or written, belongs to somebody else, or is in use

What the server refuses is a `cdfl.wire.WireError`: `status` is its HTTP status, its text the server's own sentence.
"""


class ClientError(Exception):
    """Something that a client cannot do."""


class ServerAwayError(ClientError):
    """The server cannot be reached, or cannot answer now."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # seconds; what the server asked for, if it said anything


class DivergedError(ClientError):
    """A training gave no finite model."""


class StateError(ClientError):
    """The state folder cannot be used."""
