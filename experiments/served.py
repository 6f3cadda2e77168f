"""What clients are served: by experts behind a router, and by tuned rivals.

Claim: ours. Cluster models behind a router serve a client better than any single model, and lose nothing when its data
jump.
Settings: the best trial of each algorithm for a network (`tuning`). Differences of paired seeds, with 95% intervals
corrected for the number of rivals (Bonferroni).
Cost: some minutes on one H200 for each row of FashionMNIST; the digits run on two CPU cores.

    cdfl paper served --rows digits-4 --device cpu
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t as student

from experiments.harness import Experiment, Results, RunKey, StoredRun
from experiments.harness.figure_style import COLORS, LABELS, PAGE, PALE, figure
from experiments.harness.tables import provenance, table
from experiments.harness.tuned_settings import TUNED
from experiments.tuning import changes_of, score


@dataclass(frozen=True)
class Served:
    """One line of a table: what a client predicts with."""

    algorithm: str
    column: str
    what: str
    is_rival: bool = True  # serves one model or its own mixture, without our router
    changes: Mapping[str, Any] = field(default_factory=dict)
    tuned_for: str | None = None  # another column
    network: str | None = None  # another network than the row's


LINES = (
    Served("cdfl", "served", "experts behind a router", is_rival=False),
    Served("cdfl", "one", "the likeliest expert of each input", is_rival=False, tuned_for="served"),
    Served("cdfl", "served", "the same, mixture not sent", False, {"send_mixture": False}, "served"),
    Served("cdfl", "after", "one model, as in the paper", is_rival=False, tuned_for="served"),
    Served("fedsoft", "after", "clusters, weighted by votes of its samples"),
    Served("fedsoft", "routed", "its clusters behind our router", is_rival=False),
    Served("fedem", "after", "a mixture of all components"),
    Served("fedem", "routed", "its components behind our router", is_rival=False),
    Served("ifca", "after", "the best cluster"),
    Served("ifca", "routed", "its clusters behind our router", is_rival=False),
    Served("fedbuff", "after", "one model for all, moved by ten at a time"),
    Served("fedbuff", "before", "that model, trained further by the client"),
    Served("fedasync", "after", "one model for all, moved by each upload"),
    Served("frozen", "after", "the common start, never trained again"),
    Served("frozen", "routed", "experts of the server's samples only, behind our router", is_rival=False),
)
IN_ALL_ROWS = [("cdfl", column) for column in ("served", "one", "after")] + [
    (algorithm, "after") for algorithm in ("fedsoft", "ifca", "fedbuff")
]


@dataclass(frozen=True)
class Row:
    """A scenario with a network."""

    title: str
    scenario: str
    network: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[Served] = LINES


FEW_AND_FEDASYNC = [
    line
    for line in LINES
    if (line.algorithm, line.column) in [*IN_ALL_ROWS, ("fedasync", "after")] and not line.changes
]
FEW = [line for line in LINES if (line.algorithm, line.column) in IN_ALL_ROWS and not line.changes]


def _larger(network: str) -> tuple[Served, ...]:
    """Return the lines of one model that has as many parameters as four experts."""
    changes = {"model": network}
    return (
        Served("fedbuff", "after", "one model of four times the size", False, changes, network=network),
        Served(
            "fedbuff", "before", "that larger model, trained further by the client", False, changes, network=network
        ),
        Served(
            "fedbuff-int8",
            "after",
            "the larger model in int8: as many bytes as the experts",
            False,
            changes,
            "after",
            network,
        ),
    )


# ResNet-18 has the settings of the paper's CNN, and its own weight decay: it is not tuned.
CIFAR = {"num_uploads": 360, "weight_decay": 5e-4}
ROWS = (
    Row("8x8 digits (4)", "digits-4", "small-cnn"),
    Row("FashionMNIST (4)", "fashion-mnist-4", "cnn", lines=(*LINES, *_larger("cnn-2m"))),
    Row("FashionMNIST (4), sudden changes", "fashion-mnist-4-sudden", "cnn", lines=FEW),
    Row(
        "FashionMNIST (4), 27,000 parameters",
        "fashion-mnist-4",
        "cnn-27k",
        {"model": "cnn-27k"},
        (*LINES, *_larger("cnn-108k")),
    ),
    Row(
        "FashionMNIST (4), 4,000 parameters",
        "fashion-mnist-4",
        "cnn-4k",
        {"model": "cnn-4k"},
        (*LINES, *_larger("cnn-15k")),
    ),
    Row("FashionMNIST (6)", "fashion-mnist-6", "cnn", lines=FEW),
    Row("Digit recognition", "digit-recognition", "cnn", lines=FEW),
    Row("CIFAR-10 (4), ResNet-18", "cifar-10-4", "cnn", CIFAR, FEW_AND_FEDASYNC),
    Row("FashionMNIST (4), labels differ by cluster", "fashion-mnist-4-labels", "cnn", lines=FEW),
    Row("FashionMNIST (4), dark, bright and blurred", "fashion-mnist-4-shifts", "cnn", lines=FEW),
    Row("Text in four languages", "handbook-4", "gru"),
)
TRIALS = 5
UPLOADS_NOTE = (
    "The share of uploads after which CDFL, and the best rival itself, serve as well as that rival at its end.\n"
)


def key_of(row: Row, line: Served, seed: int) -> RunKey | None:
    """Return the run behind a line; None if its algorithm is not tuned for the row's network."""
    tuned = TUNED.get(line.network or row.network, {}).get(
        (line.algorithm.removesuffix("-int8"), line.tuned_for or line.column)
    )
    if tuned is None:
        return None
    changes = changes_of(line.algorithm, {**row.changes, **tuned, **line.changes})
    return RunKey(row.scenario, "default", line.algorithm, seed, changes)


