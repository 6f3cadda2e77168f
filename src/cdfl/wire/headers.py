"""Names and strict parsers of the HTTP headers of protocol version 1."""

import base64
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from cdfl.core.quantization import ExpertType
from cdfl.wire.errors import MalformedError, UnauthorizedError

# headers of requests
CLIENT = "CDFL-Client"  # client_id; required on an open server, otherwise it must match the token
BASE_EPOCH = "CDFL-Base-Epoch"
KEY = "Idempotency-Key"
REPORT = "CDFL-Report"  # what a client says of its last reply: its loss before and after, on its own data

# headers of requests and replies
MIXTURE = "CDFL-Mixture"  # of a reply: the server's estimate; of an upload: the client's own, if its owner sends it
REPLY = (
    "CDFL-Reply"  # what a reply carries: `model`, or `experts; dtype=int8; router=SHA256`; a client may ask for `model`
)

# headers of replies
EPOCH = "CDFL-Epoch"  # the base epoch of the next upload
RATES = "CDFL-Rates"
STALENESS = "CDFL-Staleness"
OUTCOME = "CDFL-Outcome"
DETAIL = "CDFL-Detail"  # why an upload was rejected: one sentence in ASCII

# headers of both
DIGEST = "Content-Digest"  # sha-256 of the body as it travels (RFC 9530)

# header of every answer: what lacks it was not written by a cdfl server, but by something on the way
VERSION = "CDFL-Version"

CONTENT_TYPE = "application/octet-stream"
CONTENT_TYPES = (CONTENT_TYPE, "application/safetensors")

Outcome = Literal["applied", "deprecated", "rejected"]

SUM_TOLERANCE = 1e-3  # by which the shares of a client may miss one
LONGEST = 40  # characters of a wrong value that an error repeats
_CLIENT_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEY = re.compile(r"[!-~]{1,128}")
_COUNT = re.compile(r"[0-9]{1,18}")  # fits any integer column
_DIGEST = re.compile(r":([A-Za-z0-9+/]{43}=):")
_EXPERTS = re.compile(r"experts; dtype=(int8|float16|float32); router=([0-9a-f]{64})")
_BEARER = re.compile(r"[Bb]earer ([!-~]{1,512})")


@dataclass(frozen=True)
class ReplyHead:
    """The headers of a reply.

    Only replies to uploads have more than `epoch` and `mixture`; only rejected uploads have `detail`.
    """

    epoch: int
    mixture: tuple[float, ...]
    rates: tuple[float, ...] | None = None
    staleness: int | None = None
    outcome: Outcome | None = None
    detail: str = ""
    experts: ExpertType | None = None  # how the experts in the body are rounded; None: it is one model
    router: str = ""  # sha256 of the router that belongs to the experts

    def to_headers(self) -> dict[str, str]:
        """Return the headers; numbers keep every digit.

        >>> ReplyHead(epoch=7, mixture=(0.25, 0.75)).to_headers()
        {'CDFL-Epoch': '7', 'CDFL-Mixture': '0.25,0.75', 'CDFL-Reply': 'model'}
        """
        carried = "model" if self.experts is None else f"experts; dtype={self.experts}; router={self.router}"
        headers = {EPOCH: str(self.epoch), MIXTURE: numbers_to_text(self.mixture), REPLY: carried}
        if self.rates is not None:
            headers[RATES] = numbers_to_text(self.rates)
        if self.staleness is not None:
            headers[STALENESS] = str(self.staleness)
        if self.outcome is not None:
            headers[OUTCOME] = self.outcome
        if self.detail:
            headers[DETAIL] = self.detail
        return headers

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> "ReplyHead":
        """Parse the headers of a response; `headers` must be case-insensitive, as httpx's are."""
        outcome = headers.get(OUTCOME)
        if outcome is not None and outcome not in get_args(Outcome):
            raise MalformedError(f"{OUTCOME} is {outcome!r}; expected one of {', '.join(get_args(Outcome))}")
        return cls(
            epoch=parse_count(EPOCH, headers.get(EPOCH)),
            mixture=_parse_numbers(MIXTURE, headers.get(MIXTURE)),
            rates=_parse_numbers(RATES, headers[RATES]) if RATES in headers else None,
            staleness=parse_count(STALENESS, headers[STALENESS]) if STALENESS in headers else None,
            outcome=cast("Outcome | None", outcome),
            detail=headers.get(DETAIL, ""),
            **_parse_reply(headers.get(REPLY, "model")),
        )


def _parse_reply(text: str) -> dict[str, Any]:
    if text == "model":
        return {}
    match = _EXPERTS.fullmatch(text)
    if match is None:
        raise MalformedError(f"{REPLY} is {_shown(text)}; expected model, or experts; dtype=...; router=SHA256")
    return {"experts": match.group(1), "router": match.group(2)}


def wants_model(text: str | None) -> bool:
    """Return whether a client asks for one model.

    >>> wants_model("model"), wants_model("experts"), wants_model(None)
    (True, False, False)
    """
    if text not in (None, "model", "experts"):
        raise MalformedError(f"{REPLY} is {_shown(text)}; expected model or experts")
    return text == "model"


