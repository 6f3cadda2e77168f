"""Simulate the queues of servers with ten million clients, from measured unit costs.

Claim: if clients send their mixtures, front ends and one process that steps serve ten million clients; the first
bottleneck is evaluation, then the serial step.

Each client uploads once a day on average, more often by day than by night. *Front ends* receive, decode and reply: as
many cores as keep them at most 70 % busy. *Evaluators* compute losses, likewise. One *stepper* takes what is waiting,
64 uploads at most, steps for one after the other, and commits once. The ten busiest minutes are simulated for three
seeds; how old base epochs are, for two days. Times come from unit_costs.json (step, encode, evaluation) and load.json
(the rest; for the small CNN that of the network of `cdfl init`), each on a machine of two cores. Writes
benchmarks/results/ten_million.json.
"""

from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any

import numpy as np

from benchmarks.result_files import commit, machine, read, write

CLIENTS = 10_000_000
DAY = 86_400.0
SWING = 0.8  # the busiest moment has 1.8 times the mean rate
MINUTES = 10
MOST = 50_000  # uploads of one simulation; at high rates these come in less time
BUSY = 0.7  # share of time that front ends and evaluators may work
GROUP = 64  # uploads in a commit
CLUSTERS = "4"
LIMIT = 1.0  # seconds; a stepper whose queue takes longer for one upload in a hundred is overloaded


@dataclass(frozen=True)
class Costs:
    """Seconds of one upload at each place."""

    front: float
    evaluate: float
    step: float
    commit: float  # of a group


def main() -> None:
    """Simulate and store."""
    ages = base_epoch_ages()
    print(ages, flush=True)
    rows = []
    for network, load in (("small-cnn", ("fleet", "alone")), ("cnn", ("paper", "alone"))):
        for mode in (
            "server estimates",
            "client estimates, one model",
            "client estimates, experts",
            "experts, encoded once a group",
        ):
            rows.append(case(network, load, mode))
            print(rows[-1], flush=True)
    found = {"machine": machine(), "commit": commit(), "clients": CLIENTS, "rows": rows, "ages": ages}
    write("ten_million", found)


def costs_of(network: str, load: tuple[str, str], mode: str) -> Costs:
    """Return the costs of one way to serve."""
    row = next(row for row in read("unit_costs")["rows"] if row["network"] == network)
    own = row["clusters"][CLUSTERS]
    stages = read("load")[load[0]][load[1]]["stages_ms"]
    front = sum(stages[name] for name in ("receive", "decode", "reply", "rest")) / 1e3
    evaluate = 2 * int(CLUSTERS) * row["ms_evaluation"] / 1e3 if mode == "server estimates" else 0.0
    encode = own["ms_encode"] / 1e3
    step = own["ms_step"] / 1e3 + (encode if mode == "client estimates, experts" else 0.0)
    group = stages["commit"] / 1e3 + (encode if mode == "experts, encoded once a group" else 0.0)
    return Costs(front, evaluate, step, group)


def case(network: str, load: tuple[str, str], mode: str) -> dict[str, Any]:
    """Simulate one way to serve: at the rate of ten million clients, and the highest rate that one stepper bears."""
    costs = costs_of(network, load, mode)
    rate = CLIENTS / DAY * (1 + SWING)
    waits = [run(costs, rate, seed) for seed in range(3)]
    most, low, high = 0.0, 1.0, 4 / costs.step
    while high / low > 1.05:  # where the stepper's queue begins to grow
        most = (low * high) ** 0.5
        low, high = (most, high) if run(costs, most, 0)["p99_stepper"] < LIMIT else (low, most)
    return {
        "network": network,
        "mode": mode,
        "rate": round(rate, 1),
        "front_cores": cores(costs.front, rate),
        "evaluation_cores": cores(costs.evaluate, rate),
        "stepper_busy": median(each["busy"] for each in waits),
        "p50": [round(each["p50"], 3) for each in waits],
        "p99": [round(each["p99"], 3) for each in waits],
        "group": median(each["group"] for each in waits),
        "most_rate": round(low),
        "most_clients": round(low / (1 + SWING) * DAY),
    }


def cores(seconds: float, rate: float) -> int:
    """Return how many cores keep a station at most 70 % busy."""
    return ceil(seconds * rate / BUSY) if seconds else 0


