"""What can be wrong with a message. Each error knows its HTTP status, so both ends name it alike.

WireError
  MalformedError        400  a header, the body or the safetensors in it cannot be read
  UnauthorizedError     401  no token, or one that is unknown or revoked
  ForbiddenError        403  the token of another client
  NotFoundError         404  there is no such thing
  TooSlowError          408  the body did not come in time
  ConflictError         409  a base epoch this client was never given, or a key that is still in progress
  GoneError             410  the key is known, its reply is no longer kept
  LengthRequiredError   411  a body without a length
  TooLargeError         413  the body is too large, as it came or once decompressed
  UnsupportedError      415  a content type or encoding the server does not read
  UnfitError            422  the tensors do not fit the model, or are not finite; a key with another body
  TooManyError          429  this client asks too often; wait `retry_after` seconds
  UnavailableError      503  the server cannot take it now; wait `retry_after` seconds
"""

from typing import ClassVar


class WireError(Exception):
    """A message that is refused; its text is one sentence for whoever sent it."""

    status: ClassVar[int] = 400

    def __init__(self, detail: str, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after = retry_after  # seconds


class MalformedError(WireError):
    """Cannot be read."""

    status = 400


class UnauthorizedError(WireError):
    """No token, or one that is unknown or revoked."""

    status = 401


class ForbiddenError(WireError):
    """The token of another client."""

    status = 403


class NotFoundError(WireError):
    """There is no such thing."""

    status = 404


class TooSlowError(WireError):
    """The body did not come in time."""

    status = 408


class ConflictError(WireError):
    """A base epoch this client was never given, or a key that is still in progress."""

    status = 409


class GoneError(WireError):
    """The key is known, but its reply is no longer kept."""

    status = 410


class LengthRequiredError(WireError):
    """A body without a length."""

    status = 411


class TooLargeError(WireError):
    """Larger than allowed."""

    status = 413


class UnsupportedError(WireError):
    """A content type or encoding the server does not read."""

    status = 415


class UnfitError(WireError):
    """The tensors do not fit the model, or a key came with another body."""

    status = 422


class TooManyError(WireError):
    """Too many requests."""

    status = 429


class UnavailableError(WireError):
    """Not now."""

    status = 503


_BY_STATUS = {kind.status: kind for kind in WireError.__subclasses__()}


def error_of(status: int, detail: str, retry_after: float | None = None) -> WireError:
    """The error that a response stands for; a status that has no name of its own is a plain `WireError`.

    >>> error_of(410, "ask for the model again")
    GoneError('ask for the model again')
    """
    kind = _BY_STATUS.get(status)
    if kind is None:
        return WireError(f"the server answered {status}: {detail}", retry_after)
    return kind(detail, retry_after)
