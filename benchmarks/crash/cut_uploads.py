"""A client that speaks to the socket itself, and ends in the middle of an upload."""

import random
import secrets
import socket
import struct
from collections import Counter

import httpx
import torch
from safetensors.torch import load, save

from benchmarks.crash.clients import Line, Scribe
from benchmarks.crash.site import Site
from cdfl import wire

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset, what is not sent yet is thrown away


def changed(model: bytes) -> bytes:
    """Return a model that is a little different: the server refuses one that is not."""
    return save({name: part + 0.01 * torch.randn_like(part) for name, part in load(model).items()})


class Cutter:
    """Sends an upload a few times as far as some byte, then once as it should."""

    def __init__(self, site: Site, client_id: str, chance: random.Random) -> None:
        self.site, self.client_id, self.chance = site, client_id, chance
        self.scribe = Scribe(site.folder / "ledger", client_id)
        self.uploads, self.counts = 0, Counter[str]()

    def upload_through_cuts(self, cuts: int) -> None:
        """Cut so often; every upload in the end is complete, with the key of its cut ones."""
        line = Line(self.scribe, self.chance)
        with httpx.Client(base_url=self.site.url, transport=line, headers={wire.CLIENT: self.client_id}) as http:
            answer = http.get("/v1/model")
            while self.counts.total() < cuts:
                answer = self._upload(http, changed(answer.content), answer.headers[wire.EPOCH])
                self.uploads += 1

    def _upload(self, http: httpx.Client, body: bytes, base_epoch: str) -> httpx.Response:
        headers = {wire.KEY: secrets.token_hex(16), wire.BASE_EPOCH: base_epoch, "Content-Type": wire.CONTENT_TYPE}
        for _ in range(self.chance.randint(1, 4)):
            self._cut(headers, body)
        while True:  # one of the cut ones may still be on its way through the server
            answer = http.post("/v1/updates", content=body, headers=headers)
            if answer.status_code == httpx.codes.OK:
                return answer

    def _cut(self, headers: dict[str, str], body: bytes) -> None:
        """Send the request as far as some byte of it; it may be the last one, and only the answer is not waited for."""
        every = {"Host": "127.0.0.1", wire.CLIENT: self.client_id, "Content-Length": str(len(body))} | headers
        head = "POST /v1/updates HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in every.items())
        message = head.encode() + b"\r\n" + body
        where = self.chance.choice(["in the head", "in the body", "in the body", "after the body"])
        begin, end = {
            "in the head": (1, len(message) - len(body) - 1),
            "in the body": (len(message) - len(body), len(message) - 1),
            "after the body": (len(message), len(message)),
        }[where]
        self.counts[where] += 1
        self.scribe.sends(headers[wire.KEY], headers[wire.BASE_EPOCH], body)
        with socket.create_connection(("127.0.0.1", self.site.port)) as connection:
            connection.sendall(message[: self.chance.randint(begin, end)])
            if self.chance.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
