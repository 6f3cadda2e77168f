"""Adaptation: what a client goes through when the main cluster of its data jumps.

Claim: the paper's (abstract, section 6) is rapid adaptation to new tasks; as we read it, one reply brings a client back
to where it was, and alone it takes longer. It has no figure of it, and does not ask whether rivals do as well.
Settings: `default`, all algorithms; `paper-reading` on FashionMNIST for those of Table 1. Main clusters jump every 9
(FashionMNIST) or 5 (8x8 digits) uploads of a client. With `paper-reading` clients are there for five uploads at a time:
jumps fall into these, not on a return, after which replies also hold what clusters learned meanwhile.
Machine: one H200 for FashionMNIST, two CPU cores for the digits; seconds stand beside the results. Cost: 55 runs of
2,000 uploads, under four minutes with six processes side by side; 40 of 600, about seven minutes.

    cdfl paper adaptation --rows digits-4-sudden
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from cdfl.algorithms import ALGORITHMS
from cdfl.paper import Cell, Kept, Results
from cdfl.paper.compare import OUTCOMES, RULE, compare, grouped
from cdfl.paper.figures import COLORS, GREY, LABELS, MARKERS, PAGE, figure, legend, means
from cdfl.paper.rows import LOCAL
from cdfl.paper.tables import NOTHING, counted, number, provenance, spread, table

NUMBER, TRIALS = 7, 5
SCENARIOS = {"digits-4-sudden": "8x8 digits (4)", "fashion-mnist-4-sudden": "FashionMNIST (4)"}
PRESETS = {"default": list(ALGORITHMS), "paper-reading": ["cdfl", "fedsoft", LOCAL]}
NAMES = LABELS | {"local": "Local (keeps)"}  # in lists, a comma is one too many
THAN = {"level": "level with"} | {kind: f"{kind} than" for kind in OUTCOMES if "trial" in kind}
WITHIN = 0.01  # of the level before the jump: recovered
LEVEL = 3  # uploads whose replies make the level


def cells(trials: int) -> list[Cell]:
    """Every algorithm on both; the paper has no values for the digits."""
    return [
        Cell(scenario, preset, algorithm, seed)
        for scenario in SCENARIOS
        for preset, algorithms in PRESETS.items()
        if preset == "default" or scenario != "digits-4-sudden"
        for algorithm in algorithms
        for seed in range(trials)
    ]


def jumps(kept: Kept) -> list[int]:
    """The client uploads at which main clusters jumped, with enough uploads around them."""
    every: int = kept.record["config"]["scenario"]["drift"]["every"]
    curves = kept.digest["updates"]
    enough = [number for number, clients in enumerate(curves["clients"]) if 2 * clients >= curves["clients"][0]]
    return list(range(every, enough[-1] - every // 2 + 2, every))


def around(kept: Kept) -> dict[str, Any]:
    """What happened at the jumps of one run, on average over them."""
    curves = {name: np.array(kept.digest["updates"][name]) for name in ("held", "before", "after")}
    every = kept.record["config"]["scenario"]["drift"]["every"]
    found = []
    for jump in jumps(kept):
        level = curves["after"][max(0, jump - LEVEL) : jump].mean()
        back = np.flatnonzero(curves["after"][jump : jump + every] >= level - WITHIN)
        at = {name: float(curve[jump]) for name, curve in curves.items()}
        found.append(at | {"level": float(level), "uploads": float(back[0] + 1) if len(back) else None})
    if not found:
        return {}
    mean: dict[str, Any] = {name: fmean(jump[name] for jump in found) for name in ("level", "held", "before", "after")}
    waits = [jump["uploads"] for jump in found]
    return mean | {"uploads": None if None in waits else fmean(waits)}


def report(results: Results) -> str:
    """What every algorithm gives a client whose data have jumped."""
    parts, used = [], []
    for scenario, title in SCENARIOS.items():
        for preset, algorithms in PRESETS.items():
            lines = []
            for algorithm in algorithms:
                trials = results.trials(scenario, preset, algorithm)
                found = [at for kept in trials if (at := around(kept))]
                if found:
                    used += trials
                    lines.append([NAMES[algorithm], str(len(found)), *_numbers(found)])
            if lines:
                header = ["algorithm", "trials", "level before", "old model, new data", "after local training",
                          "after the reply", "lost to the level", "uploads to recover"]  # fmt: skip
                parts += [f"**{title}**, `{preset}`\n", table(header, lines)]
    words = (
        f"Accuracy on data like the client's new ones. *Level before*: replies of the {LEVEL} uploads before the jump. "
    )
    words += (
        f"*Uploads to recover*: until the mean reply is within {number(WITHIN)} of that level; > : not in every trial "
    )
    words += "before the next jump.\n"
    told = [] if results.smoke else [verdict(results), RULE]
    return "\n".join([*parts, words, *told, provenance(used)])


def verdict(results: Results) -> str:
    """What the jump costs, what wins it back, whose replies are better right after it, and who is slow to recover."""
    lines = []
    for scenario, title in SCENARIOS.items():
        for preset, algorithms in PRESETS.items():
            there = {name: trials for name in algorithms if (trials := results.trials(scenario, preset, name))}
            ours = [at for kept in there.get("cdfl", []) if (at := around(kept))]
            if ours:
                lines.append(
                    f"- {title}, `{preset}` ({counted(len(ours), 'trial')}): {_costs(ours)}; {_order(there)}\n"
                )
    return "".join(lines) or "Adaptation has not been run yet.\n"


def _costs(ours: list[dict[str, Any]]) -> str:
    lost, trained, replied = (
        number(fmean(at["level"] - at[name] for at in ours)) for name in ("held", "before", "after")
    )
    return (
        f"a jump costs CDFL's old model {lost}; {trained} are missing after local training, {replied} after the reply"
    )


def _order(there: Mapping[str, list[Kept]]) -> str:
    """CDFL's reply right after the jump against the others, and who needs more than one upload."""
    rivals = {
        NAMES[name]: compare(there["cdfl"], trials, lambda kept: around(kept).get("after"))
        for name, trials in there.items()
        if name != "cdfl"
    }
    told = [f"{THAN.get(kind, kind)} {', '.join(names)}" for kind, names in grouped(rivals).items()]
    waits = {NAMES[name]: [around(kept).get("uploads") for kept in trials] for name, trials in there.items()}
    slow = [
        f"{label} {'-' if None in found else f'{fmean(found):.1f}'}"
        for label, found in waits.items()
        if None in found or fmean(found) > 1
    ]
    reply = f"that reply is {'; '.join(told)}; " if told else ""
    return f"{reply}more than one upload to recover: {', '.join(slow) or 'nobody'}"


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
    "held": ("old model, new data", {"marker": "x"}),
    "before": ("after local training", MARKERS["before"]),
    "after": ("after the reply", MARKERS["after"]),
}


