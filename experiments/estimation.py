"""Distribution estimation: estimated against true mixtures.

Claim: the paper's (section 5.2, figure 5): the server's estimate from one model is nearer to the truth than the
client's from K models.
Settings: the runs of Table 1. KL(true || estimated), smoothed by 1e-4, mean over clients' last uploads; *equal shares*:
that of equal shares over 1,000 mixtures.
Cost: none beyond Table 1.

    cdfl paper estimation --rows fashion-mnist-6
"""

from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np

from cdfl.data import Sizes
from cdfl.scenarios import load_scenario
from cdfl.sim.event_builders import divergence
from experiments.harness import EVERY_ROW, Experiment, Results, Row, RunKey, StoredRun, row_keys
from experiments.harness.figure_style import (
    COLORS,
    COLUMN,
    GREY,
    LABELS,
    MARKERS,
    PAGE,
    figure,
    legend,
    means,
    rows_below,
)
from experiments.harness.run_summary import main_and_constant
from experiments.harness.seed_comparison import RULE, compare
from experiments.harness.tables import NOTHING, counts_table, number, provenance, span, spread, stand_ins, table

PRESETS = ("paper-reading", "default")
COMPARED = {
    ("paper-reading", "cdfl"): "CDFL, `paper-reading`",
    ("paper-reading", "fedsoft"): "FedSoft-Async, `paper-reading`",
    ("default", "cdfl"): "CDFL, `default`",
    ("default", "fedsoft"): "FedSoft-Async, `default`",
    ("default", "ifca"): "IFCA, `default`",
}
SIX_CLUSTERS = ("mini-imagenet-32px-6", "fashion-mnist-6", "cifar-10-6")  # the paper shows MiniImagenet (6)
SHARES_NOTE = (
    "The last 60 uploads of seed 0. *Main cluster*: how often CDFL's largest share is the client's main cluster. "
    "*Forgotten*: clusters whose estimated shares sum to less than a quarter of the true ones.\n"
)
CONSTANT_NOTE = (
    "The same uploads. *Main cluster + constant*: an estimate that knows the main cluster and the mean of its share. "
    "*Correlation*: of the true and the estimated main share; near 1 if an estimate measures a mixture.\n"
)


def run_keys(trials: int) -> list[RunKey]:
    """Return the runs of Table 1 that estimate."""
    return row_keys({"paper-reading": ["cdfl", "fedsoft"], "default": ["cdfl", "fedsoft", "ifca"]}, trials)


def report(results: Results) -> str:
    """Return the KL of every row, and how often CDFL's estimate is the nearer one."""
    rows, there, used = [], [], []
    for row in EVERY_ROW:
        found = [results.trials(row.scenario, preset, algorithm) for preset, algorithm in COMPARED]
        if any(found):
            there.append(row)
            used += [kept for trials in found for kept in trials]
            values = [[kept.end["divergence"] for kept in trials] for trials in found]
            rows.append([row.title, number(equal_shares(row.scenario)), *map(spread, values), span(map(len, found))])
    main = table(["row", "equal shares", *COMPARED.values(), "trials"], rows)
    judged = (
        []
        if results.smoke
        else [_counts(results), RULE, SHARES_NOTE, _shares(results), CONSTANT_NOTE, _constant(results)]
    )
    return "\n".join([main, *stand_ins(there), *judged, provenance(used)])


def _counts(results: Results) -> str:
    questions = {
        f"CDFL below FedSoft-Async, `{preset}`, {where}": nearer(results, preset, stand_ins=own)
        for preset in PRESETS
        for own, where in ((False, "the paper's data"), (True, "stand-ins (†)"))
    }
    questions |= {
        f"{title}, below equal shares": than_equal_shares(results, *names)
        for names, title in COMPARED.items()
        if names[1] != "ifca"
    }
    return counts_table("KL", "below", questions)


def nearer(results: Results, preset: str, *, stand_ins: bool) -> dict[str, str | None]:
    """Return the outcome of CDFL's KL against FedSoft-Async's for each row of the paper's data or of stand-ins."""
    return {row.title: _against(results, row, preset) for row in EVERY_ROW if bool(row.stand_in) is stand_ins}


def _against(results: Results, row: Row, preset: str) -> str | None:
    ours, theirs = (results.trials(row.scenario, preset, name) for name in ("cdfl", "fedsoft"))
    return compare(ours, theirs, lambda kept: kept.end["divergence"])


def than_equal_shares(results: Results, preset: str, algorithm: str) -> dict[str, str | None]:
    """Return, for each row, whether the mean KL is below that of equal shares over 1,000 mixtures."""
    found = {row: results.values("divergence", row.scenario, preset, algorithm) for row in EVERY_ROW}
    return {
        row.title: "above" if fmean(values) > equal_shares(row.scenario) else "below"
        for row, values in found.items()
        if values
    }