def parse_mixture(text: str | None, num_clusters: int) -> tuple[float, ...] | None:
    """Return the mixture that comes with an upload, divided by its sum; None if none comes.

    >>> parse_mixture("0.25,0.75", 2), parse_mixture(None, 2)
    ((0.25, 0.75), None)
    """
    if text is None:
        return None
    shares = _parse_numbers(MIXTURE, text)
    total = sum(shares)
    if len(shares) != num_clusters or min(shares) < 0 or abs(total - 1) > SUM_TOLERANCE:
        raise MalformedError(
            f"{MIXTURE} is {_shown(text)}; expected {num_clusters} numbers, 0 or more, that sum to one, with commas"
        )
    return shares if abs(total - 1) < 1e-9 else tuple(share / total for share in shares)


def digest_header(sha256: str) -> str:
    """Return the value of `Content-Digest` for a sha256 in hex.

    >>> digest_header("00" * 32)
    'sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:'
    """
    return f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:"


def sha256_in(text: str | None) -> str | None:
    """Return the sha256 in a `Content-Digest` header, in hex; None if there is none.

    >>> sha256_in("sha-512=:AAAA:, sha-256=:" + "A" * 43 + "=:")[:4], sha256_in("sha-512=:AAAA:"), sha256_in(None)
    ('0000', None, None)
    """
    for part in (text or "").split(","):
        name, _, value = part.strip().partition("=")
        if name.lower() == "sha-256":
            match = _DIGEST.fullmatch(value)
            if match is None:
                raise MalformedError(f"{DIGEST} is {_shown(text or '')}; expected sha-256=:BASE64:")
            return base64.b64decode(match.group(1)).hex()
    return None


def parse_base_epoch(text: str | None) -> int:
    """Return the base epoch of an upload.

    >>> parse_base_epoch("-1")
    Traceback (most recent call last):
    cdfl.wire.errors.MalformedError: CDFL-Base-Epoch is '-1'; expected a whole number, 0 or more
    """
    return parse_count(BASE_EPOCH, text)


def parse_count(name: str, text: str | None) -> int:
    """Return the whole number in a header."""
    if text is None:
        raise MalformedError(f"the header {name} is missing; expected a whole number, 0 or more")
    if _COUNT.fullmatch(text) is None:
        raise MalformedError(f"{name} is {_shown(text)}; expected a whole number, 0 or more")
    return int(text)


def check_key(text: str | None) -> str:
    """Return the idempotency key if it is valid."""
    if text is None:
        raise MalformedError(f"the header {KEY} is missing; expected a new key for every upload")
    if _KEY.fullmatch(text) is None:
        raise MalformedError(f"{KEY} is {_shown(text)}; expected 1 to 128 visible ASCII characters")
    return text


def check_client_id(text: str) -> str:
    """Return the client's name if it is valid.

    >>> check_client_id("car-7")
    'car-7'
    """
    if _CLIENT_ID.fullmatch(text) is None:
        raise MalformedError(f"the client_id is {_shown(text)}; expected 1 to 64 characters of A-Z a-z 0-9 . _ -")
    return text


def bearer_token(text: str | None) -> str | None:
    """Return the token in an `Authorization` header; None without the header."""
    if text is None:
        return None
    match = _BEARER.fullmatch(text)
    if match is None:
        raise UnauthorizedError("the Authorization header cannot be read; expected 'Bearer ' and a token")
    return match.group(1)


def _shown(text: str) -> str:
    """Return a text for an error message: cut off if it is long.

    >>> _shown("car 7"), _shown("x" * 200)
    ("'car 7'", "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...', 200 characters long")
    """
    return repr(text) if len(text) <= LONGEST else f"{text[:LONGEST] + '...'!r}, {len(text)} characters long"


def numbers_to_text(values: Sequence[float]) -> str:
    """Return numbers with commas between them; they keep every digit."""
    return ",".join(map(repr, values))


def _parse_numbers(name: str, text: str | None) -> tuple[float, ...]:
    try:
        values = tuple(map(float, (text or "").split(",")))
    except ValueError:
        values = ()
    if not values or not all(map(math.isfinite, values)):
        raise MalformedError(f"{name} is {_shown(text or '')}; expected numbers separated by commas")
    return values


def report_to_text(report: tuple[float, float]) -> str:
    """Return the header of a report.

    >>> report_to_text((1.5, 0.25))
    '1.5,0.25'
    """
    return numbers_to_text(report)


def parse_report(text: str | None) -> tuple[float, ...]:
    """Return a client's loss before and after its last reply; nothing if it does not say.

    >>> parse_report("1.5,0.25"), parse_report(None)
    ((1.5, 0.25), ())
    """
    if text is None:
        return ()
    numbers = _parse_numbers(REPORT, text)
    if len(numbers) != 2:
        raise MalformedError(f"{REPORT} has {len(numbers)} numbers; expected two: the loss before and after the reply")
    return numbers
