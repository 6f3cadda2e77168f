"""One client's way to its server: requests, retries, and what an answer must look like.

The seam is httpx's: anything that is an `httpx.BaseTransport` can stand for the network; `InProcess` calls a function.
"""

import json
import logging
import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
from torch import Tensor

from cdfl import wire
from cdfl.checks import check_number
from cdfl.client.errors import ServerAwayError
from cdfl.core import Layout
from cdfl.core.batches import described

logger = logging.getLogger("cdfl.client")

Verify = bool | str | Path | ssl.SSLContext
HEADER_ROOM = 2**20  # bytes that a model's body may be longer than ours: another order, metadata
ERROR_ROOM = 2**16
NO_TLS = ("wrong version number", "record layer failure")  # OpenSSL, when what comes is no TLS
HUNG_UP = ("without sending a response", "reset by peer")  # as servers do that expect TLS


@dataclass(frozen=True)
class Retry:
    """How often, and after what waits, a request is made again; waits double, and vary so that fleets spread out."""

    attempts: int = 5
    first_wait: float = 0.5  # seconds
    longest_wait: float = 60.0  # a server that asks for more is left alone until the next call

    def __post_init__(self) -> None:
        check_number("attempts", self.attempts, 1, whole=True)
        check_number("first_wait", self.first_wait, 0)
        check_number("longest_wait", self.longest_wait, 0)

    def wait(self, failures: int, chance: float) -> float:
        """Seconds to wait after so many failures; `chance` is a random number from 0 to 1.

        >>> [Retry().wait(failures, chance=1.0) for failures in (1, 2, 3, 20)]
        [0.5, 1.0, 2.0, 60.0]
        """
        full = min(self.longest_wait, self.first_wait * 2.0 ** min(failures - 1, 60))
        return full * (1 + chance) / 2


@dataclass(frozen=True, eq=False)
class Answer:
    """What came back: the headers, the body as it came (decompressed), and the model in it."""

    head: wire.ReplyHead
    body: bytes
    personal_model: Tensor  # (P,) float32