def draw(results: Results, folder: Path) -> list[str]:
    """What a client has before the jump and in the three moments after it, of every algorithm that was run."""
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
            _panel(own, results, scenario, preset)
            several = len(results.trials(scenario, preset)) > 1
            own.set(title=f"{SCENARIOS[scenario]}, {preset}", xlabel="accuracy ± SD" if several else "accuracy")
        axes[0][0].set_yticks(range(len(ALGORITHMS)), [NAMES[algorithm] for algorithm in ALGORITHMS])
        axes[0][0].set_ylim(len(ALGORITHMS) - 0.5, -0.5)
        legend(axes[0][0], ncols=4)
    return ["adaptation"]


def _panel(axes, results: Results, scenario: str, preset: str) -> None:
    """A line for each algorithm, as in the tables; none where it was not run."""
    for line, algorithm in enumerate(ALGORITHMS):
        found = [at for kept in results.trials(scenario, preset, algorithm) if (at := around(kept))]
        for place, (moment, (label, style)) in enumerate(MOMENTS.items()):
            values = [[at[moment] for at in found]]
            where = [line + 0.16 * (place - 1.5)]
            means(axes, where, values, across=True, ls="", color=COLORS[algorithm], label=label, **style)
        axes.axhline(line + 0.5, color=GREY, lw=0.4)
