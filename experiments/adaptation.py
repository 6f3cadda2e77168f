"""Adaptation: a client after the main cluster of its data jumps.

Claim: the paper's (abstract, section 6): rapid adaptation to new tasks. We take it to mean that one reply restores a
client's accuracy.
Settings: `default`, all algorithms; `paper-reading` on FashionMNIST, the paper's algorithms. Main clusters jump every 9
(FashionMNIST) or 5 (8x8 digits) uploads.
Cost: FashionMNIST, 4 minutes on one H200; digits, 7 minutes on two CPU cores.

    cdfl paper adaptation --rows digits-4-sudden
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from experiments.harness import Experiment, Results, RunKey, StoredRun
from experiments.harness.figure_style import COLORS, GREY, LABELS, MARKERS, PAGE, WORDS, figure, legend, means
from experiments.harness.seed_comparison import OUTCOMES, RULE, compare, grouped
from experiments.harness.tables import NOTHING, number, provenance, spread, table

SCENARIOS = {"digits-4-sudden": "8x8 digits (4)", "fashion-mnist-4-sudden": "FashionMNIST (4)"}
ALGORITHMS = ("cdfl", "fedsoft", "ifca", "fedasync", "fedbuff", "local", "local-keep", "oracle")
PRESETS: dict[str, Sequence[str]] = {"default": ALGORITHMS, "paper-reading": ["cdfl", "fedsoft", "local"]}
WITHIN = 0.01  # distance to the level before the jump that counts as recovered
LEVEL = 3  # uploads before the jump whose replies make the level
NOTE = (
    "Accuracy on the client's new distribution, at its first upload after the jump. *Level before*: the "
    f"{LEVEL} replies before the jump. *Uploads to recover*: until the mean reply is within {number(WITHIN)} of that "
    "level; >: not in every trial.\n"
)


def run_keys(trials: int) -> list[RunKey]:
    """Return every algorithm on both scenarios; the paper has no values for the digits."""
    return [
        RunKey(scenario, preset, algorithm, seed)
        for scenario in SCENARIOS
        for preset, algorithms in PRESETS.items()
        if preset == "default" or scenario != "digits-4-sudden"
        for algorithm in algorithms
        for seed in range(trials)
    ]


def jumps(kept: StoredRun) -> list[int]:
    """Return the uploads of a client at which main clusters jumped, with enough uploads around them."""
    every: int = kept.record["config"]["scenario"]["drift"]["every"]
    curves = kept.summary["updates"]
    enough = [number for number, clients in enumerate(curves["clients"]) if 2 * clients >= curves["clients"][0]]
    return list(range(every, enough[-1] - every // 2 + 2, every))


def around(kept: StoredRun) -> dict[str, Any]:
    """Return what happened at the jumps of one run, mean over them."""
    curves = {name: np.array(kept.summary["updates"][name]) for name in ("held", "before", "after")}
    every = kept.record["config"]["scenario"]["drift"]["every"]
    found = []
    for jump in jumps(kept):
        level = curves["after"][max(0, jump - LEVEL) : jump].mean()
        back = np.flatnonzero(curves["after"][jump : jump + every] >= level - WITHIN)
        at: dict[str, Any] = {name: float(curve[jump]) for name, curve in curves.items()}
        found.append(at | {"level": float(level), "uploads": float(back[0] + 1) if len(back) else None})
    if not found:
        return {}
    mean: dict[str, Any] = {name: fmean(jump[name] for jump in found) for name in ("level", "held", "before", "after")}
    waits = [jump["uploads"] for jump in found]
    return mean | {"uploads": None if None in waits else fmean(waits)}


def at_jumps(results: Results, scenario: str, preset: str, algorithm: str = "cdfl") -> list[dict[str, Any]]:
    """Return what happened at the jumps of every trial."""
    return [at for kept in results.trials(scenario, preset, algorithm) if (at := around(kept))]


def report(results: Results) -> str:
    """Return what every algorithm gives a client after a jump, and CDFL's reply against the others'."""
    parts, used, lines = [], [], []
    header = ["algorithm", "trials", "level before", WORDS["held"], WORDS["before"], WORDS["after"]]
    header += ["lost to the level", "uploads to recover"]
    for scenario, title in SCENARIOS.items():
        for preset, algorithms in PRESETS.items():
            there = {name: found for name in algorithms if (found := at_jumps(results, scenario, preset, name))}
            used += [kept for name in there for kept in results.trials(scenario, preset, name)]
            rows = [[LABELS[name], str(len(found)), *_numbers(found)] for name, found in there.items()]
            if rows:
                parts += [f"**{title}**, `{preset}`\n", table(header, rows)]
            groups = grouped({LABELS[name]: kind for name, kind in rivals(results, scenario, preset).items()})
            if groups:
                lines.append([f"{title}, `{preset}`", *(", ".join(groups.get(kind, [])) for kind in OUTCOMES)])
    judged = [table(["CDFL's reply after the jump, against", *OUTCOMES], lines), RULE] if lines else []
    return "\n".join([*parts, NOTE, *([] if results.smoke else judged), provenance(used)])


def rivals(results: Results, scenario: str, preset: str) -> dict[str, str | None]:
    """Return the outcome of CDFL's reply right after the jump against every other algorithm."""
    ours = results.trials(scenario, preset)
    return {
        name: compare(ours, results.trials(scenario, preset, name), lambda kept: around(kept).get("after"))
        for name in PRESETS[preset]
        if name != "cdfl"
    }


