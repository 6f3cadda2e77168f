"""The table of docs/server.md, from the result file."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "crash.json"
DOCS = ROOT / "docs" / "server.md"
BEGIN, END = "<!-- crash: written by python -m benchmarks.crash -->\n", "<!-- crash: end -->"


def write_docs() -> None:
    """Put the table between its marks."""
    DOCS.write_text(rendered(DOCS.read_text(encoding="utf-8")), encoding="utf-8")


def rendered(text: str) -> str:
    """The page with its table written anew."""
    head, rest = text.split(BEGIN)
    return head + BEGIN + table(json.loads(RESULTS.read_text())) + END + rest.split(END)[1]


def table(stored: dict[str, Any]) -> str:
    """One line a campaign."""
    rows = ["| what happened | database | how often | acknowledged | in the journal | sent | refused | wrong |"]
    rows.append("|---|---|---|---|---|---|---|---|")
    for row in stored["campaigns"]:
        counts = row["counts"]
        numbers = [counts.get(name) for name in ("uploads acknowledged", "uploads in the journal", "times sent")]
        refused = sum(counts["refusals"].values()) if "refusals" in counts else None
        cells = [row["campaign"], row["database"], _often(counts), *map(_number, [*numbers, refused])]
        rows.append(f"| {' | '.join(cells)} | {len(row['findings'])} |")
    on = stored["machine"]
    kills = [row for row in stored["campaigns"] if row["campaign"] == "server killed"]
    versions = f"SQLite {on['sqlite']}, PostgreSQL {on['postgresql'].split()[0]}, Python {on['python']}"
    machine = f"{on['cpu']}, {on['cores']} cores; {versions}, {on['date']}."
    return "\n".join([*rows, "", *map(_moments, kills), "", machine, ""])


def _moments(row: dict[str, Any]) -> str:
    """Where the kills have hit."""
    counts = row["counts"]
    left = {kind: counts.get(f"with a file left over: {kind}", 0) for kind in ("spool", "upload", "reply", "snapshot")}
    return (
        f"- {row['database']}: {counts['while starting']} servers were killed while they started, "
        f"{counts['at work']} at work. Of these {counts['with uploads on their way']} had uploads on their way, "
        f"{counts['with an upload applied, its answer lost']} one that was applied and not yet answered;\n"
        f"  {left['spool']} left an upload behind that was being received, {left['upload']} one that was not (or no "
        f"longer) in the journal, {left['reply']} such a reply, {left['snapshot']} such a snapshot."
    )


def _often(counts: dict[str, Any]) -> str:
    for name, word in (("kills", "kills"), ("cuts", "cuts"), ("times", "times"), ("answers looked at", "answers")):
        if name in counts:
            return f"{counts[name]} {word}"
    return "-"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
