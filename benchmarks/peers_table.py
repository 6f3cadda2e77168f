"""The table of what `benchmarks.peers` measured: the best setting of each contender against a bare PyTorch loop."""

from typing import Any

DISTURBED = 0.1  # cores used by other processes; a run with more is repeated
BARE, BARE_AGAIN = "bare PyTorch loop", "bare PyTorch loop, again at the end"


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown: the best setting of each contender, and the others that were tried."""
    on = results["machine"]
    parts = [
        f"{on['cores']} cores of {on['cpu']}; torch {on['torch']}, Python {on['python']}, {on['date']}. "
        "Rounds of federated averaging: the median over rounds, with the lowest and the highest in brackets, without "
        "the first round. Memory: of all processes of a contender, after the first and after the last round.",
    ]
    for name, work in results["works"].items():
        rows = [row for row in results["rows"] if row["work"] == name]
        bare = [row["rate"] for row in rows if row["contender"] in (BARE, BARE_AGAIN) and "rate" in row]
        parts += [
            "",
            f"`{name}`, each client {work['samples']:,} images ({work['images']}), {work['epochs']} local "
            f"epoch{'s' if work['epochs'] > 1 else ''}, batches of {work['batch_size']}, float32:",
            "",
            "| | client trainings a second | against the bare loop | memory (MB) | first round done after |",
            "|---|---|---|---|---|",
        ]
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            groups.setdefault(row["contender"], []).append(row)
        for tried in groups.values():
            parts.append(line(tried, sum(bare) / len(bare) if bare else None))
    notes = dict.fromkeys(f"- {row['contender']}: {note}." for row in results["rows"] for note in row.get("notes", []))
    if any(is_disturbed(row) for row in results["rows"]):
        notes["- (!) Other processes used more than a tenth of a core meanwhile: do not compare."] = None
    provenance = ["", results["provenance"]] if "provenance" in results else []
    return "\n".join([*parts, *(["", *notes] if notes else []), *provenance, ""])


def is_disturbed(row: dict[str, Any]) -> bool:
    """Return whether other processes used the cores in every try."""
    return (row.get("others_cores") or 0.0) > DISTURBED


def line(tried: list[dict[str, Any]], bare: float | None) -> str:
    """Return the row of one contender, with all its settings."""
    best = max(tried, key=lambda row: row.get("rate", -1.0))
    others = [
        f"{row['setting']}: {row['rate']:.2f}{' (!)' * is_disturbed(row)}"
        if "rate" in row
        else f"{row['setting']}: failed ({row['error']})"
        for row in tried
        if row is not best
    ]
    if "rate" not in best:
        return f"| {best['contender']} | did not run: {best['error']} | | | |"
    own = {"Flower": "flwr", "pfl-research": "pfl", "APPFL": "appfl"}.get(best["contender"].partition(",")[0], "")
    title, comma, rest = best["contender"].partition(",")
    title += f" {best['versions'][own]}{comma}{rest}" if own else comma + rest
    also = f" (also tried: {'; '.join(others)})" if others else ""
    memory = best["rss_mb"]
    cells = [
        f"{title}; {best['setting']}{also}",
        f"**{best['rate']:.2f}** ({min(best['rates']):.2f}-{max(best['rates']):.2f}){' (!)' * is_disturbed(best)}",
        f"{best['rate'] / bare:.2f}x" if bare else "",
        f"{memory['begin']:,} to {memory['end']:,}" if memory["begin"] is not None else f"{memory['peak']:,}",
        f"{best['first_round_after_s']:.1f} s",
    ]
    return f"| {' | '.join(cells)} |"
