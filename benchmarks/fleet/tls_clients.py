"""The clients of the fleet, over TLS."""

import asyncio
import ssl
import time
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.fleet.clients import Answer, Client, Cut
from cdfl import wire


class TlsClient(Client):
    """One client on one TLS connection."""

    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._streams = None

    async def _ask(self, what: str, headers: Mapping[str, str], body: bytes | bytearray = b"") -> Answer:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, ssl=CONTEXT)
        reader, writer = self._streams
        more = {"Host": "127.0.0.1", "Authorization": f"Bearer {self._token}", "Content-Length": str(len(body))}
        more |= {wire.REPLY: "model"} | dict(headers)
        lines = [f"{what} HTTP/1.1", *(f"{name}: {value}" for name, value in more.items()), "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        try:
            await writer.drain()
            first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
            begun = time.perf_counter()
            found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
            content = await reader.readexactly(int(found["content-length"]))
        except asyncio.IncompleteReadError:
            raise Cut from None
        return Answer(int(first.split()[1]), found, memoryview(bytearray(content)), time.perf_counter() - begun)


CONTEXT = ssl.create_default_context()
CONTEXT.check_hostname, CONTEXT.verify_mode = False, ssl.CERT_NONE


def make_tls_clients(port: int, tokens: Sequence[str], goals: np.ndarray) -> list[Client]:
    """Return the clients that `make_clients` would, over TLS."""
    return [TlsClient(port, token, goal / 2) for token, goal in zip(tokens, goals, strict=True)]
