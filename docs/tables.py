"""Write the tables of the pages from the result files: `python docs/tables.py`.

A table stands between `<!-- NAME: generated -->` and `<!-- NAME: end -->`. A test fails if one is out of date.
"""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- ([\w, -]+): generated -->\n).*?(<!-- \2: end -->)", re.DOTALL)
DISTURBED = 0.1  # cores that other processes may use before a row is marked

ALGORITHMS = {
    "cdfl": "soft clusters; the server estimates",
    "fedsoft": "soft clusters; the client estimates",
    "fedasync": "one model",
    "fedbuff": "one model; changes in groups of ten",
    "ifca": "hard clusters; the client chooses",
    "local": "no server; starts anew (the paper's Local)",
    "local-keep": "no server; keeps its model",
    "oracle": "CDFL with the true mixture",
}
ATTACKS = {
    "clean": "nothing (all clients are honest)",
    "flipped-sign": "`u - (v - u)`: the change with its sign flipped",
    "negated": "`-v`: the model with its sign flipped",
    "noise": "`u` plus Gaussian noise, 10 times as long as the change",
    "flipped-labels": "a model trained on labels 9 - y",
}
STAGES = {
    "receive": "receive: write the upload to a file",
    "decode": "decode: hash, look up, check, sync",
    "evaluate": "**evaluate: losses on the proxy sets**",
    "apply": "apply: mixture, rates, clusters, personal model",
    "commit": "commit: reply, journal, sync",
    "reply": "reply: send the personal model",
    "rest": "HTTP and hand-over between threads",
}


def pages() -> list[Path]:
    """Return the pages that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def rendered(text: str) -> str:
    """Return a page with its tables written anew."""
    return BLOCK.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)


def main() -> None:
    """Write all pages."""
    for page in pages():
        page.write_text(rendered(page.read_text(encoding="utf-8")), encoding="utf-8")


def digits() -> str:
    """Return the scores of all algorithms on digits-4."""
    rows = []
    for name, columns in _read("digits-4")["scores"].items():
        cells = [_spread(columns[column]) for column in ("before", "after", "cluster", "divergence")]
        title = f"**{name}**" if name == "cdfl" else name
        rows.append([title, ALGORITHMS[name], *cells, f"{fmean(columns['bytes_down']) / 1e6:.1f}"])
    return _table(["algorithm", "", "before", "after", "clusters", "KL", "MB down"], rows)


def draw() -> str:
    """Return the time that drawing a client's data takes."""
    stored = _read("draw")
    rows = [
        [row["clusters"], f"{row['median_ms']:.2f} ms", f"{row['p95_ms']:.2f} ms", f"{row['image_bytes'] / 1e6:.0f} MB"]
        for row in stored["rows"]
    ]
    return _table(["clusters", "median", "95th percentile", "images in memory"], rows) + _machine(stored["machine"])


def speed(name: str) -> str:
    """Return the times of the reference loop and of stacks."""
    cases, rows = _read(name), []
    for case in cases:
        reference = _seconds(case["plain"], case)
        for precision, runs in case["fast"].items():
            warm = _seconds(runs["warm"], case)
            sizes = [f"{case['clients']} clients"] if "clients" in case else []
            title = ", ".join([case["scenario"], f"{case['uploads']:,} uploads", *sizes, *case.get("settings", [])])
            factor, first = f"**{reference / warm:.1f}x**", f"{_seconds(runs['cold'], case):.1f} s"
            rows.append([title, precision, f"{reference:,.0f} s", f"{warm:.1f} s", factor, first])
    header = ["scenario", "precision", "reference loop", "stacks", "faster by", "first run, with compilation"]
    return _table(header, rows) + _machine(cases[-1]["machine"])


