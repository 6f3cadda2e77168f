"""A client's connection to its server: requests, retries, and checks of the answers.

Tests replace the network with an `httpx.BaseTransport`, such as `httpx.MockTransport(handler)`.
"""

import hashlib
import json
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import httpx
from torch import Tensor

from cdfl import wire
from cdfl.argument_checks import check_number
from cdfl.client.errors import ServerAwayError, UntrustedError
from cdfl.core import Layout
from cdfl.core.batches import described

logger = logging.getLogger("cdfl.client")

T = TypeVar("T")
Verify = bool | str | Path | ssl.SSLContext
HEADER_ROOM = 2**20  # bytes by which a body may be longer than the one we would write: metadata
ROUTER_ROOM = 2**26  # bytes of the largest router that is read
MOST_CLUSTERS = 64  # experts that are read at once
ERROR_ROOM = 2**16  # bytes of the longest error message that is read
LEAST_RATE = 2_000.0  # bytes a second; the slowest link for which an exchange is not given up
NOT_A_SERVER = (401, 403, 404, 405)  # may be a proxy's answers, but say what is wrong
NO_TLS = ("wrong version number", "record layer failure")  # OpenSSL's words when the server does not speak TLS
HUNG_UP = ("without sending a response", "reset by peer")  # httpx's words when a TLS server is sent plain HTTP


@dataclass(frozen=True)
class Retry:
    """How often a request is repeated. Waits double; they are random, so that many clients spread out."""

    attempts: int = 5
    first_wait: float = 0.5  # seconds
    longest_wait: float = 60.0  # seconds; if the server asks for more, the call fails at once

    def __post_init__(self) -> None:
        check_number("attempts", self.attempts, 1, whole=True)
        check_number("first_wait", self.first_wait, 0)
        check_number("longest_wait", self.longest_wait, 0)

    def wait(self, failures: int, chance: float) -> float:
        """Return the seconds to wait after this many failures; `chance` is a random number from 0 to 1.

        >>> [Retry().wait(failures, chance=1.0) for failures in (1, 2, 3, 20)]
        [0.5, 1.0, 2.0, 60.0]
        """
        full = min(self.longest_wait, self.first_wait * 2.0 ** min(failures - 1, 60))
        return full * (1 + chance) / 2


@dataclass(frozen=True, eq=False)
class Answer:
    """A reply: its headers, its decompressed body, and the model or the experts in it."""

    head: wire.ReplyHead
    body: bytes
    models: Tensor  # (P,) float32, or (K, P)


