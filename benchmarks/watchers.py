"""Measure what watchers cost: uploads a second with 100 open streams of events, over uploads a second with none.

Claim: a server with 100 watchers serves uploads at least 0.9 times as fast as with none.

One server (the example of `cdfl init`, on SQLite, with syncs), one fleet of clients that do not train. Windows without
and with watchers alternate, and so does which comes first. The watchers have several operator tokens, receive every
event, and run in a process of their own on the same cores; what they cost there is part of the result.

Many short pairs: another program that comes and goes changes both windows of a pair, or few pairs, and the median over
pairs hardly notices. Its interval holds the true median with 95 %, whatever the noise looks like. The ratio of CPU
times (what server, clients and watchers use for an upload without watchers, over what they use with them) is the ratio
of rates where the CPU is the limit; it also holds on a machine that is busy all the time.

Writes benchmarks/results/watchers.json. Takes about ten minutes.
"""

import argparse
import multiprocessing
import os
import secrets
import selectors
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import comb
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.fleet.measure import measure
from benchmarks.fleet.server import Server
from benchmarks.load import UNHURRIED
from benchmarks.result_files import machine, read, write
from cdfl.cli.init import EXAMPLE

CLIENTS, PAIRS, SECONDS = 20, 20, 10.0
FIRST = 100  # uploads that tell how many a window of so many seconds has
WATCHERS, OPERATORS = 100, 4
PIECE = 2**16


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="windows without and with watchers")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="length of a window")
    args = parser.parse_args()
    tokens = [secrets.token_urlsafe(16) for _ in range(OPERATORS)]
    os.environ["CDFL_OPERATOR_TOKEN"] = ",".join(tokens)
    rows = []
    with tempfile.TemporaryDirectory(prefix="watchers-") as folder:
        options = *UNHURRIED, "--max-streams", str(2 * WATCHERS)
        with Server(EXAMPLE, Path(folder), CLIENTS, *options) as server:
            measure(server, CLIENTS, FIRST, warm_up=CLIENTS)
            updates = round(args.seconds * measure(server, CLIENTS, FIRST)["rate"])
            for pair in range(args.pairs):
                rows.append(window_pair(server, tokens, updates, watchers_first=pair % 2 == 1))
                print(rows[-1], flush=True)
    ratios = [row["with"]["rate"] / row["without"]["rate"] for row in rows]
    cpu = [row["without"]["cpu_ms"] / row["with"]["cpu_ms"] for row in rows]
    found = {"machine": machine(), "watchers": WATCHERS, "operators": OPERATORS, "clients": CLIENTS, "rows": rows}
    found |= {"updates": updates}
    for name, values in (("ratios", ratios), ("cpu_ratios", cpu)):
        low, high = interval(values)
        found[name] = [round(value, 3) for value in values]
        found |= {f"{name}_median": round(median(values), 3), f"{name}_interval": [round(low, 3), round(high, 3)]}
    write("watchers", found)
    print(table())


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return an interval that holds the median of what these are samples of, with at least 95 %.

    Its ends are two of the values: the number of values below the median is binomial, whatever the values are.

    >>> interval([*range(20)])
    (5, 14)
    >>> interval([1.0, 3.0, 2.0])  # too few for 95 %: all of them
    (1.0, 3.0)
    """
    ordered, count = sorted(values), len(values)
    outside, cut = 0.0, 0
    while 2 * (outside + comb(count, cut) / 2**count) <= 0.05:
        outside += comb(count, cut) / 2**count
        cut += 1
    cut = max(cut - 1, 0)
    return ordered[cut], ordered[-1 - cut]


def window_pair(server: Server, tokens: Sequence[str], updates: int, *, watchers_first: bool) -> dict[str, Any]:
    """Measure a window with watchers and one without, in either order."""
    found: dict[str, Any] = {}
    for is_watched in (watchers_first, not watchers_first):
        with watching(server.port, tokens) if is_watched else no_watchers() as used:
            run = measure(server, CLIENTS, updates)
            events, seconds = used()
        kept = {name: run[name] for name in ("rate", "p50_ms", "p99_ms", "server_cpu_ms", "others_cores")}
        seconds += (run["server_cores"] + run["client_cores"]) * run["seconds"]
        kept["cpu_ms"] = round(1e3 * seconds / run["updates"], 2)
        found["with" if is_watched else "without"] = kept | ({"events": events} if is_watched else {})
    return found


@contextmanager
def no_watchers() -> Iterator[Any]:
    """Watch nothing."""
    yield lambda: (0, 0.0)


@contextmanager
def watching(port: int, tokens: Sequence[str]) -> Iterator[Any]:
    """Let watchers read all events while the block runs; yield a function for their number and CPU seconds."""
    context = multiprocessing.get_context("spawn")
    opened, over, count, used = context.Event(), context.Event(), context.Value("q", 0), context.Value("d", 0.0)
    reader = context.Process(target=read_events, args=(port, list(tokens), opened, over, count, used))
    reader.start()
    if not opened.wait(60):
        raise RuntimeError("the watchers were not let in")
    try:
        yield lambda: (count.value, used.value)
    finally:
        over.set()
        reader.join()


def read_events(port: int, tokens: Sequence[str], opened: Event, over: Event, count: Any, used: Any) -> None:
    """Hold the streams open and read them, as cheaply as possible; count events and CPU seconds."""
    selector, watchers = selectors.DefaultSelector(), []
    for number in range(WATCHERS):
        watcher = socket.create_connection(("127.0.0.1", port))
        token = tokens[number % len(tokens)]
        request = f"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
        watcher.sendall(request.encode())
        if b" 200 " not in watcher.recv(PIECE):
            raise RuntimeError("a watcher was refused")
        selector.register(watcher, selectors.EVENT_READ, watcher)
        watchers.append(watcher)
    begun = time.process_time()
    opened.set()
    while not over.is_set():
        for key, _ in selector.select(timeout=0.2):
            count.value += key.data.recv(PIECE).count(b"data: ")
        used.value = time.process_time() - begun
    for watcher in watchers:
        watcher.close()


def table() -> str:
    """Return the rates of each pair and their ratio."""
    found = read("watchers")
    if found is None:
        return "Not measured yet.\n"
    lines = [
        f"{found['clients']} clients, on {found['machine']['cpu']}, {found['machine']['cores']} cores:\n",
        f"| pair | without watchers | with {found['watchers']} watchers | ratio | CPU an upload | its ratio |",
        "|---|---|---|---|---|---|",
    ]
    ratios = zip(found["rows"], found["ratios"], found["cpu_ratios"], strict=True)
    for number, (row, ratio, cpu) in enumerate(ratios, start=1):
        before, after = row["without"], row["with"]
        lines.append(
            f"| {number} | {before['rate']:.1f} a second | {after['rate']:.1f} a second | {ratio:.2f} "
            f"| {before['cpu_ms']:.1f} and {after['cpu_ms']:.1f} ms | {cpu:.2f} |"
        )
    medians = [
        f"{found[f'{name}_median']:.2f} ({' to '.join(f'{end:.2f}' for end in found[f'{name}_interval'])})"
        for name in ("ratios", "cpu_ratios")
    ]
    lines.append(f"| median (95 %) | | | {medians[0]} | | {medians[1]} |")
    others = median(row[which]["others_cores"] for row in found["rows"] for which in ("without", "with"))
    lines.append(f"\nOther programs used {others:.1f} cores meanwhile.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
