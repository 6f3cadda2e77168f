"""The search for `paper-reading` on FashionMNIST (4).

Claim: no time model gives the printed figures with the printed values; a few named changes do.
Settings: CDFL, `paper` with one of the changes below.
Cost: five minutes on one H200, eight processes.

    cdfl paper preset-search
"""

from pathlib import Path
from typing import Any, NamedTuple

from experiments.harness import EVERY_ROW, Experiment, Results, RunKey, StoredRun
from experiments.harness.figure_style import COLORS, MARKERS, PAGE, PALE, WORDS, figure, legend
from experiments.harness.table1_rows import COLUMNS
from experiments.harness.tables import NOTHING, distance, printed, provenance, signed, spread, table

ROW = next(row for row in EVERY_ROW if row.scenario == "fashion-mnist-4")
MIN = {"loss_bar": "min", "gap_bar": "min", "distance_bar": "min"}
FEW = {"time_model": "few-active"}
BASE = FEW | MIN | {"learning_rate": 1e-3}

CANDIDATES: dict[str, dict[str, Any]] = {
    "as printed, uniform uploads": {},
    "as printed, sessions": {"time_model": "sessions"},
    "as printed, few active (4 clients, 5 uploads each)": FEW,
    "few active, Adam .001": FEW | {"learning_rate": 1e-3},
    # F(v; D_k) summed over 8 batches of 128 or 16 of 64. Dividing the bar has the same effect on the shares.
    "few active, Adam .001, loss summed over 8 batches": FEW | {"learning_rate": 1e-3, "loss_bar": 8 / 8},
    "few active, Adam .001, loss summed over 16 batches": FEW | {"learning_rate": 1e-3, "loss_bar": 8 / 16},
    "few active, min bars": FEW | MIN,
    "uniform, Adam .001, min bars": MIN | {"learning_rate": 1e-3},
    "BASE: few active, Adam .001, min bars": BASE,
    "BASE, only l_bar min": FEW | {"learning_rate": 1e-3, "loss_bar": "min"},
    "BASE, Adam .003": BASE | {"learning_rate": 3e-3},
    "BASE, Adam .0005": BASE | {"learning_rate": 5e-4},
    "BASE, 1 local epoch": BASE | {"local_epochs": 1},
    "BASE, 2 local epochs": BASE | {"local_epochs": 2},
    "BASE, 10 local epochs": BASE | {"local_epochs": 10},
    "BASE, 5 epochs of pre-training": BASE | {"separate_epochs": 5},
    "BASE, 20 epochs of pre-training": BASE | {"separate_epochs": 20},
    "BASE, one shared model first": BASE | {"shared_epochs": 10, "separate_epochs": 2},
    "BASE, others drawn unevenly": BASE | {"drift": {"kind": "paper", "rest": "uneven"}},
    "BASE, 2 active": BASE | {"time_model": {"kind": "few-active", "active": 2}},
    "BASE, 4 active, 25 uploads each": BASE | {"time_model": {"kind": "few-active", "turns_each": 25}},
    "BASE, continuous hinge": BASE | {"staleness_hinge": "continuous"},
    "BASE, reply of moved clusters": BASE | {"reply_clusters": "moved"},
    "BASE, e_k set after the test": BASE | {"cluster_epochs_set": "after"},
    "BASE, 8 active": BASE | {"time_model": {"kind": "few-active", "active": 8}},
    "BASE, 1 active, 25 uploads": BASE | {"time_model": {"kind": "few-active", "active": 1, "turns_each": 25}},
    "uniform, Adam .001, min bars, beta_0 .1, no staleness": MIN
    | {"learning_rate": 1e-3, "base_rate": 0.1, "staleness_slope": 0, "max_staleness": None},
}
# The nearest reading keeps a bar above every loss, which reverses the ranking of clusters. This one does not, is as
# near, and changes only the learning rate among the printed values.
TAKEN = "few active, Adam .001, loss summed over 16 batches"
NOTE = "Δ: distance from the paper's mean in its deviations. Lines that begin with BASE change the line of that name.\n"


