"""Measure honest clients while somebody attacks their server.

Claim: 500 honest clients keep at least half their rate under each attack on the server's resources.

One server (the example of `cdfl init`, on SQLite, with syncs), one fleet of clients that do not train and never pause.
Windows without and with an attack alternate; a window with an attack is compared with the mean of the two beside it.
Attackers run in a process of their own on the same two cores, from another loopback address unless stated; what they
cost there is part of the result. All of it stays on loopback, and each attack ends with its window.

Writes benchmarks/results/siege.json. `python -m benchmarks.siege NAME...` takes about a minute for each attack.
"""

import argparse
import asyncio
import json
import math
import multiprocessing
import ssl
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.fleet.clients import Tally, exchange, make_clients
from benchmarks.fleet.measure import sampled, summary, usage
from benchmarks.fleet.server import Server
from benchmarks.fleet.target_models import goals_of
from benchmarks.fleet.tls_clients import make_tls_clients
from benchmarks.load import UNHURRIED
from benchmarks.result_files import commit, machine, read, write
from cdfl import wire
from cdfl.cli.init import EXAMPLE
from cdfl.server.connection_limit import raise_file_limit

CLIENTS, SECONDS = 500, 25.0
PAUSE = 3.0  # seconds from the beginning of an attack to its window, and from its end to the next
ATTACKERS = 40  # tokens of attackers, beside those of the fleet
OTHER = "127.0.0.2"
FLOOD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 7000  # a quarter of a megabyte
SLOW = 25_000  # bytes a second

Attack = Callable[["Target"], Awaitable[None]]


class Target:
    """The server as an attacker sees it."""

    def __init__(self, port: int, tokens: Sequence[str], address: str, count: Any) -> None:
        self.port, self.tokens, self.address, self.count = port, tokens, address, count

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection."""
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(self.address, 0))

    def head(self, method: str, path: str, token: int = 0, **headers: object) -> bytes:
        """Return the head of a request with the token of an attacker."""
        lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {self.tokens[token]}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode()


async def pipelining(target: Target, pause: float = 1.0) -> None:
    """Send requests by the quarter megabyte and read nothing, on 60 connections without a token."""

    async def one() -> None:
        _, writer = await target.connect()
        try:
            while True:
                writer.write(FLOOD)
                await asyncio.wait_for(writer.drain(), 5.0)
                target.count.value += 1
        finally:
            writer.transport.abort()

    await asyncio.gather(*(again(one, pause) for _ in range(60)))


async def hammering(target: Target) -> None:
    """Do the same, and come back ten times a second."""
    await pipelining(target, pause=0.1)


async def handshakes(target: Target) -> None:
    """Open 700 connections that say nothing, and 40 that shake hands again and again, on a server with TLS."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    async def silent() -> None:
        reader, writer = await target.connect()
        try:
            await reader.read(1)
        finally:
            writer.transport.abort()

    async def shaking() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", target.port, ssl=context, local_addr=(target.address, 0))
        target.count.value += 1
        writer.transport.abort()

    await asyncio.gather(*(again(silent) for _ in range(700)), *(again(shaking) for _ in range(40)))


async def deaf(target: Target) -> None:
    """Ask for 200 models with few tokens and read none; send uploads that come in drops."""

    async def unread(number: int) -> None:
        reader, writer = await target.connect()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        try:
            writer.write(target.head("GET", "/v1/model", number % 20))
            target.count.value += 1
            await asyncio.sleep(10.0)
        finally:
            writer.transport.abort()

    async def drops(number: int) -> None:
        _, writer = await target.connect()
        about = {wire.BASE_EPOCH: 0, wire.KEY: f"drops-{number}", "Content-Type": wire.CONTENT_TYPE}
        head = target.head("POST", "/v1/updates", number, **about, Content_Length=10**6)
        try:
            writer.write(head)
            for _ in range(100):
                writer.write(bytes(5000))
                target.count.value += 1
                await asyncio.sleep(1.0)
        finally:
            writer.transport.abort()

    unreads = [again(lambda number=number: unread(number)) for number in range(200)]  # type: ignore[misc]
    await asyncio.gather(*unreads, *(again(lambda number=number: drops(number)) for number in range(20, 40)))  # type: ignore[misc]


