"""The tables of what `benchmarks.crash` found."""

from typing import Any

from benchmarks.result_files import read

LEFT_OVER = ("spool", "upload", "reply", "snapshot")  # files of a killed server


def table() -> str:
    """Return one row for each campaign, and one for the moments of the kills on each database."""
    stored = read("crash")
    rows = ["| what happened | database | how often | acknowledged | in the journal | sent | 503 or 409 | findings |"]
    rows.append("|---|---|---|---|---|---|---|---|")
    for row in stored["campaigns"]:
        counts = row["counts"]
        numbers = [counts.get(name) for name in ("uploads acknowledged", "uploads in the journal", "times sent")]
        refused = sum(counts["refusals"].values()) if "refusals" in counts else None
        cells = [row["campaign"], row["database"], _often(counts), *map(_number, [*numbers, refused])]
        rows.append(f"| {' | '.join(cells)} | {len(row['findings'])} |")
    on = stored["machine"]
    kills = [row for row in stored["campaigns"] if row["campaign"] == "server killed"]
    shared = [row for row in stored["campaigns"] if row["campaign"] == "one of two servers killed"]
    versions = f"SQLite {on['sqlite']}, PostgreSQL {on['postgresql'].split()[0]}, Python {on['python']}"
    machine = f"{on['cpu']}, {on['cores']} cores; {versions}, {on['date']}."
    columns = [
        "killed while starting",
        "killed at work",
        "with uploads in progress",
        "with an upload applied, unanswered",
    ]
    columns += [f"file left over: {kind}" for kind in LEFT_OVER]
    moments = [f"| database | {' | '.join(columns)} |", "|" + "---|" * (len(columns) + 1), *map(_moments, kills)]
    return "\n".join([*rows, "", *moments, "", *map(_takeovers, shared), machine, ""])


def _moments(row: dict[str, Any]) -> str:
    """Return how many kills hit each moment."""
    counts = row["counts"]
    names = ["while starting", "at work", "with uploads on their way", "with an upload applied, its answer lost"]
    names += [f"with a file left over: {kind}" for kind in LEFT_OVER]
    return f"| {row['database']} | {' | '.join(str(counts.get(name, 0)) for name in names)} |"


def _takeovers(row: dict[str, Any]) -> str:
    """Return what happened to two servers on one store."""
    counts = row["counts"]
    killed = f"{counts.get('owner killed', 0)} kills hit the owner"
    pauses = f"it was paused {counts.get('pauses of the owner', 0)} times"
    lost = f"{counts.get('with an upload applied, its answer lost', 0)} times an upload was applied and not answered"
    return f"Two servers: {killed}, {pauses}; the other one took over {counts['takeovers']} times; {lost}.\n"


def _often(counts: dict[str, Any]) -> str:
    for name, word in (("kills", "kills"), ("cuts", "cuts"), ("times", "times"), ("answers checked", "answers")):
        if name in counts:
            return f"{counts[name]} {word}"
    return "-"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