def run_keys(trials: int) -> list[RunKey]:
    """Return every candidate with every seed."""
    return [
        RunKey(ROW.scenario, "paper", "cdfl", seed, changes)
        for changes in CANDIDATES.values()
        for seed in range(trials)
    ]


class Tried(NamedTuple):
    """The result of one candidate."""

    worst: float  # the largest of its distances
    name: str
    trials: list[StoredRun]
    distances: list[float]  # of before, after and cluster, in the paper's deviations


def tried(results: Results) -> list[Tried]:
    """Return all candidates that were run, nearest first."""
    found = []
    for name, changes in CANDIDATES.items():
        trials = results.trials(ROW.scenario, "paper", "cdfl", changes)
        if trials:
            values = [[kept.end[column] for kept in trials] for column in COLUMNS]
            figures = [ROW.published("cdfl", column) for column in COLUMNS]
            away = [distance(own, figure) or 0.0 for own, figure in zip(values, figures, strict=True)]
            found.append(Tried(max(map(abs, away)), name, trials, away))
    return sorted(found, key=lambda one: one.worst)


def report(results: Results) -> str:
    """Return the table of candidates, nearest first."""
    lines = []
    for one in tried(results):
        name = f"**{one.name}**: `paper-reading`" if one.name == TAKEN else one.name
        line = [name, str(len(one.trials))]
        for column, far in zip(COLUMNS, one.distances, strict=True):
            line += [spread([kept.end[column] for kept in one.trials]), signed(None if results.smoke else far)]
        line += [spread([kept.end[column] for kept in one.trials]) for column in ("divergence", "rate")]
        lines.append([*line, NOTHING if results.smoke else f"{one.worst:.1f}"])
    header = ["change of `paper`", "trials", "before", "Δ", "after", "Δ", "cluster", "Δ", "KL", "mean rate", "worst Δ"]
    figures = [part for column in COLUMNS for part in (printed(ROW.published("cdfl", column)), "")]
    used = [kept for one in tried(results) for kept in one.trials]
    rows = lines if results.smoke else [["*the paper*", "5", *figures, "", "", ""], *lines]
    return "\n".join([NOTE, table(header, rows), provenance(used)])


def draw(results: Results, folder: Path) -> list[str]:
    """Draw the distances of every candidate, worst last; linear within two deviations, logarithmic outside."""
    found = tried(results)
    if not found:
        return []
    with figure(folder, "preset-search", PAGE, 0.19 * len(found) + 1.2, smoke=results.smoke) as axes:
        for place, column in enumerate(COLUMNS):
            away = [one.distances[place] for one in found]
            axes.plot(away, range(len(found)), ls="", color=COLORS["cdfl"], label=WORDS[column], **MARKERS[column])
        axes.axvspan(-2, 2, color=PALE, lw=0, zorder=0, label="within 2 SD of the paper")
        axes.set_yticks(range(len(found)), [one.name for one in found])
        for label, one in zip(axes.get_yticklabels(), found, strict=True):
            label.set_fontweight("bold" if one.name == TAKEN else "normal")
        axes.set_ylim(len(found) - 0.4, -0.6)
        set_distance_axis(axes, [far for one in found for far in one.distances])
        legend(axes, ncols=4)
    return ["preset-search"]


def set_distance_axis(axes: Any, distances: list[float]) -> None:
    """Scale the x axis so that it shows all distances."""
    axes.set_xscale("symlog", linthresh=2, linscale=1.2)
    axes.set_xticks([-100, -20, -5, -2, 0, 2, 5, 20, 100])
    axes.set_xlim(min(-3.0, 1.6 * min(distances)), max(3.0, 1.6 * max(distances)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_xlabel(
        "distance from the paper's mean, in its SD\nbold: taken as paper-reading; BASE: the line of that name"
    )


EXPERIMENT = Experiment("preset-search", __doc__, report, draw, run_keys)