def profile() -> str:
    """Return where the time of one GPU run goes."""
    cases = [case for case in _read("speed-h200") if case["scenario"] == "fashion-mnist-4" and "tf32" in case["fast"]]
    times = {name.strip(): seconds for name, seconds in cases[-1]["fast"]["tf32"]["profile"].items()}
    whole = times.pop("everything")
    rows = [
        [
            stage + (" (part of training)" if stage == "loading stacks" else ""),
            f"{seconds:.2f}",
            f"{seconds / whole:.0%}",
        ]
        for stage, seconds in sorted(times.items(), key=lambda pair: -pair[1])
    ]
    return _table(["part", "seconds", "share"], rows)


def floor() -> str:
    """Return what the convolutions of ResNet-18 alone would take."""
    found, rows = _read("floor-h200"), []
    for case in _read("speed-h200"):
        for precision, runs in case["fast"].items() if case["scenario"] == found["scenario"] else ():
            step, evaluation = found["ms"][precision]["step"], found["ms"][precision]["evaluation"]
            seconds = (found["steps"] * step + found["evaluations"] * evaluation) / 1e3
            times = [
                f"{seconds:.1f} s",
                f"{_seconds(runs['warm'], case):.1f} s",
                f"{_seconds(case['plain'], case):.0f} s",
            ]
            rows.append([precision, f"{step:.2f} ms", f"{evaluation:.2f} ms", *times])
    header = ["precision", "convolutions of a step", "of an evaluation", "of the run", "whole run", "reference loop"]
    return _table(header, rows)


def clients() -> str:
    """Return memory and time of runs with many clients."""
    rows = [
        [f"{row['clients']:,}", f"{row['uploads']:,}", f"{row['seconds']:.0f} s"]
        + [f"{row[column]:,} MB" for column in ("mb_after_a_quarter", "mb_at_the_end", "mb_peak")]
        for row in _read("clients")["rows"]
    ]
    return _table(["clients", "uploads", "time", "memory after a quarter", "at the end", "peak"], rows)


def peers() -> str:
    """Return client trainings a second, ours and others'."""
    stored, parts = _read("peers"), []
    header = ["", "trainings a second", "against the bare loop", "memory (MB)", "first round done after"]
    for name, work in stored["works"].items():
        rows = [row for row in stored["rows"] if row["work"] == name and "rate" in row]
        bare = fmean(
            row["rate"] for row in rows if row["contender"].startswith("bare") and "tuned" not in row["contender"]
        )
        best: dict[str, dict[str, Any]] = {}
        for row in rows:
            if row["contender"] not in best or row["rate"] > best[row["contender"]]["rate"]:
                best[row["contender"]] = row
        parts.append(
            f"`{name}`: {work['samples']:,} images a client ({work['images']}), "
            f"{work['epochs']} local epoch{'s' * (work['epochs'] > 1)}, batches of {work['batch_size']}.\n"
        )
        parts.append(_table(header, [_peer(row, bare) for row in best.values()]))
    return "\n".join([*parts, _machine(stored["machine"]).lstrip("\n")])


def _peer(row: dict[str, Any], bare: float) -> list[str]:
    title, comma, rest = row["contender"].partition(",")
    package = {"Flower": "flwr", "pfl-research": "pfl", "APPFL": "appfl"}.get(title)
    version = f" {row['versions'][package]}" if package else ""
    memory = row["rss_mb"]
    return [
        f"{title}{version}{comma}{rest}; {row['setting']}",
        f"**{row['rate']:.2f}** ({min(row['rates']):.2f}-{max(row['rates']):.2f}){_mark(row)}",
        f"{row['rate'] / bare:.2f}x",
        f"{memory['begin']:,} to {memory['end']:,}" if memory["begin"] is not None else f"{memory['peak']:,}",
        f"{row['first_round_after_s']:.1f} s",
    ]