class InProcess(httpx.BaseTransport):
    """No network: requests go to a function, which may be a server's own."""

    def __init__(self, handler: Callable[[httpx.Request], httpx.Response]) -> None:
        self.handler = handler

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Pass it on."""
        request.read()
        answer = self.handler(request)
        return httpx.Response(answer.status_code, headers=answer.headers, stream=answer.stream)


class Link:
    """The requests of one client."""

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
        self._has_answered = False  # ever: then the address is right
        self._limit = wire.body_size(layout) + HEADER_ROOM
        headers = {wire.CLIENT: wire.check_client_id(client_id), "User-Agent": f"cdfl/{version('cdfl')}"}
        headers["Accept-Encoding"] = "zstd" if compress else "identity"
        if token is not None:
            headers["Authorization"] = _authorization(token)
            if self.url.scheme == "http" and self.url.host not in ("localhost", "127.0.0.1", "::1"):
                logger.warning("the token goes to %s over plain http, where others can read it; use https", url)
        if not isinstance(compress, bool):
            raise ValueError(f"compress is {compress!r}; expected True (zstd) or False")
        if compress:
            wire.compress(b"")  # a missing package is told now, not at the first upload
        if reply_dtype not in wire.DTYPES:
            raise ValueError(f"reply_dtype is {reply_dtype!r}; expected one of {', '.join(wire.DTYPES)}")
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            params={"dtype": reply_dtype},
            verify=_tls(verify),
            timeout=timeout,
            transport=transport,
        )

    def model(self, attempts: int | None = None) -> Answer:
        """Join or refresh."""
        return self._ask("GET", "/v1/model", {}, None, attempts)

    def update(self, upload: bytes, base_epoch: int, key: str, attempts: int | None = None) -> Answer:
        """Upload one model; with the same key it counts once, however often it is sent."""
        headers = {wire.BASE_EPOCH: str(base_epoch), wire.KEY: key, "Content-Type": wire.CONTENT_TYPE}
        if self._compress:
            headers["Content-Encoding"] = "zstd"
            upload = wire.compress(upload)
        return self._ask("POST", "/v1/updates", headers, upload, attempts)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def _ask(
        self, method: str, path: str, headers: dict[str, str], content: bytes | None, attempts: int | None
    ) -> Answer:
        attempts = attempts or self.retry.attempts
        for failures in range(1, attempts + 1):
            try:
                return self._ask_once(method, path, headers, content)
            except ServerAwayError as away:
                patience = self.retry.longest_wait
                hopeless = isinstance(away.__cause__, httpx.ConnectError) and "CERTIFICATE" in str(away)
                if failures == attempts or hopeless or (away.retry_after or 0.0) > patience:
                    raise
                wait = max(away.retry_after or 0.0, self.retry.wait(failures, random.random()))  # noqa: S311
                logger.info("%s; trying again in %.1f s", away, wait)
                self._sleep(wait)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _ask_once(self, method: str, path: str, headers: dict[str, str], content: bytes | None) -> Answer:
        """One attempt. A `ServerAwayError` is worth another one, a `WireError` is not."""
        try:
            with self._http.stream(method, path, headers=headers, content=content) as response:
                body = _read(response, self._limit if response.is_success else ERROR_ROOM)
        except (httpx.TransportError, httpx.DecodingError) as error:
            said = str(error) or type(error).__name__
            hint = _hint(self.url, said, has_answered=self._has_answered)
            raise ServerAwayError(f"{self.url} does not answer: {said}{hint}") from error
        self._has_answered = True
        if response.status_code != httpx.codes.OK:
            raise self._refusal(response, body)
        return self._answer(response, body)

    def _refusal(self, response: httpx.Response, body: bytes) -> Exception:
        status, retry_after = response.status_code, _seconds(response.headers.get("Retry-After"))
        detail = _detail(body) or response.reason_phrase
        in_progress = status == 409 and retry_after is not None  # the first attempt is still being worked on
        if status >= 500 or status in (408, 429) or response.is_redirect or in_progress:
            return ServerAwayError(f"{self.url} answered {status}: {detail}", retry_after)
        if status == wire.UnauthorizedError.status and "Authorization" not in self._http.headers:
            detail += "; this client has no token: give it one with token=, --token or CDFL_TOKEN"
        return wire.error_of(status, detail, retry_after)

    def _answer(self, response: httpx.Response, body: bytes) -> Answer:
        try:
            head = wire.ReplyHead.from_headers(response.headers)
            if response.headers.get("Content-Encoding") == "zstd":
                body = wire.decompress_bytes(body, self._limit)
            return Answer(head, body, wire.decode_model(body, self.layout))
        except wire.UnfitError as error:
            raise wire.UnfitError(
                f"the server's model is not this client's: {error.detail}; give both the same"
            ) from None
        except wire.WireError as error:  # a page of a hotel's network, a proxy's, or a body cut by one
            raise ServerAwayError(f"{self.url} gave no answer of a cdfl server: {error.detail}") from error


def _checked(url: str) -> httpx.URL:
    parsed = httpx.URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"the server is {url!r}; expected an address such as https://server:8443")
    return parsed


def _authorization(token: str) -> str:
    """The header for a token. A file that holds one often ends with a line break; nothing here repeats what came."""
    if not isinstance(token, str):
        raise ValueError(f"the token is {described(token)}; expected a str, as `cdfl token create` prints it")
    header = f"Bearer {token.strip()}"
    if header == "Bearer ":
        raise ValueError("the token is empty; where the server needs none, leave it out")
    try:
        wire.bearer_token(header)
    except wire.UnauthorizedError:
        raise ValueError(
            "the token has characters that no token has, or too many; expected it as `cdfl token create` prints it"
        ) from None
    return header


def _hint(url: httpx.URL, said: str, *, has_answered: bool) -> str:
    """What is probably wrong where no answer came, if that can be told."""
    if "CERTIFICATE" in said:
        return "; a certificate of your own is named by verify=FILE, or --ca FILE"
    if has_answered:
        return ""
    if url.scheme == "https" and any(words in said.lower() for words in NO_TLS):
        return f"; it seems to speak plain http: try {url.copy_with(scheme='http')}"
    if url.scheme == "http" and any(words in said.lower() for words in HUNG_UP):
        return f"; if it speaks TLS, try {url.copy_with(scheme='https')}"
    return ""


def _tls(verify: Verify) -> ssl.SSLContext | bool:
    if isinstance(verify, str | Path):
        try:
            return ssl.create_default_context(cafile=str(verify))
        except OSError as error:  # one of ssl among them
            raise ValueError(f"{verify} is no certificate that can be read; expected a PEM file ({error})") from None
    return verify


def _read(response: httpx.Response, limit: int) -> bytes:
    """The body as it came over the line, unless it is longer than any answer can be."""
    if response.is_stream_consumed:  # a transport for tests that had the body in memory
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
    except (ValueError, TypeError, KeyError):
        return ""


def _seconds(text: str | None) -> float | None:
    """What a `Retry-After` header says: seconds, or a date.

    >>> _seconds("120"), _seconds("Wed, 21 Oct 2015 07:28:00 GMT"), _seconds("soon")
    (120.0, 0.0, None)
    """
    if text is None:
        return None
    if text.strip().isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None