class Connection:
    """Sends the requests of one client."""

    def __init__(
        self,
        url: str,
        client_id: str,
        token: str | None,
        layout: Layout,
        *,
        reply_dtype: wire.DType = "float32",
        compress: bool = False,
        verify: Verify = True,
        timeout: float = 60.0,
        retry: Retry = Retry(),  # noqa: B008  frozen
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url, self.layout, self.retry = _checked(url), layout, retry
        self._compress, self._sleep = compress, sleep
        self.one_model = False  # ask for one model, also where replies are experts
        self._has_answered = False  # True: the address is right, so errors need no hint
        self._limit = wire.body_size(layout) + HEADER_ROOM
        headers = {wire.CLIENT: wire.check_client_id(client_id), "User-Agent": f"cdfl/{version('cdfl')}"}
        headers["Accept-Encoding"] = "zstd" if compress else "identity"
        if token is not None:
            headers["Authorization"] = _authorization(token)
            if self.url.scheme == "http" and self.url.host not in ("localhost", "127.0.0.1", "::1"):
                logger.warning("the token is sent to %s over plain http, where others can read it; use https", url)
        if not isinstance(compress, bool):
            raise ValueError(f"compress is {compress!r}; expected True (zstd) or False")
        if compress:
            wire.compress(b"")  # raises now, not at the first upload, if the package is missing
        if reply_dtype not in wire.DTYPES:
            raise ValueError(f"reply_dtype is {reply_dtype!r}; expected one of {', '.join(wire.DTYPES)}")
        self._timeout = timeout
        self._make_http = partial(
            httpx.Client,
            base_url=self.url,
            headers=headers,
            params={"dtype": reply_dtype},
            verify=_tls(verify),
            timeout=timeout,
            transport=transport,
        )
        self._http = self._make_http()

    def fetch_model(self) -> Answer:
        """Fetch the client's personal model."""
        return self._request("GET", "/v1/model", self._asked, self._answer)

    def fetch_router(self, known: str | None = None) -> bytes | None:
        """Fetch the router; None if it is the one with the digest `known`."""
        headers = {} if known is None else {"If-None-Match": f'"{known}"'}
        return self._request("GET", "/v1/router", headers, self._router)

    @property
    def _asked(self) -> dict[str, str]:
        return {wire.REPLY: "model"} if self.one_model else {}

    def upload(
        self,
        model: bytes,
        base_epoch: int,
        key: str,
        attempts: int | None = None,
        report: tuple[float, float] | None = None,
        mixture: tuple[float, ...] = (),
    ) -> Answer:
        """Upload a model. The server applies uploads with the same key once."""
        headers = {wire.BASE_EPOCH: str(base_epoch), wire.KEY: key, "Content-Type": wire.CONTENT_TYPE, **self._asked}
        if mixture:
            headers[wire.MIXTURE] = wire.numbers_to_text(mixture)
        if report is not None:
            headers[wire.REPORT] = wire.report_to_text(report)
        if self._compress:
            headers["Content-Encoding"] = "zstd"
            model = wire.compress(model)
        headers[wire.DIGEST] = wire.digest_header(hashlib.sha256(model).hexdigest())
        return self._request("POST", "/v1/updates", headers, self._answer, model, attempts)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def _request(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        read: Callable[[httpx.Response, bytes], T],
        content: bytes | None = None,
        attempts: int | None = None,
    ) -> T:
        """Send a request, several times if the server is away; `read` turns response and body into the result."""
        attempts = attempts or self.retry.attempts
        for failures in range(1, attempts + 1):
            try:
                return read(*self._request_once(method, path, headers, content))
            except ServerAwayError as away:
                asked = away.retry_after or 0.0
                if failures == attempts or isinstance(away, UntrustedError) or asked > self.retry.longest_wait:
                    raise
                wait = max(asked, self.retry.wait(failures, random.random()))  # noqa: S311
                logger.info("%s; trying again in %.1f s", away, wait)
                self._sleep(wait)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _request_once(
        self, method: str, path: str, headers: dict[str, str], content: bytes | None
    ) -> tuple[httpx.Response, bytes]:
        """Send a request once. A `ServerAwayError` may be retried, a `WireError` may not."""
        deadline = _Deadline(self._timeout + (self._limit + len(content or b"")) / LEAST_RATE, self._http.close)
        try:
            with deadline, self._http.stream(method, path, headers=headers, content=content) as response:
                body = _read(response, self._longest(response) if response.is_success else ERROR_ROOM)
        except (httpx.TransportError, httpx.DecodingError, OSError, RuntimeError) as error:
            if deadline.is_over:
                self._http = self._make_http()
                raise ServerAwayError(f"{self.url} has not answered within {deadline.seconds:.0f} s") from error
            if isinstance(error, RuntimeError):
                raise
            reason = str(error) or type(error).__name__
            hint = _hint(self.url, reason, has_answered=self._has_answered)
            is_untrusted = isinstance(error, httpx.ConnectError) and "CERTIFICATE" in reason
            kind = UntrustedError if is_untrusted else ServerAwayError
            raise kind(f"{self.url} does not answer: {reason}{hint}") from error
        self._has_answered = True
        if response.status_code not in (httpx.codes.OK, httpx.codes.NOT_MODIFIED):
            raise self._error(response, body)
        return response, body

    def _longest(self, response: httpx.Response) -> int:
        """Return the bytes of the longest body that an answer may have: one model, K experts, or a router."""
        if response.request.url.path == "/v1/router":
            return ROUTER_ROOM
        is_experts = str(response.headers.get(wire.REPLY, "")).startswith("experts")
        num_experts = str(response.headers.get(wire.MIXTURE, "")).count(",") + 1 if is_experts else 1
        return min(MOST_CLUSTERS, num_experts) * self._limit

    def _error(self, response: httpx.Response, body: bytes) -> Exception:
        status, retry_after = response.status_code, _seconds(response.headers.get("Retry-After"))
        detail = _detail(body) or response.reason_phrase
        in_progress = status == 409 and retry_after is not None  # the server still works on the first attempt
        if status >= 500 or status in (408, 429) or response.is_redirect or in_progress:
            return ServerAwayError(f"{self.url} answered {status}: {detail}", retry_after)
        is_answer = wire.VERSION in response.headers
        if not is_answer and status not in NOT_A_SERVER:  # of a proxy, which says nothing about the upload
            return ServerAwayError(
                f"{self.url} answered {status}, but not as a cdfl server: {detail[:200]}", retry_after
            )
        if status == wire.UnauthorizedError.status and "Authorization" not in self._http.headers:
            detail += "; this client has no token: pass one with token=, --token or CDFL_TOKEN"
        error = wire.error_of(status, detail, retry_after)
        error.is_answer = is_answer
        return error

    def _router(self, response: httpx.Response, body: bytes) -> bytes | None:
        if response.status_code == httpx.codes.NOT_MODIFIED:
            return None
        if response.headers.get("ETag") != f'"{hashlib.sha256(body).hexdigest()}"':
            raise ServerAwayError(f"{self.url} did not answer as a cdfl server: the router is damaged")
        return body

    def _answer(self, response: httpx.Response, body: bytes) -> Answer:
        try:
            declared = wire.sha256_in(response.headers.get(wire.DIGEST))
            if declared is not None and hashlib.sha256(body).hexdigest() != declared:
                raise wire.MalformedError(f"the body does not have the sha-256 that {wire.DIGEST} declares")
            head = wire.ReplyHead.from_headers(response.headers)
            if response.headers.get("Content-Encoding") == "zstd":
                body = wire.decompress_bytes(body, self._longest(response))
            if head.experts is None:
                return Answer(head, body, wire.decode_model(body, self.layout))
            try:
                return Answer(head, body, wire.decode_experts(body, self.layout, len(head.mixture), head.experts))
            except wire.MalformedError as error:
                if declared is None:
                    raise
                raise wire.UnfitError(error.detail) from None  # it is what the server sent
        except wire.UnfitError as error:
            raise wire.UnfitError(
                f"the server's model is not this client's: {error.detail}; use the same model on both"
            ) from None
        except wire.WireError as error:  # a login page or a proxy's page, or a body cut off by a proxy
            raise ServerAwayError(f"{self.url} did not answer as a cdfl server: {error.detail}") from error


def _checked(url: str) -> httpx.URL:
    parsed = httpx.URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"the server is {url!r}; expected an address such as https://server:8443")
    return parsed