def fleet() -> str:
    """Return the load of many clients at once."""
    stored = _read("load")
    together, alone, idle = stored["fleet"]["together"], stored["fleet"]["alone"], stored["idle"]
    half = idle["idle, half are allowed"]
    runs = {
        f"{together['clients']} clients at once": together,
        "one client": alone,
        f"{idle['nobody else']['clients']} clients": idle["nobody else"],
        f"the same, with {idle['idle']['idle']:,} idle connections": idle["idle"],
        f"the same, with `--max-connections {half['idle'] // 2}`": half,
    }
    rows = []
    for name, run in runs.items():
        failed = sum(run["errors"].values()) + run["cut"]
        times = [f"{run['rate']:.0f}", _time(run["p50_ms"]), _time(run["p99_ms"])]
        rows.append([name + _mark(run), f"{run['updates']:,}", *times, failed, run["busy"]])
    memory = together["rss_mb"]
    words = (
        f"\nServer memory with {together['clients']} clients: {memory[max(1, len(memory) // 5)]} MB after a fifth of "
        f"the updates, {memory[-1]} MB after all, {max(memory)} MB at most. CPU time: "
        f"{together['server_cpu_ms']:.0f} ms an update. Uploads a commit: {together['uploads_a_commit']:.0f}.\n"
    )
    header = ["", "updates", "a second", "p50", "p99", "errors", "503"]
    return _table(header, rows) + words + _when(stored, "fleet", "idle")


def update_stages() -> str:
    """Return where the time of one update goes."""
    stored = _read("load")
    stages = stored["paper"]["alone"]["stages_ms"]
    whole = sum(stages.values())
    rows = [[words, f"{stages[stage]:.1f}", f"{stages[stage] / whole:.1%}"] for stage, words in STAGES.items()]
    rows.append(["a whole update", f"{whole:.0f}", ""])
    return _table(["stage", "ms", "share"], rows) + _when(stored, "paper")


def exchanges() -> str:
    """Return model exchanges without evaluation, ours and others'."""
    stored, rows = _read("load"), []
    for number, run in sorted(stored["exchanges"].items()):
        if number.isdecimal():
            title = f"cdfl, {number} client{'' if number == '1' else 's'}; on disk before the answer"
            rows.append([title, f"**{run['rate']:.1f}**{_mark(run)}", _time(run["p50_ms"]), _time(run["p99_ms"])])
    for row in stored["others"]["rows"]:
        package = {"Flower": "flwr", "APPFL": "appfl"}[row["contender"]]
        rate = f"{row['rate']:.2f}{_mark(row)}" if "rate" in row else f"did not run: {row['error']}"
        rows.append([f"{row['contender']} {row['versions'][package]}, 4 clients; {row['setting']}", rate, "", ""])
    return _table(["", "exchanges a second", "p50", "p99"], rows) + _when(stored, "exchanges", "others")


def crash() -> str:
    """Return what was counted while servers, disks, databases and clients failed."""
    stored, rows = _read("crash"), []
    for row in stored["campaigns"]:
        counts = row["counts"]
        counted = {"kills": "kills", "cuts": "cuts", "times": "times", "answers looked at": "answers"}
        often = next(f"{counts[name]} {word}" for name, word in counted.items() if name in counts)
        numbers = [counts.get(name) for name in ("uploads acknowledged", "uploads in the journal", "times sent")]
        numbers.append(sum(counts["refusals"].values()) if "refusals" in counts else None)
        shown = ["-" if number is None else f"{number:,}" for number in numbers]
        rows.append([row["campaign"], row["database"], often, *shown, f"**{len(row['findings'])}**"])
    on = stored["machine"]
    header = ["fault", "database", "how often", "acknowledged", "in the journal", "sent", "503 or 409", "findings"]
    versions = f"SQLite {on['sqlite']}, PostgreSQL {on['postgresql'].split()[0]}"
    return _table(header, rows) + _machine(on, versions)


def kill_moments() -> str:
    """Return what the servers were doing when they were killed."""
    rows = []
    for row in _read("crash")["campaigns"]:
        counts = row["counts"]
        if row["campaign"] == "server killed":
            left = [
                counts.get(f"with a file left over: {kind}", 0) for kind in ("spool", "upload", "reply", "snapshot")
            ]
            moments = (
                "while starting",
                "at work",
                "with uploads on their way",
                "with an upload applied, its answer lost",
            )
            rows.append([row["database"], *[counts[moment] for moment in moments], *left])
    header = ["database", "starting", "serving", "with uploads in flight", "with an answer lost after the commit"]
    return _table([*header, "left a partial upload", "an unlisted upload", "an unlisted reply", "snapshot"], rows)


