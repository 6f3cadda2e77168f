"""Distribution estimation: how near the estimated mixtures are to the true ones.

Claim: the paper's (section 5.2, figure 5): the server's estimate from one uploaded model is nearer to the truth than
the client's own, made from K models.
Settings: `paper-reading` and `default`, CDFL and FedSoft-Async, with `default` IFCA as well; the runs of Table 1.
KL(true || estimated), the estimate smoothed by 1e-4, mean over the last upload of every client. *Equal shares*: the
same for one who takes all clusters to be alike for everybody, mean over 1,000 mixtures of the row. Main clusters, and
clusters that get far smaller shares than they should: of the last 60 uploads of seed 0.
Machine: one H200; seconds stand beside the results. Cost: none beyond Table 1.

    cdfl paper estimation --rows fashion-mnist-6
"""

from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np

from cdfl.paper import EVERY_ROW, Cell, Kept, Results, Row, row_cells
from cdfl.paper.compare import RULE, compare, held, named, on_rows
from cdfl.paper.figures import COLORS, COLUMN, GREY, LABELS, MARKERS, PAGE, figure, legend, means, rows_below
from cdfl.paper.rows import footnote
from cdfl.paper.tables import number, provenance, span, spread, table
from cdfl.scenarios import load_scenario
from cdfl.sim.metrics import divergence

NUMBER, TRIALS = 3, 5
PRESETS = ("paper-reading", "default")
SMOKE_ROWS = ("fashion-mnist-6",)
COMPARED = {
    ("paper-reading", "cdfl"): "CDFL, `paper-reading`",
    ("paper-reading", "fedsoft"): "FedSoft-Async, `paper-reading`",
    ("default", "cdfl"): "CDFL, `default`",
    ("default", "fedsoft"): "FedSoft-Async, `default`",
    ("default", "ifca"): "IFCA, `default`",
}
SIX_CLUSTERS = ("mini-imagenet-32px-6", "fashion-mnist-6", "cifar-10-6")  # the paper shows MiniImagenet (6)


def cells(trials: int) -> list[Cell]:
    """Those of Table 1 that estimate."""
    return row_cells({"paper-reading": ["cdfl", "fedsoft"], "default": ["cdfl", "fedsoft", "ifca"]}, trials)


def report(results: Results) -> str:
    """KL of every row."""
    rows, there, used = [], [], []
    for row in EVERY_ROW:
        found = [results.trials(row.scenario, preset, algorithm) for preset, algorithm in COMPARED]
        if any(found):
            there.append(row)
            used += [kept for trials in found for kept in trials]
            values = [[kept.end["divergence"] for kept in trials] for trials in found]
            rows.append([row.title, number(equal_shares(row.scenario)), *map(spread, values), span(map(len, found))])
    header = ["row", "equal shares", *COMPARED.values(), "trials"]
    told = [] if results.smoke else [verdict(results), RULE]
    return "\n".join([table(header, rows), *footnote(there), *told, provenance(used)])


def verdict(results: Results) -> str:
    """In how many rows CDFL's estimate is the nearer one, and in which it is not; and what it is worth by itself."""
    told = {
        "KL of CDFL's estimate below that of FedSoft-Async's, as the paper has it in all rows:": [
            _nearer(results, preset, stand_ins) for preset in PRESETS for stand_ins in (False, True)
        ],
        "Rows in which equal shares for everybody are nearer than the estimate, in the mean over trials:": [
            _farther(results, *names, title) for names, title in COMPARED.items() if names[1] != "ifca"
        ],
        "How often CDFL's largest share is that of the client's main cluster, in the last uploads of one run:": [
            _mains(results, preset) for preset in PRESETS
        ],
        "Clusters whose estimated shares come to less than a quarter of the true ones, all these uploads together:": [
            _forgotten(results, preset) for preset in PRESETS
        ],
        "Not run, where others were:": [_not_run(results, *names, title) for names, title in COMPARED.items()],
    }
    parts = [f"{claim}\n\n{''.join(lines)}" for claim, lines in told.items() if any(lines)]
    return "\n".join(parts) or "Estimates have not been compared yet.\n"


def _nearer(results: Results, preset: str, stand_ins: bool) -> str:
    outcomes = {row.title: _against(results, row, preset) for row in EVERY_ROW if bool(row.stand_in) is stand_ins}
    where = "rows of stand-ins (†)" if stand_ins else "rows of the paper's data"
    return f"- `{preset}`, {where}: {held(outcomes, 'below')}\n" if any(outcomes.values()) else ""


def _against(results: Results, row: Row, preset: str) -> str | None:
    ours, theirs = (results.trials(row.scenario, preset, name) for name in ("cdfl", "fedsoft"))
    return compare(ours, theirs, lambda kept: kept.end["divergence"])


@cache
def equal_shares(scenario: str) -> float:
    """KL of the mixtures that clients have there to equal shares of all clusters."""
    asked = load_scenario(scenario)
    equal = [1 / asked.num_clusters] * asked.num_clusters
    size = asked.sizes.high
    counts = (asked.drift.counts(0, client, 0, size, asked.num_clusters) for client in range(1000))
    return fmean(divergence((own / size).tolist(), equal) for own in counts)


