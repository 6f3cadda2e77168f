"""The tables of docs/server.md, from the result file of load.py."""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs" / "server.md"
RESULTS = HERE / "results" / "load.json"
DISTURBED = 0.1  # cores that others may use before it is told

STAGES = {
    "receive": "receive: the upload to a file",
    "decode": "decode: hash, look up, check, sync",
    "evaluate": "**evaluate: losses on the proxy sets, of the upload and of clusters that moved**",
    "apply": "apply: mixture, rates, moved clusters, personal model",
    "commit": "commit: reply, journal, sync",
    "reply": "reply: the personal model to the client",
    "rest": "HTTP, and from one thread to the next",
}


def write_docs() -> None:
    """Put every table between its marks."""
    DOCS.write_text(rendered(DOCS.read_text(encoding="utf-8")), encoding="utf-8")


def rendered(text: str) -> str:
    """The page with its tables written anew."""
    results = json.loads(RESULTS.read_text())
    for name, table in (("fleet", fleet), ("paper", paper), ("exchanges", exchanges)):
        begin, end = f"<!-- load, {name}: written by benchmarks/load.py -->\n", f"<!-- load, {name}: end -->"
        head, rest = text.split(begin)
        text = head + begin + table(results) + end + rest.split(end)[1]
    return text


def fleet(results: dict[str, Any]) -> str:
    """Many clients at once, one alone, and strangers who sit there."""
    together, alone, idle = results["fleet"]["together"], results["fleet"]["alone"], results["idle"]
    first, second = idle["nobody else"], idle["idle"]
    third = idle["idle, half are allowed"]
    rows = [
        (f"{together['clients']} clients at once", together),
        ("one client alone", alone),
        (f"{first['clients']} clients", first),
        (f"the same, and {second['idle']:,} connections of others that say nothing", second),
        (f"the same, and the server allows {third['idle'] // 2:,} connections", third),
    ]
    lines = ["| | updates | a second | p50 | p99 | errors | 503 |", "|---|---|---|---|---|---|---|"]
    for name, run in rows:
        errors = sum(run["errors"].values()) + run["cut"]
        lines.append(
            f"| {name}{_mark(run)} | {run['updates']:,} | {run['rate']:.0f} | {_time(run['p50_ms'])} "
            f"| {_time(run['p99_ms'])} | {errors} | {run['busy']} |"
        )
    memory = together["rss_mb"]
    fifth = max(1, len(memory) // 5)
    words = (
        f"Memory of the server with {together['clients']} clients: {memory[fifth]} MB after a fifth of the updates, "
        f"{memory[-1]} MB after all of them, {max(memory)} MB at most. An update takes it "
        f"{together['server_cpu_ms']:.0f} ms of CPU, and one commit takes {together['uploads_a_commit']:.0f} uploads."
    )
    return "\n".join([*lines, "", words, "", _when(results, "fleet", "idle")]) + "\n"


def paper(results: dict[str, Any]) -> str:
    """Where the time of an update goes."""
    run, together = results["paper"]["alone"], results["paper"]["together"]
    stages = run["stages_ms"]
    whole = sum(stages.values())
    lines = ["| stage | ms | share |", "|---|---|---|"]
    lines += [f"| {words} | {stages[stage]:.1f} | {stages[stage] / whole:.1%} |" for stage, words in STAGES.items()]
    lines.append(f"| an update{_mark(run)} | {whole:.0f} | |")
    words = (
        f"All but evaluation is **{1 - stages['evaluate'] / whole:.1%}** of an update. "
        f"{together['clients']} clients at once get {together['rate']:.1f} updates a second."
    )
    return "\n".join([*lines, "", words, "", _when(results, "paper")]) + "\n"


def exchanges(results: dict[str, Any]) -> str:
    """Models exchanged without evaluation, and in other frameworks."""
    lines = ["| | exchanges a second | p50 | p99 |", "|---|---|---|---|"]
    for clients, run in sorted(results["exchanges"].items()):
        if clients.isdecimal():
            name = "1 client" if clients == "1" else f"{clients} clients"
            rate = f"**{run['rate']:.1f}**{_mark(run)}"
            lines.append(f"| cdfl, {name} | {rate} | {_time(run['p50_ms'])} | {_time(run['p99_ms'])} |")
    for row in results["others"]["rows"]:
        package = {"Flower": "flwr", "APPFL": "appfl"}[row["contender"]]
        version = f" {row['versions'][package]}" if "versions" in row else ""
        rate = f"{row['rate']:.2f}{_mark(row)}" if "rate" in row else f"did not run: {row['error']}"
        lines.append(f"| {row['contender']}{version}, 4 clients; {row['setting']} | {rate} | | |")
    words = _when(results, "exchanges", "others")
    if earlier := [f"{run['8']:.1f} ({run['commit']})" for run in results["exchanges"].get("earlier", [])]:
        words += f" Earlier runs with 8 clients: {', '.join(earlier)}; the speed of the machine itself changes as much."
    return "\n".join([*lines, "", words]) + "\n"


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def _mark(run: dict[str, Any]) -> str:
    return " (!)" if (run.get("others_cores") or 0.0) > DISTURBED else ""


def _when(results: dict[str, Any], *parts: str) -> str:
    """On what, when, and whether anybody else was there."""
    on = results["machine"]
    days = sorted({results[part]["began"][:10] for part in parts})
    words = f"{on['cores']} cores of {on['cpu']}; torch {on['torch']}, Python {on['python']}, {' and '.join(days)}."
    if any(_mark(run) for part in parts for run in runs_of(results[part])):
        words += " (!) Other processes took more than a tenth of a core meanwhile: it can be faster than this."
    return words


def runs_of(part: dict[str, Any]) -> list[dict[str, Any]]:
    """All that was measured in a part."""
    return [run for run in [*part.values(), *part.get("rows", [])] if isinstance(run, dict)]