async def streams(target: Target) -> None:
    """Open 64 streams of events from the beginning of the journal with one token, and read them."""

    async def one() -> None:
        reader, writer = await target.connect()
        try:
            writer.write(target.head("GET", "/v1/events", 0, Last_Event_ID=0))
            while piece := await reader.read(2**16):
                target.count.value += piece.count(b"data: ")
                if b" 503 " in piece[:20]:
                    return
        finally:
            writer.transport.abort()

    await asyncio.gather(*(again(one) for _ in range(64)))


async def slow(target: Target) -> None:
    """Forty honest clients on slow lines join: each reads its model at a steady 25 kB a second. Count whole models."""

    async def one(number: int) -> None:
        reader, writer = await target.connect()
        try:
            writer.write(target.head("GET", "/v1/model", number))
            head = await reader.readuntil(b"\r\n\r\n")
            left = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            while left:
                left -= len(await reader.readexactly(min(left, SLOW // 10)))
                await asyncio.sleep(0.1)
            target.count.value += b" 200 " in head[:20]
        finally:
            writer.transport.abort()

    await asyncio.gather(*(again(lambda number=number: one(number)) for number in range(ATTACKERS)))  # type: ignore[misc]


async def again(one: Callable[[], Awaitable[None]], pause: float = 0.1) -> None:
    """Do it again and again; a server that hangs up is asked again, `pause` seconds after the last time."""
    while True:
        begun = time.monotonic()
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            await one()
        await asyncio.sleep(max(0.0, pause - (time.monotonic() - begun)))


ATTACKS: dict[str, tuple[Attack, str]] = {
    "pipelining": (pipelining, OTHER),
    "pipelining, same address": (pipelining, "127.0.0.1"),
    "hammering": (hammering, OTHER),
    "deaf": (deaf, OTHER),
    "streams": (streams, OTHER),
    "slow": (slow, OTHER),
    "handshakes": (handshakes, OTHER),
}
WORDS = {
    "pipelining": "60 connections without a token that send requests by the quarter megabyte and read nothing",
    "pipelining, same address": "the same, from the address of the honest clients",
    "hammering": "60 connections that are back a tenth of a second after the server closes them",
    "deaf": "200 model requests of 20 tokens that nobody reads, and 20 uploads that come in drops",
    "streams": "one token asks for 64 event streams from the beginning",
    "slow": "40 clients read their models at 25 kB a second",
    "handshakes": "700 silent connections and 40 that shake hands without end, with TLS",
}


# -- measuring


def run_attack(name: str, port: int, tokens: Sequence[str], over: Event, count: Any, cpu: Any) -> None:
    """Attack until told to stop, in a process of its own."""
    attack, address = ATTACKS[name]
    raise_file_limit(4096)

    async def until_over() -> None:
        task = asyncio.ensure_future(attack(Target(port, tokens, address, count)))
        while not over.is_set() and not task.done():
            await asyncio.sleep(0.1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(until_over())
    cpu.value = time.process_time()


@asynccontextmanager
async def attacking(name: str, server: Server) -> AsyncIterator[dict[str, Any]]:
    """Attack while the block runs; what it did is in the dictionary afterwards."""
    context, found = multiprocessing.get_context("spawn"), dict[str, Any]()
    over, count, cpu = context.Event(), context.Value("q", 0, lock=False), context.Value("d", 0.0, lock=False)
    process = context.Process(target=run_attack, args=(name, server.port, server.tokens[CLIENTS:], over, count, cpu))
    process.start()
    await asyncio.sleep(PAUSE)
    before = count.value
    try:
        yield found
    finally:
        found["done"] = count.value - before
        over.set()
        await asyncio.to_thread(process.join, 20)
        process.kill()
        found["attacker_cpu_seconds"] = round(cpu.value, 1)


async def window(server: Server, tally: Tally, seconds: float) -> dict[str, Any]:
    """Return the rate of the fleet, which never stops, in some seconds; and the memory of the server."""
    earlier = deepcopy(tally)
    async with sampled(server) as samples:
        await asyncio.sleep(seconds)
    passed = samples[-1].time - samples[0].time
    seen = tally.since(earlier)
    run = summary(seen, passed) | usage(samples, len(seen.seconds))
    names = ("rate", "p50_ms", "p99_ms", "errors", "cut", "busy", "others_cores", "server_cores", "client_cores")
    return {name: run[name] for name in names} | {"peak_mb": max(run["rss_mb"])}


async def measure(names: Sequence[str], seconds: float, *, tls: bool) -> None:
    """Measure some attacks on one server; store each at once."""
    with tempfile.TemporaryDirectory(prefix="siege-") as place:
        folder = Path(place)
        options = certificate_options(folder) if tls else []
        with Server(EXAMPLE, folder, CLIENTS + ATTACKERS, *UNHURRIED, *options) as server:
            make = make_tls_clients if tls else make_clients
            clients = make(server.port, server.tokens[:CLIENTS], goals_of(EXAMPLE, server.clusters, CLIENTS))
            for client in clients:
                await client.join()
            tally = Tally()
            fleet = asyncio.create_task(exchange(clients, math.inf, tally))
            await asyncio.sleep(seconds)
            before = await window(server, tally, seconds)
            for name in names:
                async with attacking(name, server) as did:
                    during = await window(server, tally, seconds)
                await asyncio.sleep(PAUSE)
                after = await window(server, tally, seconds)
                if fleet.done():
                    fleet.result()  # raises what ended it
                ratio = round(2 * during["rate"] / (before["rate"] + after["rate"]), 3)
                run = {"before": before, "during": during | did, "after": after, "ratio": ratio, "seconds": seconds}
                print(name, json.dumps(run), flush=True)
                store(name, run)
                before = after
            fleet.cancel()
            await asyncio.wait([fleet])
            for client in clients:
                client.close()


def store(name: str, run: dict[str, Any]) -> None:
    """Add a run to the result file."""
    stored = read("siege", {"runs": {}})
    stored["runs"].setdefault(name, []).append(run)
    write("siege", stored | {"machine": machine(), "commit": commit(), "clients": CLIENTS})


def certificate_options(folder: Path) -> list[str]:
    """Make a certificate; return the options of `cdfl serve` for it."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return ["--tls-cert", str(cert), "--tls-key", str(key)]


def table() -> str:
    """Return what honest clients keep of their rate: the median of the runs, and all of them."""
    found = read("siege")
    if found is None:
        return "Not measured yet.\n"
    lines = [
        "| attack | share of the rate kept | each run | memory of the server, at most | errors | closed or 503 |",
        "|---|---|---|---|---|---|",
    ]
    for name, words in WORDS.items():
        if runs := found["runs"].get(name):
            ratios, during = [run["ratio"] for run in runs], [run["during"] for run in runs]
            errors = sum(sum(run["errors"].values()) for run in during)
            others = sum(run["cut"] + run["busy"] for run in during)
            lines.append(
                f"| {words} | **{median(ratios):.2f}** | {', '.join(f'{ratio:.2f}' for ratio in ratios)} "
                f"| {max(run['peak_mb'] for run in during):,} MB | {errors} | {others} |"
            )
    busy = max(run["before"]["others_cores"] for runs in found["runs"].values() for run in runs)
    on = found["machine"]
    lines.append(
        f"\n{found['clients']} honest clients; {on['cores']} cores of {on['cpu']}, of which other "
        f"programs took up to {busy:.1f} meanwhile."
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure the attacks that the command line names, and add them to the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"{'; '.join(ATTACKS)}; default: all")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="length of a window")
    args = parser.parse_args()
    if unknown := set(args.attacks) - set(ATTACKS):
        parser.error(f"there is no attack {', '.join(sorted(unknown))}; there are {', '.join(ATTACKS)}")
    names = args.attacks or list(ATTACKS)
    raise_file_limit(CLIENTS + 1000)
    for tls in (False, True):
        chosen = [name for name in names if (name == "handshakes") == tls]
        if chosen:
            asyncio.run(measure(chosen, args.seconds, tls=tls))
    print(table())


if __name__ == "__main__":
    main()