@cache
def equal_shares(scenario: str) -> float:
    """Return the KL of clients' mixtures to equal shares of all clusters."""
    asked = load_scenario(scenario)
    equal = [1 / asked.num_clusters] * asked.num_clusters
    size = (asked.sizes or Sizes()).high
    counts = (asked.drift.counts(0, client, 0, size, asked.num_clusters) for client in range(1000))
    return fmean(divergence((own / size).tolist(), equal) for own in counts)


def _shares(results: Results) -> str:
    lines = []
    for row in EVERY_ROW:
        found = [mixtures(results, row, preset) for preset in PRESETS]
        if any(found):
            mains = [f"{main_found(*own):.0%}" if own else NOTHING for own in found]
            forgotten = [str(num_forgotten(*own)) if own else NOTHING for own in found]
            lines.append([row.title, *mains, *forgotten])
    return table(
        ["row", *(f"{what}, `{preset}`" for what in ("main cluster", "forgotten") for preset in PRESETS)], lines
    )


def _constant(results: Results) -> str:
    lines = []
    for row in EVERY_ROW:
        found = [own for preset in PRESETS if (own := mixtures(results, row, preset))]
        if len(found) == len(PRESETS):
            known = number(main_and_constant(found[0][0].tolist()))
            kls = [number(fmean(map(divergence, true.tolist(), estimated.tolist()))) for true, estimated in found]
            lines.append([row.title, known, *kls, *(number(main_correlation(*own)) for own in found)])
    return table(
        [
            "row",
            "KL of main cluster + constant",
            *(f"{what}, `{preset}`" for what in ("KL", "correlation") for preset in PRESETS),
        ],
        lines,
    )


def main_correlation(true: np.ndarray, estimated: np.ndarray) -> float:
    """Return the correlation of the true share of the main cluster with its estimated share.

    >>> main_correlation(np.array([[0.6, 0.4], [0.2, 0.8]]), np.array([[0.5, 0.5], [0.1, 0.9]]))
    1.0
    """
    places = np.arange(len(true)), true.argmax(axis=1)
    return round(float(np.corrcoef(true[places], estimated[places])[0, 1]), 6)


def mixtures(results: Results, row: Row, preset: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return true and estimated mixtures of CDFL in the last uploads of seed 0, if they were kept."""
    kept = results.find(RunKey(row.scenario, preset))
    own = kept.summary.get("mixtures") if kept else None
    return (np.array(own["true"]), np.array(own["estimated"])) if own else None


def main_found(true: np.ndarray, estimated: np.ndarray) -> float:
    """Return how often the largest shares of two sets of mixtures agree."""
    return float(np.mean(true.argmax(axis=1) == estimated.argmax(axis=1)))


def num_forgotten(true: np.ndarray, estimated: np.ndarray) -> int:
    """Return the number of clusters with far smaller estimated shares than true ones."""
    return int((estimated.mean(axis=0) < true.mean(axis=0) / 4).sum())


def draw(results: Results, folder: Path) -> list[str]:
    """Draw true against estimated shares of one run with six clusters, and KL over all rows."""
    drawn = []
    for scenario in SIX_CLUSTERS:
        runs = {name: results.find(RunKey(scenario, "paper-reading", name)) for name in ("cdfl", "fedsoft")}
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


def _pairs(runs: dict[str, StoredRun], scenario: str, folder: Path, *, smoke: bool) -> None:
    row = next(row for row in EVERY_ROW if row.scenario == scenario)
    shown = f"{row.title}, paper-reading;\nlast {len(runs['cdfl'].summary['mixtures']['true'])} uploads of one run"
    if not row.printed.startswith("MiniImagenet"):
        shown += "\n(the paper shows MiniImagenet (6))"
    with figure(folder, "estimation-mixtures", COLUMN, 2.5, smoke=smoke, ncols=2, sharey=True) as axes:
        for place, (name, kept) in enumerate(runs.items()):
            own = kept.summary["mixtures"]
            axes[place].plot([0, 1], [0, 1], color=GREY, lw=0.8)
            style = {"ms": 3, "color": COLORS[name], "alpha": 0.6, "mew": 0}
            axes[place].plot(np.ravel(own["true"]), np.ravel(own["estimated"]), ".", **style)
            axes[place].set(title=LABELS[name], xlabel="true share", xlim=(0, 1), ylim=(0, 1), aspect="equal")
            axes[place].set(xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
        axes[0].set_ylabel("estimated share")
        axes[0].figure.suptitle(shown)


EXPERIMENT = Experiment("estimation", __doc__, report, draw, run_keys, trials=5, smoke_rows=("fashion-mnist-6",))
