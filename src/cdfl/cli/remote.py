"""Ask a running server, for `cdfl status` and `cdfl clients`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

Token = Annotated[
    str | None,
    typer.Option("--token", envvar="CDFL_OPERATOR_TOKEN", help="The operator's token, for a server that is protected."),
]
Certificate = Annotated[
    Path | None, typer.Option("--verify", help="Certificate of the server (PEM), if it is self-signed.")
]
SECONDS = 20.0


class StartingError(Exception):
    """The server listens but does not serve yet; the message is what it says."""


def is_url(place: str) -> bool:
    """Return whether a place is the address of a server rather than of a store."""
    return place.startswith(("http://", "https://"))


class Remote:
    """A server that answers questions of its operator."""

    def __init__(self, http: httpx.Client, url: str) -> None:
        self._http, self.url = http, url

    def get(self, path: str, **query: Any) -> Any:
        """Return the JSON answer; raise ValueError with one sentence if there is none."""
        try:
            answer = self._http.get(path, params=query)
            found = answer.json()
            detail = found.get("detail", "")
        except httpx.TransportError as error:
            hint = "; name its certificate with --verify FILE" if "CERTIFICATE" in str(error) else "; is it running?"
            raise ValueError(f"{self.url} does not answer: {error}{hint}") from None
        except (ValueError, AttributeError):
            raise ValueError(f"{self.url} is no cdfl server; expected the address that `cdfl serve` prints") from None
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            raise StartingError(detail)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            raise ValueError(f"{self.url} is protected; give the operator's token with --token or CDFL_OPERATOR_TOKEN")
        if not answer.is_success:
            raise ValueError(f"{self.url} answered {answer.status_code}: {detail or answer.reason_phrase}")
        return found


@contextmanager
def remote(url: str, token: str | None, verify: Path | None) -> Iterator[Remote]:
    """Connect to a server."""
    headers = {"Authorization": f"Bearer {token.strip()}"} if token else {}
    trusted = True if verify is None else httpx.create_ssl_context(verify=str(verify))
    with httpx.Client(base_url=url, headers=headers, timeout=SECONDS, verify=trusted) as http:
        yield Remote(http, url.rstrip("/"))
