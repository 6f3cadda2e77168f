"""Errors of messages, with their HTTP status. Client and server use the same classes.

WireError
  MalformedError        400  a header or the body cannot be read
  UnauthorizedError     401  the token is missing, unknown or revoked
  ForbiddenError        403  the token belongs to another client
  NotFoundError         404  there is no such path
  TooSlowError          408  the body did not arrive in time
  ConflictError         409  the client never received this base epoch, or the key is still in progress
  GoneError             410  the reply to this key is no longer stored
  LengthRequiredError   411  the body has no Content-Length
  TooLargeError         413  the body is too large, compressed or decompressed
  UnsupportedError      415  the content type or encoding is not supported
  UnfitError            422  the tensors do not fit the model or are not finite, or the key came with another body
  TooManyError          429  the client sends too many requests; wait `retry_after` seconds
  UnavailableError      503  the server cannot answer now; wait `retry_after` seconds
"""

from typing import ClassVar


class WireError(Exception):
    """A refused message. Its text is one sentence for the sender."""

    status: ClassVar[int] = 400

    def __init__(self, detail: str, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after = retry_after  # seconds
        self.is_answer = False  # a cdfl server has said so; otherwise it was found here


class MalformedError(WireError):
    """A header or the body cannot be read."""

    status = 400


class UnauthorizedError(WireError):
    """The token is missing, unknown or revoked."""

    status = 401


class ForbiddenError(WireError):
    """The token belongs to another client."""

    status = 403


class NotFoundError(WireError):
    """There is no such path."""

    status = 404


class TooSlowError(WireError):
    """The body did not arrive in time."""

    status = 408


class ConflictError(WireError):
    """The client never received this base epoch, or the key is still in progress."""

    status = 409


class GoneError(WireError):
    """The reply to this key is no longer stored."""

    status = 410


class LengthRequiredError(WireError):
    """The body has no Content-Length."""

    status = 411


class TooLargeError(WireError):
    """The body is too large."""

    status = 413


class UnsupportedError(WireError):
    """The content type or encoding is not supported."""

    status = 415


class UnfitError(WireError):
    """The tensors do not fit the model or are not finite, or the key came with another body."""

    status = 422


class TooManyError(WireError):
    """The client sends too many requests."""

    status = 429


class UnavailableError(WireError):
    """The server cannot answer now."""

    status = 503


_BY_STATUS = {kind.status: kind for kind in WireError.__subclasses__()}


def error_of(status: int, detail: str, retry_after: float | None = None) -> WireError:
    """Return the error for an HTTP status; a `WireError` if the status has no class.

    >>> error_of(410, "ask for the model again")
    GoneError('ask for the model again')
    """
    kind = _BY_STATUS.get(status)
    if kind is None:
        return WireError(f"the server answered {status}: {detail}", retry_after)
    return kind(detail, retry_after)
