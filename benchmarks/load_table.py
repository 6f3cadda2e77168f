"""The tables of what `benchmarks.load` measured."""

from typing import Any

from benchmarks.result_files import read

DISTURBED = 0.1  # cores used by other processes; a run with more is marked

STAGES = {
    "receive": "receive: the upload to a file",
    "decode": "decode: hash, find, check, sync",
    "evaluate": "**evaluate: losses of the upload and of moved clusters on the proxy sets**",
    "apply": "apply: mixture, rates, moved clusters, personal model",
    "commit": "commit: reply, journal, sync",
    "reply": "reply: the personal model to the client",
    "rest": "HTTP, and waiting between stages",
}


def fleet() -> str:
    """Return the rates of many clients, of one alone, and beside idle connections."""
    results = read("load")
    together, alone, idle = results["fleet"]["together"], results["fleet"]["alone"], results["idle"]
    first, second = idle["nobody else"], idle["idle"]
    third = idle["idle, half are allowed"]
    rows = [
        (f"{together['clients']} clients at once", together),
        ("one client alone", alone),
        (f"{first['clients']} clients", first),
        (f"{second['clients']} clients and {second['idle']:,} idle connections of others", second),
        (f"the same, with `--max-connections {third['idle'] // 2}`", third),
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
    costs = [
        f"| the server with {together['clients']} clients | |",
        "|---|---|",
        f"| memory after a fifth of the updates | {memory[fifth]} MB |",
        f"| memory at the end | {memory[-1]} MB |",
        f"| memory, peak | {max(memory)} MB |",
        f"| CPU for an update | {together['server_cpu_ms']:.0f} ms |",
        f"| uploads in a commit | {together['uploads_a_commit']:.0f} |",
    ]
    return "\n".join([*lines, "", *costs, "", _when(results, "fleet", "idle")]) + "\n"


def paper() -> str:
    """Return the stages of an upload of the paper's CNN."""
    results = read("load")
    run, together = results["paper"]["alone"], results["paper"]["together"]
    stages = run["stages_ms"]
    whole = sum(stages.values())
    lines = ["| stage | ms | share |", "|---|---|---|"]
    lines += [f"| {words} | {stages[stage]:.1f} | {stages[stage] / whole:.1%} |" for stage, words in STAGES.items()]
    lines.append(f"| an update{_mark(run)} | {whole:.0f} | |")
    lines.append(f"| everything except evaluation | | **{1 - stages['evaluate'] / whole:.1%}** |")
    lines.append(f"| updates a second, {together['clients']} clients at once | {together['rate']:.1f} | |")
    return "\n".join([*lines, "", _when(results, "paper")]) + "\n"


def exchanges() -> str:
    """Return the rates of exchanges without evaluation, ours and those of other frameworks."""
    results = read("load")
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
    for run in results["exchanges"].get("earlier", []):
        lines.append(f"| cdfl, 8 clients, earlier run ({run['commit']}) | {run['8']:.1f} | | |")
    return "\n".join([*lines, "", _when(results, "exchanges", "others")]) + "\n"


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def _mark(run: dict[str, Any]) -> str:
    return " (!)" if (run.get("others_cores") or 0.0) > DISTURBED else ""


def _when(results: dict[str, Any], *parts: str) -> str:
    """Return machine, versions and days, and what (!) means if a row has it."""
    on = results["machine"]
    days = sorted({results[part]["began"][:10] for part in parts})
    words = f"{on['cores']} cores of {on['cpu']}; torch {on['torch']}, Python {on['python']}, {' and '.join(days)}."
    if any(_mark(run) for part in parts for run in runs_of(results[part])):
        words += " (!) Other processes used more than a tenth of a core meanwhile."
    return words


def runs_of(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every measurement of a part."""
    return [run for run in [*part.values(), *part.get("rows", [])] if isinstance(run, dict)]
