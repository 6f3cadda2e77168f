"""A fleet against a server: how many updates a second, how long each takes, what the server uses meanwhile."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from benchmarks.fleet.clients import Client, Idlers, Tally, exchange, make_clients
from benchmarks.fleet.server import Sample, Server
from benchmarks.fleet.target_models import goals_of
from benchmarks.processes import Sample as Usage
from benchmarks.processes import others_cores

STAGES = ("receive", "decode", "evaluate", "apply", "commit")


def measure(server: Server, clients: int, updates: int, *, warm_up: int = 0, idle: int = 0) -> dict[str, Any]:
    """Some clients of a server make updates, while `idle` connections of others say nothing."""
    fleet = make_clients(server.port, server.tokens[:clients], goals_of(server.setup, server.clusters, clients))
    try:
        return asyncio.run(_measure(server, fleet, updates, warm_up, idle))
    finally:
        for client in fleet:
            client.close()


async def _measure(server: Server, fleet: Sequence[Client], updates: int, warm_up: int, idle: int) -> dict[str, Any]:
    idlers = Idlers(server.port)
    await idlers.open(idle)
    for client in fleet:
        await client.join()
    await exchange(fleet, warm_up, Tally())
    before, tally = server.metrics(), Tally()
    async with sampled(server) as samples:
        begun = time.perf_counter()
        await exchange(fleet, updates, tally)
        seconds = time.perf_counter() - begun
    after = server.metrics()
    await idlers.close()
    found = summary(tally, seconds) | usage(samples, len(tally.seconds))
    found |= {"clients": len(fleet), "stages_ms": stages(before, after, tally)}
    groups = (after["cdfl_group_size_sum"] - before["cdfl_group_size_sum"]) / max(
        1.0, after["cdfl_group_size_count"] - before["cdfl_group_size_count"]
    )
    return (
        found | {"uploads_a_commit": round(groups, 1)} | ({"idle": idle, "idle_closed": idlers.closed} if idle else {})
    )


@asynccontextmanager
async def sampled(server: Server) -> AsyncIterator[list[Sample]]:
    """Sample what the server uses, every second while the block runs."""
    samples = [server.sample()]

    async def sample() -> None:
        while True:
            await asyncio.sleep(1.0)
            samples.append(server.sample())

    task = asyncio.create_task(sample())
    try:
        yield samples
    finally:
        task.cancel()
    samples.append(server.sample())


def summary(tally: Tally, seconds: float) -> dict[str, Any]:
    """What the clients saw."""
    p50, p99 = np.percentile(tally.seconds, [50, 99]).tolist()
    return {
        "updates": len(tally.seconds),
        "seconds": round(seconds, 2),
        "rate": round(len(tally.seconds) / seconds, 2),
        "p50_ms": round(1e3 * p50, 1),
        "p99_ms": round(1e3 * p99, 1),
        "max_ms": round(1e3 * max(tally.seconds), 1),
        "errors": dict(tally.errors),
        "busy": tally.busy,
        "cut": tally.cut,
        "outcomes": dict(tally.outcomes),
        "clusters_moved": round(tally.moved / len(tally.seconds), 2),
    }


def usage(samples: Sequence[Sample], updates: int) -> dict[str, Any]:
    """What it cost: memory every second, and cores."""
    first, last = samples[0], samples[-1]
    seconds = last.time - first.time
    ours = [Usage(sample.time, sample.memory, sample.server + sample.clients, sample.machine) for sample in samples]
    return {
        "rss_mb": [round(sample.memory) for sample in samples],
        "server_cores": round((last.server - first.server) / seconds, 2),
        "client_cores": round((last.clients - first.clients) / seconds, 2),
        "others_cores": others_cores(ours),
        "server_cpu_ms": round(1e3 * (last.server - first.server) / updates, 2),
    }


def stages(before: dict[str, float], after: dict[str, float], tally: Tally) -> dict[str, float]:
    """Milliseconds of every stage, for each update; what is left is HTTP, and waiting for the next stage."""
    updates = len(tally.seconds)
    found = {}
    for stage in STAGES:
        name = f"cdfl_upload_seconds_sum{{{stage}}}"
        found[stage] = 1e3 * (after[name] - before[name]) / updates
    found["reply"] = 1e3 * tally.reply_seconds / updates
    found["rest"] = 1e3 * sum(tally.seconds) / updates - sum(found.values())
    return {stage: round(milliseconds, 2) for stage, milliseconds in found.items()}