def run(costs: Costs, rate: float, seed: int) -> dict[str, float]:
    """Simulate the busiest minutes; return times of exchanges in seconds, and how busy the stepper is."""
    rng = np.random.default_rng([seed, 24])
    count = min(MOST, int(rate * 60 * MINUTES))
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    ready = station(arrivals, costs.front, cores(costs.front, rate), rng)
    if costs.evaluate:
        ready = station(ready, costs.evaluate, cores(costs.evaluate, rate), rng)
    order = np.argsort(ready, kind="stable")
    done, busy, groups = stepper(ready[order], costs)
    spent = done - arrivals[order]
    steady = spent[count // 5 :]
    p50, p99 = np.percentile(steady, (50, 99))
    queued = np.percentile((done - ready[order])[count // 5 :], 99)
    return {
        "p50": float(p50),
        "p99": float(p99),
        "p99_stepper": float(queued),
        "busy": round(busy / float(done[-1]), 3),
        "group": count / groups,
    }


def station(arrivals: np.ndarray, seconds: float, servers: int, rng: np.random.Generator) -> np.ndarray:
    """Return when uploads leave a station with several servers and one queue; service times vary by a third."""
    arrivals = np.sort(arrivals)
    times = seconds * rng.gamma(9.0, 1 / 9.0, len(arrivals))
    free = [0.0] * servers  # in the order of a ring: service times are alike, so the first that began is the first free
    left = np.empty_like(arrivals)
    for place, (at, time) in enumerate(zip(arrivals.tolist(), times.tolist(), strict=True)):
        begun = max(at, free[place % servers])
        free[place % servers] = left[place] = begun + time
    return left


def stepper(ready: np.ndarray, costs: Costs) -> tuple[np.ndarray, float, int]:
    """Return when uploads are answered, how long the stepper worked, and how many commits it made."""
    done = np.empty_like(ready)
    now = busy = 0.0
    place = groups = 0
    while place < len(ready):
        now = max(now, float(ready[place]))
        last = min(place + GROUP, int(np.searchsorted(ready, now, side="right")))
        last = max(last, place + 1)
        work = (last - place) * costs.step + costs.commit
        now, busy, groups = now + work, busy + work, groups + 1
        done[place:last] = now
        place = last
    return done, busy, groups


def base_epoch_ages() -> dict[str, float]:
    """Return how many epochs old the base of an upload is, after two days of ten million clients."""
    rng = np.random.default_rng(24)
    clients = rng.integers(CLIENTS, size=2 * CLIENTS, dtype=np.int32)
    order = np.argsort(clients, kind="stable")
    same = clients[order][1:] == clients[order][:-1]
    ages = np.diff(order)[same & (order[1:] >= CLIENTS)]
    p10, p50, p90 = np.percentile(ages, (10, 50, 90))
    return {"uploads": len(ages), "p10": float(p10), "p50": float(p50), "p90": float(p90)}


def table() -> str:
    """Return the table of the page."""
    found = read("ten_million")
    rows = found["rows"]
    lines = [
        f"| network, K = {CLUSTERS} | mode | front-end cores | evaluation cores | stepper busy | exchange, p50 | p99 "
        "| clients that one stepper serves |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        is_over = median(row["p99"]) > 30
        p50, p99 = ("grows", "grows") if is_over else (_span(row["p50"]), _span(row["p99"]))
        lines.append(
            f"| {row['network']} | {row['mode']} | {row['front_cores']} | {row['evaluation_cores']} "
            f"| {row['stepper_busy']:.0%} | {p50} | {p99} | {row['most_clients'] / 1e6:,.0f} million |"
        )
    ages, sizes = found["ages"], {row["network"]: row["bytes"] for row in read("unit_costs")["rows"]}
    traffic = "; ".join(
        f"{name}: {8 * size * rows[0]['rate'] / 1e9:.1f} Gbit/s each way at the busiest time, "
        f"{size * found['clients'] / 1e12:.1f} TB of uploads a day"
        for name, size in sizes.items()
    )
    note = (
        f"{found['clients']:,} clients, {rows[0]['rate']:.0f} uploads a second in the busiest minutes. Of "
        f"{ages['uploads']:,} uploads of clients that came again, the base was {ages['p10'] / 1e6:.1f} (10 %), "
        f"{ages['p50'] / 1e6:.1f} (50 %) and {ages['p90'] / 1e6:.1f} (90 %) million epochs old."
    )
    return "\n".join([*lines, "", note, "", f"Bytes, with one model up and one down: {traffic}."]) + "\n"


def _span(seconds: list[float]) -> str:
    low, high = min(seconds), max(seconds)
    same = f"{low:.2f}" == f"{high:.2f}"
    return f"{low:.2f} s" if same else f"{low:.2f}-{high:.2f} s"


if __name__ == "__main__":
    main()