def run_keys(trials: int) -> list[RunKey]:
    """Return every run once, although several lines may read it."""
    keys = [key_of(row, line, seed) for row in ROWS for line in row.lines for seed in range(trials)]
    return list({key.name: key for key in keys if key is not None}.values())


def values(results: Results, row: Row, line: Served) -> dict[int, float]:
    """Return a line's score by seed."""
    found = {}
    for seed in range(TRIALS):
        key = key_of(row, line, seed)
        kept = None if key is None else results.find(key)
        if kept is not None and (line.column not in ("one", "routed") or "routed" in kept.end):
            found[seed] = _score(kept, line.column)
    return found


def _score(kept: StoredRun, column: str) -> float:
    return float(kept.end["routed"]["one"]) if column == "one" else score(kept.end, column)


def interval(differences: Sequence[float], comparisons: int) -> tuple[float, float] | None:
    """Return the mean of three or more paired differences and half its 95% interval, with Bonferroni's correction."""
    if len(differences) < 3:
        return None
    half = student.ppf(1 - 0.025 / comparisons, len(differences) - 1) * stdev(differences) / len(differences) ** 0.5
    return fmean(differences), float(half)


def against_rivals(results: Results, row: Row) -> list[tuple[Served, float, tuple[float, float] | None]]:
    """Return each rival without our router: its mean, and how far CDFL is above it in pairs of seeds."""
    return _compared(results, row, [line for line in row.lines if line.is_rival])


def _compared(
    results: Results, row: Row, lines: Sequence[Served]
) -> list[tuple[Served, float, tuple[float, float] | None]]:
    ours = values(results, row, LINES[0])
    rivals = [(line, values(results, row, line)) for line in lines]
    rivals = [(line, theirs) for line, theirs in rivals if ours.keys() & theirs.keys()]
    return [
        (
            line,
            fmean(theirs.values()),
            interval([ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()], len(rivals)),
        )
        for line, theirs in rivals
    ]


def against_larger(results: Results, row: Row) -> list[tuple[Served, float, tuple[float, float] | None]]:
    """Return each line of one larger model: its mean, and how far CDFL is above it in pairs of seeds."""
    return _compared(results, row, [line for line in row.lines if line.network])


def uploads_to_level(results: Results, row: Row, rival: Served, line: Served = LINES[0]) -> tuple[float, int] | None:
    """Return after which share of the uploads a line serves as well as a rival does at its end, and in how many seeds.

    The share is the mean over the seeds that reach that level; scores are means over as many uploads as clients.
    """
    shares = []
    for seed, level in values(results, row, rival).items():
        key = key_of(row, line, seed)
        if key is not None and (kept := results.find(key)) is not None:
            curve = kept.summary["sessions"]
            reached = [upload for upload, own in zip(curve["upload"], curve[line.column], strict=True) if own >= level]
            shares += [reached[0] / kept.end["uploads"]] if reached else []
    return (fmean(shares), len(shares)) if shares else None


def report(results: Results) -> str:
    """Return how far ahead CDFL is in each row, how well mixtures are known, and a table for each row."""
    parts = [lead(results), _uploads(results), _mixtures(results), _perplexities(results)]
    for row in ROWS:
        lines = [(line, values(results, row, line)) for line in row.lines]
        lines = [(line, own) for line, own in lines if own]
        if lines:
            parts += [f"### {row.title}\n", _table(results, row, lines)]
    used = [kept for key in run_keys(TRIALS) if (kept := results.find(key)) is not None]
    return "\n".join([*parts, provenance(used)])


def lead(results: Results) -> str:
    """Return CDFL beside the best rival of each row."""
    rows = []
    for row in ROWS:
        rivals = against_rivals(results, row)
        if rivals:
            ours = values(results, row, LINES[0])
            best, mean, above = max(rivals, key=lambda each: each[1])
            rows.append(
                [
                    row.title,
                    f"{fmean(ours.values()):.3f}",
                    f"{mean:.3f} ({LABELS[best.algorithm]})",
                    _points(above),
                    str(len(ours.keys() & values(results, row, best).keys())),
                ]
            )
    return table(["data", "CDFL serves", "best rival", "CDFL above it by (points)", "seeds"], rows)