def poison(group: str) -> str:
    """Return what attacks do without and with the acceptance test."""
    rows = []
    for attack, words in ATTACKS.items():
        free, tested = _pair(group, attack)
        scores = [_spread(run[column]) for column in ("clusters", "after") for run in (free, tested)]
        rows.append([words, *scores, _share(tested["poison_rejected"]), _share(tested["honest_rejected"])])
    header = ["20 % of the clients upload", "clusters, no test", "clusters, test", "honest clients, no test"]
    return _table([*header, "honest clients, test", "attacks rejected", "honest uploads rejected"], rows)


def false_alarms() -> str:
    """Return what the acceptance test costs where all clients are honest."""
    rows = []
    for group in _read("poison")["groups"]:
        free, tested = _pair(group, "clean")
        refused = [_share(tested["honest_rejected"]), _share(tested["changed_rejected"])]
        scores = [_spread(run[column]) for column in ("clusters", "after") for run in (free, tested)]
        rows.append([group, *refused, *scores])
    header = ["scenario, all honest", "uploads rejected", "after the main cluster changed", "clusters, no test", "test"]
    return _table([*header, "clients, no test", "test"], rows)


def _pair(group: str, attack: str) -> tuple[dict[str, Any], dict[str, Any]]:
    found = {row["tested"]: row for row in _read("poison")["groups"][group]["rows"] if row["attack"] == attack}
    return found[False], found[True]


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def _table(header: list[str], rows: Iterable[list[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def _machine(on: dict[str, Any], versions: str = "") -> str:
    device = (
        on.get("gpu") or f"{on.get('cores_used', on['cores'])} core{'s' * (on.get('cores_used') != 1)} of {on['cpu']}"
    )
    parts = [
        device,
        f"torch {on['torch']}" if "torch" in on else "",
        versions,
        f"Python {on['python']}",
        on.get("date"),
    ]
    return f"\n{', '.join(part for part in parts if part)}.\n"


def _when(stored: dict[str, Any], *parts: str) -> str:
    days = sorted({stored[part]["began"][:10] for part in parts})
    runs = [run for part in parts for run in [*stored[part].values(), *stored[part].get("rows", [])]]
    words = _machine({**stored["machine"], "date": " and ".join(days)})
    if any(_mark(run) for run in runs if isinstance(run, dict)):
        words += "\n(!) Other processes used more than a tenth of a core during this row.\n"
    return words


def _mark(run: dict[str, Any]) -> str:
    return " (!)" if (run.get("others_cores") or 0.0) > DISTURBED else ""


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def _seconds(run: dict[str, Any], case: dict[str, Any]) -> float:
    return float(run["seconds_to_start"] + run["ms_per_upload"] * case["uploads"] / 1e3)


def _spread(values: list[float | None]) -> str:
    found = [value for value in values if value is not None]
    return f"{fmean(found):.3f} ± {stdev(found):.3f}" if found else "-"


def _share(values: list[float | None]) -> str:
    found = [value for value in values if value is not None]
    return f"{fmean(found):.1%} ± {stdev(found):.1%}" if found else "-"


TABLES: dict[str, Callable[[], str]] = {
    "digits-4": digits,
    "draw": draw,
    "speed-h200": lambda: speed("speed-h200"),
    "speed-cpu": lambda: speed("speed-cpu"),
    "profile": profile,
    "floor": floor,
    "clients": clients,
    "peers": peers,
    "load, fleet": fleet,
    "load, paper": update_stages,
    "load, exchanges": exchanges,
    "crash": crash,
    "kill-moments": kill_moments,
    "poison": lambda: poison("digits-4"),
    "poison-example": lambda: poison("example"),
    "false-alarms": false_alarms,
}

if __name__ == "__main__":
    main()