def _authorization(token: str) -> str:
    """Return the header for a token, without surrounding white space. Errors do not repeat the token."""
    if not isinstance(token, str):
        raise ValueError(f"the token is {described(token)}; expected a str, as `cdfl token create` prints it")
    header = f"Bearer {token.strip()}"
    if header == "Bearer ":
        raise ValueError("the token is empty; omit it if the server needs none")
    try:
        wire.bearer_token(header)
    except wire.UnauthorizedError:
        raise ValueError(
            "the token is too long or has invalid characters; expected it as `cdfl token create` prints it"
        ) from None
    return header


def _hint(url: httpx.URL, reason: str, *, has_answered: bool) -> str:
    """Guess why no answer came and what to do; empty if there is no guess."""
    if "CERTIFICATE" in reason:
        return "; name a self-signed certificate with verify=FILE or --verify FILE"
    if has_answered:
        return ""
    if url.scheme == "https" and any(words in reason.lower() for words in NO_TLS):
        return f"; it seems to speak plain http: try {url.copy_with(scheme='http')}"
    if url.scheme == "http" and any(words in reason.lower() for words in HUNG_UP):
        return f"; if it speaks TLS, try {url.copy_with(scheme='https')}"
    return ""


def _tls(verify: Verify) -> ssl.SSLContext | bool:
    if isinstance(verify, str | Path):
        try:
            return ssl.create_default_context(cafile=str(verify))
        except OSError as error:  # ssl.SSLError is one
            raise ValueError(f"{verify} is not a readable certificate; expected a PEM file ({error})") from None
    return verify


def _read(response: httpx.Response, limit: int) -> bytes:
    """Return the body without decoding it; refuse one that is longer than any answer can be."""
    if response.is_stream_consumed:  # a mock transport's answer, already in memory
        return response.content
    body = bytearray()
    for piece in response.iter_raw():
        body += piece
        if len(body) > limit:
            raise httpx.DecodingError(f"the answer is longer than {limit} bytes", request=response.request)
    return bytes(body)


def _detail(body: bytes) -> str:
    try:
        found: Any = json.loads(body)
        return str(found["detail"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""


def _seconds(text: str | None) -> float | None:
    """Return the seconds in a `Retry-After` header, which holds a number or a date.

    >>> _seconds("120"), _seconds("Wed, 21 Oct 2015 07:28:00 GMT"), _seconds("soon"), _seconds("²")
    (120.0, 0.0, None, None)
    """
    if text is None:
        return None
    if text.strip().isascii() and text.strip().isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


class _Deadline:
    """`with _Deadline(seconds, abort):` calls `abort` in another thread if the block takes longer.

    httpx limits the time between two bytes only, so a peer could make an exchange last for ever.
    """

    def __init__(self, seconds: float, abort: Callable[[], None]) -> None:
        self.seconds = seconds
        self.is_over = False
        self._abort = abort

    def __enter__(self) -> None:
        self._timer = threading.Timer(self.seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        self.is_over = True
        self._abort()