def _mains(results: Results, preset: str) -> str:
    told = [
        f"{row.title} {np.mean(true.argmax(axis=1) == estimated.argmax(axis=1)):.0%}"
        for row, (true, estimated) in _mixtures(results, preset).items()
    ]
    return f"- `{preset}`: {named(told)}\n" if told else ""


def _forgotten(results: Results, preset: str) -> str:
    """Clusters that get far smaller shares than they should."""
    there = _mixtures(results, preset)
    counts = {
        row: int((estimated.mean(axis=0) < true.mean(axis=0) / 4).sum()) for row, (true, estimated) in there.items()
    }
    told = [f"{row.title} {count} of {there[row][0].shape[1]}" for row, count in counts.items() if count]
    return f"- `{preset}`: {named(told) if told else 'none'}\n" if there else ""


def _mixtures(results: Results, preset: str) -> dict[Row, tuple[np.ndarray, np.ndarray]]:
    """True and estimated mixtures of CDFL in the last uploads of one run, where they were kept."""
    found = {row: results.find(Cell(row.scenario, preset)) for row in EVERY_ROW}
    kept = {row: run.digest["mixtures"] for row, run in found.items() if run and run.digest.get("mixtures")}
    return {row: (np.array(own["true"]), np.array(own["estimated"])) for row, own in kept.items()}


def _farther(results: Results, preset: str, algorithm: str, title: str) -> str:
    found = {row: results.values("divergence", row.scenario, preset, algorithm) for row in EVERY_ROW}
    there = {row: fmean(values) for row, values in found.items() if values}
    farther = [row.title for row, mean in there.items() if mean > equal_shares(row.scenario)]
    which = f": {named(farther)}" if farther else ""
    return f"- {title}: {len(farther)} of {len(there)}{which}\n" if there else ""


def _not_run(results: Results, preset: str, algorithm: str, title: str) -> str:
    """Rows that it lacks, though it was run on others."""
    asked = [row for row in EVERY_ROW if any(results.trials(row.scenario, *names) for names in COMPARED)]
    lacking = {row.title: title for row in asked if not results.trials(row.scenario, preset, algorithm)}
    return f"- {on_rows(lacking)}\n" if 0 < len(lacking) < len(asked) else ""


def draw(results: Results, folder: Path) -> list[str]:
    """True against estimated shares of one run with six clusters, and KL over all rows."""
    drawn = []
    for scenario in SIX_CLUSTERS:
        runs = {name: results.find(Cell(scenario, "paper-reading", name)) for name in ("cdfl", "fedsoft")}
        if all(runs.values()):
            _pairs({name: kept for name, kept in runs.items() if kept}, scenario, folder, smoke=results.smoke)
            drawn.append("estimation-mixtures")
            break
    rows = [row for row in EVERY_ROW if results.values("divergence", row.scenario, "paper-reading")]
    if rows:
        with figure(folder, "estimation-kl", PAGE, 2.5, smoke=results.smoke) as axes:
            for place, (preset, algorithm) in enumerate(COMPARED):
                trials = [results.values("divergence", row.scenario, preset, algorithm) for row in rows]
                at = [where + 0.14 * (place - 2) for where in range(len(rows))]
                style = {"ls": "", "color": COLORS[algorithm]} | MARKERS[preset]
                means(axes, at, trials, label=f"{LABELS[algorithm]}, {preset}", **style)
            for where, row in enumerate(rows):
                axes.hlines(equal_shares(row.scenario), where - 0.4, where + 0.4, color=GREY, label="equal shares")
            rows_below(axes, rows)
            axes.set(ylabel="KL(true || estimated) ± SD", yscale="log")
            axes.yaxis.set_major_formatter("{x:g}")
            legend(axes, ncols=3)
        drawn.append("estimation-kl")
    return drawn


def _pairs(runs: dict[str, Kept], scenario: str, folder: Path, *, smoke: bool) -> None:
    row = next(row for row in EVERY_ROW if row.scenario == scenario)
    shown = f"{row.title}, paper-reading;\nlast {len(runs['cdfl'].digest['mixtures']['true'])} uploads of one run"
    if not row.printed.startswith("MiniImagenet"):
        shown += "\n(the paper shows MiniImagenet (6))"
    with figure(folder, "estimation-mixtures", COLUMN, 2.5, smoke=smoke, ncols=2, sharey=True) as axes:
        for place, (name, kept) in enumerate(runs.items()):
            mixtures = kept.digest["mixtures"]
            true, estimated = np.ravel(mixtures["true"]), np.ravel(mixtures["estimated"])
            axes[place].plot([0, 1], [0, 1], color=GREY, lw=0.8)
            axes[place].plot(true, estimated, ".", ms=3, color=COLORS[name], alpha=0.6, mew=0)
            axes[place].set(title=LABELS[name], xlabel="true share", xlim=(0, 1), ylim=(0, 1), aspect="equal")
            axes[place].set(xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
        axes[0].set_ylabel("estimated share")
        axes[0].figure.suptitle(shown)
