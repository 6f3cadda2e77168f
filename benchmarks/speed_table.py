"""The tables of docs/simulator.md, from the result files of speed.py, floor.py, clients.py and peers.py."""

import json
from pathlib import Path
from typing import Any

import peers_table

from cdfl.scenarios import load_scenario

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs" / "simulator.md"
RESULTS = HERE / "results"


def write_docs() -> None:
    """Put every table between its marks."""
    DOCS.write_text(rendered(DOCS.read_text(encoding="utf-8")), encoding="utf-8")


def rendered(text: str) -> str:
    """The page with its tables written anew."""
    for name, table in (
        ("speed-h200", speed),
        ("speed-cpu", speed),
        ("profile", profile),
        ("floor", floor),
        ("clients", clients),
        ("peers", peers),
    ):
        begin, end = f"<!-- {name}: written by benchmarks/speed.py --docs -->\n", f"<!-- {name}: end -->"
        head, rest = text.split(begin)
        text = head + begin + table(name) + end + rest.split(end)[1]
    return text


def speed(name: str) -> str:
    """Plain loop and stacks, side by side."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return "Not measured yet.\n"
    cases = json.loads(path.read_text())
    rows = [
        "| scenario | precision | plain loop | stacks | part of the plain loop's time | first run | after, clusters |"
    ]
    rows.append("|---|---|---|---|---|---|---|")
    for case in cases:
        plain = _seconds(case["plain"], case["uploads"])
        for precision, runs in case["fast"].items():
            fast = runs["warm"]
            seconds = _seconds(fast, case["uploads"])
            rows.append(
                f"| {case['scenario']}, {case['uploads']:,} uploads{_changed(case)} "
                f"| {precision} | {plain:,.0f} s | {seconds:.1f} s "
                f"| 1/{plain / seconds:.1f} | {_seconds(runs['cold'], case['uploads']):.1f} s "
                f"| {fast['after']:.3f}, {fast['cluster']:.3f} |"
            )
    on = cases[-1]["machine"]
    device = on["gpu"] or f"{on['cpu']}, {on['cores']} cores"
    return "\n".join([*rows, "", f"{device}; torch {on['torch']}, Python {on['python']}, {on['date']}."]) + "\n"


def profile(_: str) -> str:
    """Where the time of one GPU run goes."""
    cases = [case for case in json.loads((RESULTS / "speed-h200.json").read_text()) if "tf32" in case["fast"]]
    case = [case for case in cases if case["scenario"] == "fashion-mnist-4"][-1]
    times = case["fast"]["tf32"]["profile"]
    whole = times["everything"]
    shown = {name.strip(): value for name, value in times.items() if name != "everything"}
    rows = ["| part | seconds | share |", "|---|---|---|"]
    for stage, seconds in sorted(shown.items(), key=lambda pair: -pair[1]):
        within = " (within training)" if stage == "loading stacks" else ""
        rows.append(f"| {stage}{within} | {seconds:.2f} | {seconds / whole:.0%} |")
    return "\n".join(rows) + "\n"


def floor(_: str) -> str:
    """What the convolutions of a ResNet alone would take."""
    found = json.loads((RESULTS / "floor-h200.json").read_text())
    rows = ["| precision | convolutions of a step | of a proxy evaluation | of the run | the whole run | plain loop |"]
    rows.append("|---|---|---|---|---|---|")
    for case in json.loads((RESULTS / "speed-h200.json").read_text()):
        for precision, runs in case["fast"].items() if case["scenario"] == found["scenario"] else ():
            step, evaluation = found["ms"][precision]["step"], found["ms"][precision]["evaluation"]
            seconds = (found["steps"] * step + found["evaluations"] * evaluation) / 1e3
            plain = _seconds(case["plain"], case["uploads"])
            rows.append(
                f"| {precision} | {step:.2f} ms | {evaluation:.2f} ms | {seconds:.1f} s, 1/{plain / seconds:.1f} "
                f"| {_seconds(runs['warm'], case['uploads']):.1f} s | {plain:.0f} s |"
            )
    return "\n".join(rows) + "\n"


def clients(_: str) -> str:
    """Memory and time of many clients."""
    path = RESULTS / "clients.json"
    if not path.exists():
        return "Not measured yet.\n"
    rows = ["| clients | uploads | time | memory after a quarter | at the end | peak |", "|---|---|---|---|---|---|"]
    for row in json.loads(path.read_text())["rows"]:
        rows.append(
            f"| {row['clients']:,} | {row['uploads']:,} | {row['seconds']:.0f} s | {row['mb_after_a_quarter']:,} MB "
            f"| {row['mb_at_the_end']:,} MB | {row['mb_peak']:,} MB |"
        )
    return "\n".join(rows) + "\n"


def peers(name: str) -> str:
    """Client trainings a second, ours and others'."""
    path = RESULTS / "peers.json"
    if not path.exists():
        return "Not measured yet.\n"
    results = json.loads(path.read_text())
    return f"{peers_table.table(results).rstrip()}\n\n{results.get('provenance', '')}".rstrip() + "\n"


def _seconds(run: dict[str, Any], uploads: int) -> float:
    return float(run["seconds_to_start"] + run["ms_per_upload"] * uploads / 1e3)


def _changed(case: dict[str, Any]) -> str:
    """What a case has that its scenario has not."""
    changed = list(case.get("settings", []))
    if "clients" in case and case["clients"] != load_scenario(case["scenario"]).num_clients:
        changed.insert(0, f"{case['clients']} clients")
    return f" ({', '.join(changed)})" if changed else ""
