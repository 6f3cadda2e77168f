"""TLS with a certificate that is read again when its file changes, and optionally with certificates of clients."""

import logging
import ssl
from pathlib import Path

logger = logging.getLogger("cdfl.server")


class Tls:
    """The TLS context of a server. Call it for every connection: it follows the files."""

    def __init__(self, cert: Path, key: Path, client_ca: Path | None = None) -> None:
        self.cert, self.key, self.client_ca = cert, key, client_ca
        self._seen = self._marks()
        self._context = self._load()

    def __call__(self) -> ssl.SSLContext:
        """Return the context; a new certificate serves new connections, a faulty one is logged and not used."""
        seen = self._marks()
        if seen != self._seen:
            self._seen = seen
            try:
                self._context = self._load()
                logger.warning("the TLS certificate was read again")
            except (OSError, ValueError) as error:
                logger.error("the new TLS certificate cannot be used, the old one stays: %s", error)
        return self._context

    def _marks(self) -> list[tuple[int, int, int] | None]:
        """Return what tells versions of each file apart; None if it cannot be seen."""
        found = []
        for file in (self.cert, self.key, self.client_ca):
            try:
                about = file.stat() if file is not None else None
            except OSError:
                about = None
            found.append(about and (about.st_mtime_ns, about.st_size, about.st_ino))
        return found

    def _load(self) -> ssl.SSLContext:
        for file in (self.cert, self.key, self.client_ca):
            if file is not None and not file.is_file():
                raise ValueError(f"there is no file {file}; expected a PEM file for TLS")

        def ask() -> str:  # otherwise OpenSSL would ask the terminal
            raise ValueError(f"the key {self.key} needs a pass phrase; expected a key without one")

        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.cert, self.key, ask)
        except ssl.SSLError as error:
            raise ValueError(
                f"{self.cert} and {self.key} are not a certificate and its key; expected PEM files ({error})"
            ) from None
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except ssl.SSLError as error:
                raise ValueError(f"{self.client_ca} is not a certificate; expected a PEM file ({error})") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context
