"""The tables of what `benchmarks.speed` and `.conv_floor` measured."""

from typing import Any

from benchmarks.result_files import read
from cdfl.scenarios import load_scenario


def speed(name: str) -> str:
    """Return the times of reference loop and stacks in one result file."""
    cases = read(name)
    rows = ["| scenario | precision | reference loop | stacks | faster by | first run | accuracy: reply, clusters |"]
    rows.append("|---|---|---|---|---|---|---|")
    for case in cases:
        plain = _seconds(case["plain"], case["uploads"])
        for precision, runs in case["fast"].items():
            fast = runs["warm"]
            seconds = _seconds(fast, case["uploads"])
            rows.append(
                f"| {case['scenario']}, {case['uploads']:,} uploads{_changed(case)} "
                f"| {precision} | {plain:,.0f} s | {seconds:.1f} s "
                f"| **{plain / seconds:.1f}x** | {_seconds(runs['cold'], case['uploads']):.1f} s "
                f"| {fast['after']:.3f}, {fast['cluster']:.3f} |"
            )
    on = cases[-1]["machine"]
    device = on["gpu"] or f"{on['cpu']}, {on['cores']} cores"
    return "\n".join([*rows, "", f"{device}; torch {on['torch']}, Python {on['python']}, {on['date']}."]) + "\n"


def profile() -> str:
    """Return the parts of the time of one GPU run."""
    cases = [case for case in read("speed-h200") if "tf32" in case["fast"]]
    case = [case for case in cases if case["scenario"] == "fashion-mnist-4"][-1]
    times = case["fast"]["tf32"]["profile"]
    whole = times["everything"]
    shown = {name.strip(): value for name, value in times.items() if name != "everything"}
    rows = ["| part | seconds | share |", "|---|---|---|"]
    for stage, seconds in sorted(shown.items(), key=lambda pair: -pair[1]):
        within = " (within training)" if stage == "loading stacks" else ""
        rows.append(f"| {stage}{within} | {seconds:.2f} | {seconds / whole:.0%} |")
    return "\n".join(rows) + "\n"


def floor() -> str:
    """Return the time of a run beside that of its convolutions alone."""
    found = read("floor-h200")
    rows = [
        "| precision | convolutions of a step | of a proxy evaluation | of the run | the whole run | reference loop |"
    ]
    rows.append("|---|---|---|---|---|---|")
    for case in read("speed-h200"):
        for precision, runs in case["fast"].items() if case["scenario"] == found["scenario"] else ():
            step, evaluation = found["ms"][precision]["step"], found["ms"][precision]["evaluation"]
            seconds = (found["steps"] * step + found["evaluations"] * evaluation) / 1e3
            plain = _seconds(case["plain"], case["uploads"])
            rows.append(
                f"| {precision} | {step:.2f} ms | {evaluation:.2f} ms | {seconds:.1f} s "
                f"| {_seconds(runs['warm'], case['uploads']):.1f} s | {plain:.0f} s |"
            )
    return "\n".join(rows) + "\n"


def _seconds(run: dict[str, Any], uploads: int) -> float:
    return float(run["seconds_to_start"] + run["ms_per_upload"] * uploads / 1e3)


def _changed(case: dict[str, Any]) -> str:
    """Return how a case differs from its scenario."""
    changed = list(case.get("settings", []))
    if "clients" in case and case["clients"] != load_scenario(case["scenario"]).num_clients:
        changed.insert(0, f"{case['clients']} clients")
    return f" ({', '.join(changed)})" if changed else ""