def _numbers(found: list[dict[str, Any]]) -> list[str]:
    columns = [spread([at[name] for at in found]) for name in ("level", "held", "before", "after")]
    lost = spread([at["level"] - at["after"] for at in found])
    waits = [at["uploads"] for at in found if at["uploads"] is not None]
    if len(waits) < len(found):
        recovered = f"> ({len(waits)} of {len(found)})" if waits else NOTHING
    else:
        recovered = f"{fmean(waits):.1f}" + (f" ± {stdev(waits):.1f}" if len(waits) > 1 else "")
    return [*columns, lost, recovered]


MOMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "level": ("level before the jump", {"marker": "|", "ms": 8}),
    "held": (WORDS["held"], {"marker": "x"}),
    "before": (WORDS["before"], MARKERS["before"]),
    "after": (WORDS["after"], MARKERS["after"]),
}


def draw(results: Results, folder: Path) -> list[str]:
    """Draw a client's accuracy before the jump and in three moments after it, for every algorithm."""
    there = [
        (scenario, preset)
        for preset in PRESETS
        for scenario in SCENARIOS
        if any(map(jumps, results.trials(scenario, preset)))
    ]
    if not there:
        return []
    shown: Any = {"smoke": results.smoke, "ncols": len(there), "squeeze": False, "sharey": True}
    with figure(folder, "adaptation", PAGE, 3.1, **shown) as axes:
        for own, (scenario, preset) in zip(axes[0], there, strict=True):
            draw_panel(own, results, scenario, preset)
            several = len(results.trials(scenario, preset)) > 1
            own.set(title=f"{SCENARIOS[scenario]}, {preset}", xlabel="accuracy ± SD" if several else "accuracy")
        axes[0][0].set_yticks(range(len(ALGORITHMS)), [LABELS[algorithm] for algorithm in ALGORITHMS])
        axes[0][0].set_ylim(len(ALGORITHMS) - 0.5, -0.5)
        legend(axes[0][0], ncols=4)
    return ["adaptation"]


def draw_panel(axes: Any, results: Results, scenario: str, preset: str) -> None:
    """Draw a line for each algorithm that was run."""
    for line, algorithm in enumerate(ALGORITHMS):
        found = at_jumps(results, scenario, preset, algorithm)
        for place, (moment, (label, style)) in enumerate(MOMENTS.items()):
            values = [[at[moment] for at in found]]
            where = [line + 0.16 * (place - 1.5)]
            means(axes, where, values, across=True, ls="", color=COLORS[algorithm], label=label, **style)
        axes.axhline(line + 0.5, color=GREY, lw=0.4)


EXPERIMENT = Experiment("adaptation", __doc__, report, draw, run_keys, trials=5)