def uploads_shares(results: Results) -> list[tuple[Row, Served, int, list[tuple[float, int] | None]]]:
    """Return, for each row, its best rival, the seeds, and when CDFL and the rival reach the rival's final level."""
    found = []
    for row in ROWS:
        rivals = against_rivals(results, row)
        if rivals:
            best = max(rivals, key=lambda each: each[1])[0]
            both = len(values(results, row, LINES[0]).keys() & values(results, row, best).keys())
            found.append((row, best, both, [uploads_to_level(results, row, best, line) for line in (LINES[0], best)]))
    return found


def _uploads(results: Results) -> str:
    rows = [
        [row.title, LABELS[best.algorithm], *(_share(share, seeds) for share in shares)]
        for row, best, seeds, shares in uploads_shares(results)
    ]
    return UPLOADS_NOTE + "\n" + table(["data", "best rival", "CDFL is there after", "the rival after"], rows)


def _points(above: tuple[float, float] | None) -> str:
    return "" if above is None else f"{100 * above[0]:+.2f} ± {100 * above[1]:.2f}"


def _share(found: tuple[float, int] | None, seeds: int) -> str:
    if found is None:
        return "not reached"
    share, reached = found
    return f"{share:.0%}" + (f" ({reached} of {seeds} seeds)" if reached < seeds else "")


def _perplexities(results: Results) -> str:
    """Return the perplexity of what is served where a row has it."""
    rows = []
    for row in ROWS:
        for line in row.lines:
            keys = [key_of(row, line, seed) for seed in range(TRIALS)]
            ends = [kept.end for key in keys if key is not None and (kept := results.find(key)) is not None]
            bits = [
                end["more"]["bits"][line.column] for end in ends if line.column in end.get("more", {}).get("bits", {})
            ]
            if bits:
                rows.append([row.title, LABELS[line.algorithm], line.what, f"{fmean(2**own for own in bits):.3f}"])
    return table(["data", "algorithm", "serves", "perplexity of the next character"], rows) if rows else ""


def _mixtures(results: Results) -> str:
    """Return how well the router knows the mixtures of clients."""
    rows = []
    for row in ROWS:
        keys = [key_of(row, LINES[0], seed) for seed in range(TRIALS)]
        ends = [kept.end for key in keys if key is not None and (kept := results.find(key)) is not None]
        ends = [end for end in ends if "routed" in end]
        if ends:
            means = [
                fmean(end["routed"][name] for end in ends)
                for name in ("divergence", "correlation", "constant_divergence", "strange")
            ]
            rows.append([row.title, *(f"{mean:.4f}" for mean in means)])
    return table(["data", "KL", "correlation", "KL of main cluster + constant", "inputs that look strange"], rows)


def _on_new_data(results: Results, row: Row, line: Served) -> str:
    """Return the score on a client's new data of what it was last sent."""
    column = {"served": "served_held", "after": "held"}.get(line.column)
    keys = [key_of(row, line, seed) for seed in range(TRIALS)]
    ends = [kept.end for key in keys if key is not None and (kept := results.find(key)) is not None]
    return "" if column is None else f"{fmean(end[column] for end in ends):.3f}"


def _table(results: Results, row: Row, lines: list[tuple[Served, dict[int, float]]]) -> str:
    above = {line.what: found for line, _, found in [*against_rivals(results, row), *against_larger(results, row)]}
    rows = []
    for line, own in lines:
        spread = f" ± {stdev(own.values()):.3f}" if len(own) > 1 else ""
        ahead = above.get(line.what)
        rows.append(
            [
                LABELS[line.algorithm],
                line.what,
                _on_new_data(results, row, line),
                f"{fmean(own.values()):.3f}{spread}",
                _points(ahead),
                str(len(own)),
            ]
        )
    names = ["algorithm", "serves", "on new data, before the upload", "accuracy", "CDFL above it by (points)", "seeds"]
    return table(names, rows)


def draw(results: Results, folder: Path) -> Sequence[str]:
    """Draw how far CDFL is above the best rival of each row."""
    bests = {row.title: against_rivals(results, row) for row in ROWS}
    leads = {title: max(rivals, key=lambda each: each[1])[2] for title, rivals in bests.items() if rivals}
    known = [(title, *found) for title, found in leads.items() if found is not None]
    with figure(folder, "served", PAGE, 0.7 + 0.25 * max(1, len(known)), smoke=results.smoke) as axes:
        axes.axvline(0, color=PALE)
        for place, (_, mean, half) in enumerate(reversed(known)):
            axes.errorbar(100 * mean, place, xerr=100 * half, fmt="o", color=COLORS["cdfl"])
        axes.set_yticks(range(len(known)), [title for title, *_ in reversed(known)])
        axes.set_xlabel("points that CDFL serves above the best tuned rival (95% interval)")
    return ["served"]


EXPERIMENT = Experiment("served", __doc__ or "", report, draw, run_keys, trials=TRIALS, smoke_rows=("digits-4",))
