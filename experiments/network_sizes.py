"""Network sizes: four experts, or one model that is as large as all of them.

Claim: ours. The smaller the network, the more experts gain over one model of the same size; for tiny networks one model
of four times the size is better.
Settings: FashionMNIST (4); the trials of `tuning` and the complete runs of `served`. One model: the best of FedBuff,
FedAsync (same size only), and FedBuff's model trained further by the client.
Cost: none beyond the two.

    cdfl paper network-sizes
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdfl.models import build
from experiments.harness import Experiment, Results, RunKey
from experiments.harness.figure_style import COLORS, PAGE, PALE, figure
from experiments.harness.networks import NETWORKS
from experiments.harness.tables import NOTHING, provenance, table
from experiments.served import LINES, ROWS, Row, against_larger, against_rivals, key_of
from experiments.tuning import SERVED, tried

ONE_MODEL = ("fedbuff", "fedasync")
AGAINST = ("same size", "four times the size", "four times the size, int8")
NOTE = (
    "Points that four experts serve above the best single model. *Same size*: a training and a prediction cost the "
    "same. *Four times the size*: as many parameters as four experts; *int8*: as many bytes as a reply of experts. "
    "First on validation samples in one seed, then on test samples with 95% intervals.\n"
)
Interval = tuple[float, float] | None


@dataclass(frozen=True)
class Size:
    """CDFL's distance to the best single model of each of `AGAINST`, for one network."""

    parameters: int  # of an expert
    trials: tuple[float | None, ...]  # on validation samples
    tests: tuple[Interval, ...]


def by_size(results: Results) -> list[Size]:
    """Return what is stored, the smallest network first."""
    found = [_size(results, row) for row in ROWS if any(line.network for line in row.lines)]
    return sorted((size for size in found if size.trials[0] is not None), key=lambda size: size.parameters)


def _size(results: Results, row: Row) -> Size:
    larger = next(line.network for line in row.lines if line.network)
    ours = best_trial(results, row.network, "cdfl")
    theirs = [best_trial(results, row.network, *ONE_MODEL), best_trial(results, larger, "fedbuff")]
    trials = [None if ours is None or one is None else ours - one for one in theirs]
    same = [one for one in against_rivals(results, row) if one[0].algorithm in ONE_MODEL]
    models = against_larger(results, row)
    floats = [one for one in models if one[0].algorithm in ONE_MODEL]
    rounded = [one for one in models if one[0].algorithm not in ONE_MODEL]
    tests = [max(group, key=lambda each: each[1])[2] if group else None for group in (same, floats, rounded)]
    return Size(num_parameters(row.network), (*trials, None), tuple(tests))


def best_trial(results: Results, network: str, *algorithms: str) -> float | None:
    """Return the best score of these algorithms on validation samples."""
    columns = [(name, column) for name in algorithms for column in SERVED[name]]
    scores = [score for name, column in columns for _, score in tried(results, network, name, column)]
    return max(scores, default=None)


def num_parameters(network: str) -> int:
    """Return the parameters of a network on 28x28 pictures of ten classes.

    >>> num_parameters("cnn"), num_parameters("cnn-4k")
    (582026, 3898)
    """
    make = NETWORKS.get(network)
    model = make((1, 28, 28), 10) if make else build(network, (1, 28, 28), 10)
    return sum(parameter.numel() for parameter in model.parameters())


def run_keys(trials: int) -> list[RunKey]:
    """Return the runs of the rows of `served` that have a larger model."""
    rows = [row for row in ROWS if any(line.network for line in row.lines)]
    lines = [(row, line) for row in rows for line in row.lines if line.network or line == LINES[0]]
    keys = [key_of(row, line, seed) for row, line in lines for seed in range(trials)]
    return list({key.name: key for key in keys if key is not None}.values())


def report(results: Results) -> str:
    """Return the distances by size."""
    rows = [
        [
            f"{size.parameters:,}",
            *(NOTHING if trial is None else f"{100 * trial:+.2f}" for trial in size.trials[:2]),
            *(NOTHING if test is None else f"{100 * test[0]:+.2f} ± {100 * test[1]:.2f}" for test in size.tests),
        ]
        for size in by_size(results)
    ]
    header = [*(f"{what}, validation" for what in AGAINST[:2]), *(f"{what}, test" for what in AGAINST)]
    used = [kept for key in run_keys(EXPERIMENT.trials) if (kept := results.find(key)) is not None]
    return "\n".join([NOTE, table(["parameters of an expert", *header], rows), provenance(used)])


def draw(results: Results, folder: Path) -> Sequence[str]:
    """Draw the distances over the size of a network."""
    sizes = by_size(results)
    if not sizes:
        return []
    with figure(folder, "network-sizes", PAGE, 2.9, smoke=results.smoke) as axes:
        axes.axhline(0, color=PALE)
        axes.set_title(finding(sizes), loc="left", fontweight="bold")
        for place, what in enumerate(AGAINST):
            style: Any = {"color": COLORS["cdfl"], "marker": "os^"[place]}
            seen = [(size.parameters, size.trials[place]) for size in sizes if size.trials[place] is not None]
            if seen:
                heights = [100 * y for _, y in seen if y is not None]
                axes.plot(
                    [x for x, _ in seen],
                    heights,
                    ls=("-", "--")[place],
                    mfc="white",
                    label=f"{what}, validation",
                    **style,
                )
            tests = [(size.parameters * 1.15 ** (place - 1), test) for size in sizes if (test := size.tests[place])]
            if tests:
                means, bars = [100 * mean for _, (mean, _) in tests], [100 * half for _, (_, half) in tests]
                axes.errorbar(
                    [x for x, _ in tests], means, yerr=bars, ls="", capsize=1.5, label=f"{what}, test", **style
                )
        axes.set(
            xscale="log",
            xlabel="parameters of an expert",
            ylabel="points of accuracy that\nexperts are above one model",
        )
        axes.set_xticks([size.parameters for size in sizes], [f"{size.parameters:,}" for size in sizes])
        axes.minorticks_off()
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), title="one model of the", alignment="left")
    return ["network-sizes"]


def finding(sizes: Sequence[Size]) -> str:
    """Say what the distances on validation samples show."""
    same, larger = ([size.trials[place] for size in sizes] for place in (0, 1))
    if any(distance is None or distance <= 0 for distance in same):
        return "Experts against one model"
    ahead = [distance is not None and distance > 0 for distance in larger]
    also = "also" if all(ahead) else "larger experts also" if ahead[-1] else "not"
    return f"Experts beat one model of their size;\n{also} one of four times the size"


EXPERIMENT = Experiment(
    "network-sizes", __doc__ or "", report, draw, run_keys, trials=5, smoke_rows=("fashion-mnist-4",)
)
