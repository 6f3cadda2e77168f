"""The verdicts of docs/paper.md say what the committed result files say."""

import re
from collections.abc import Callable, Iterable
from statistics import fmean
from typing import NamedTuple

import pytest

from experiments import ablations, adaptation, estimation, over_time, overhead, preset_search, table1, theorem1
from experiments.harness import EVERY_ROW, Results
from experiments.harness.seed_comparison import count, grouped
from experiments.harness.table1_rows import FOLDER
from experiments.harness.tables import number

pytestmark = pytest.mark.slow

RESULTS = Results(FOLDER / "results")
FASHION, CIFAR = "fashion-mnist-4-ablation", "cifar-10-4"
LITTLE = 0.01


class Verdict(NamedTuple):
    """What a row of the table must say."""

    held: str
    phrases: list[str]  # with every number of the evidence, in order


def judged(held: Iterable[bool]) -> str:
    each = list(held)
    return "yes" if all(each) else "partly" if any(each) else "no"


def of(counts: tuple[int, int]) -> str:
    return f"{counts[0]} of {counts[1]}"


def printed_values() -> Verdict:
    found = preset_search.tried(RESULTS)
    printed = [one.worst for one in found if one.name.startswith("as printed")]
    taken = next(one.worst for one in found if one.name == preset_search.TAKEN)
    phrases = [f"{min(printed):.1f} or more", f"of {len(found)} readings is {found[0].worst:.1f} off"]
    return Verdict(judged(worst <= 2 for worst in printed), [*phrases, f"is {taken:.1f} off"])


def table_1() -> Verdict:
    near, better = table1.near(RESULTS), table1.better(RESULTS)
    beyond = [name for name, kind in near.items() if kind == "beyond"]
    assert all(name.split()[-1].startswith("+") for name in beyond)  # "the others are better"
    held = judged(kind == "within" for kind in near.values())
    return Verdict(held, [f"{of(count(near, 'within'))} figures", f"{of(count(better, 'above'))} are above"])


def _ran(outcomes: dict[str, str | None]) -> dict[str, str | None]:
    return {name: kind for name, kind in outcomes.items() if kind is not None}


def above_fedsoft() -> Verdict:
    orders = _ran(table1.orders(RESULTS, "fedsoft"))
    others = {name: kind for name, kind in orders.items() if kind != "above"}
    assert all(name.endswith("cluster") for name in others)
    kinds = grouped(others)
    phrases = [
        f"{of(count(orders, 'above'))} figures are above",
        f"{len(kinds['level'])} level",
        f"{len(kinds['below'])} below",
    ]
    return Verdict(judged(kind == "above" for kind in orders.values()), phrases)


def above_local() -> Verdict:
    orders = _ran(table1.orders(RESULTS, "local"))
    held = judged(kind == "above" for kind in orders.values())
    return Verdict(held, [f"{of(count(orders, 'above'))} figures are above"])


def digits() -> Verdict:
    clusters, replies = (
        table1.against(RESULTS, EVERY_ROW[-1], column, "paper-reading", "fedsoft") for column in ("cluster", "after")
    )
    held = judged([clusters == "above", replies != "above"])
    return Verdict(held, [f"clusters are {clusters}", f"replies are {replies}"])


def overtakes() -> Verdict:
    found = {row.scenario: over_time.overtakes(RESULTS.trials(row.scenario, "paper-reading")) for row in over_time.ROWS}
    few = sorted({found[f"fashion-mnist-{k}"] for k in (2, 3, 4, 6)})
    assert [found[f"cifar-10-{k}"] for k in (2, 3, 4, 6)] == [None] * 4
    mini = ", ".join(str(found[f"mini-imagenet-32px-{k}"] or "never") for k in (2, 3, 4, 6))
    phrases = [f"from session {' or '.join(map(str, few))} on", f"from session {found['digit-recognition']}."]
    held = judged(first is not None and first <= 5 for first in found.values())
    return Verdict(held, [*phrases, "CIFAR-10 † with several clusters: never", f"from session {mini}."])


def nearer_estimates() -> Verdict:
    paper, stand_ins = (estimation.nearer(RESULTS, "paper-reading", stand_ins=which) for which in (False, True))
    ours = estimation.nearer(RESULTS, "default", stand_ins=False)
    lower = sum(kind in ("below", "lower in one trial") for kind in stand_ins.values())
    phrases = [f"in {of(count(paper, 'below'))} rows", f"in {lower} of {len(stand_ins)} rows of †"]
    held = judged("below" in str(kind) for kind in [*paper.values(), *stand_ins.values()])
    return Verdict(held, [*phrases, f"in {of(count(ours, 'below'))} rows"])


def savings() -> Verdict:
    found = overhead.overheads(RESULTS)
    down, computed = ([getattr(one, name) for one in found] for name in ("download", "computation"))
    phrases = [f"{min(values):.2f} to {max(values):.2f} times the" for values in (down, computed)]
    return Verdict(judged(ratio > 1 for ratio in [*down, *computed]), phrases)


def proxy_sets() -> Verdict:
    fashion, cifar = (
        ablations.largest_change(RESULTS, name, "size of proxy set")["after"] for name in (FASHION, CIFAR)
    )
    phrases = [f"replies change by {number(fashion)}", f"CIFAR-10 †: by {number(cifar)}"]
    return Verdict(judged(change <= LITTLE for change in (fashion, cifar)), phrases)


def more_clients() -> Verdict:
    fashion, cifar = (ablations.largest_change(RESULTS, name, "number of clients") for name in (FASHION, CIFAR))
    first = f"clusters change by {number(fashion['cluster'])}, replies by {number(fashion['after'])}"
    second = f"CIFAR-10 †: by {number(cifar['cluster'])} and {number(cifar['after'])}"
    held = judged(change <= LITTLE for found in (fashion, cifar) for change in found.values())
    return Verdict(held, [first, second])


def _over_rho(scenario: str, column: str) -> list[float]:
    return [values[column] for values in ablations.accuracies(RESULTS, scenario)["rho"].values()]


def small_rho() -> Verdict:
    found = [_over_rho(scenario, "cluster") for scenario in (FASHION, CIFAR)]
    phrases = [
        f"{prefix}: {', '.join(map(number, values))}"
        for prefix, values in zip(("rho", "CIFAR-10 †"), found, strict=True)
    ]
    return Verdict(judged(values == sorted(values, reverse=True) for values in found), phrases)


def rho_before_the_upload() -> Verdict:
    found = _over_rho(FASHION, "before")
    held = judged(values == sorted(values) for values in (found, _over_rho(CIFAR, "before")))
    return Verdict(held, [f"rho: {', '.join(map(number, found))}"])


def theorem() -> Verdict:
    found = theorem1.measured(RESULTS)
    assert [one.rho for one in found] == list(theorem1.RHOS)
    short = min(one["needed_at_largest"] / one.rho for one in found)
    excess = min(one.excess for one in found)
    rising = ", ".join(f"{one.rho:g}" for one in found if one.fall < 0)
    phrases = [f"at least {excess:,.0f} times what Assumption 3", f"at least {short:.1f} times", f"with rho {rising}"]
    return Verdict(judged([excess <= 1, short <= 1]), phrases)


def _lost(scenario: str, preset: str, moment: str) -> float:
    return fmean(at["level"] - at[moment] for at in adaptation.at_jumps(RESULTS, scenario, preset))


RUNS = [
    ("digits-4-sudden", "default"),
    ("fashion-mnist-4-sudden", "default"),
    ("fashion-mnist-4-sudden", "paper-reading"),
]


def adapts() -> Verdict:
    after = [_lost(*run, "after") for run in RUNS]
    before = [number(_lost(*run, "before")) for run in RUNS]
    digits, fashion, reading = map(number, after)
    waits = [fmean(at["uploads"] for at in adaptation.at_jumps(RESULTS, *run)) for run in RUNS]
    assert waits[1:] == [1.0, 1.0]
    phrases = [f"{digits} (8x8 digits) and {fashion} (FashionMNIST)", f"{reading} with `paper-reading`"]
    return Verdict(
        judged(lost <= LITTLE for lost in after),
        [
            *phrases,
            f"{before[0]}, {before[1]} and {before[2]}",
            f"Uploads to recover: {waits[0]:.1f} (8x8 digits), 1.0 (FashionMNIST)",
        ],
    )


def adapts_better() -> Verdict:
    kinds = [
        {kind: len(names) for kind, names in grouped(adaptation.rivals(RESULTS, *run)).items()}
        for run in (("fashion-mnist-4-sudden", "default"), ("digits-4-sudden", "default"))
    ]
    fashion, digits = kinds
    assert "level" not in fashion
    phrases = [f"above {fashion['above']} rivals and below {fashion['below']}"]
    phrases += [f"8x8 digits: above {digits['above']}, level with {digits['level']}, below {digits['below']}"]
    return Verdict(judged("below" not in found for found in kinds), phrases)


def better_replies() -> Verdict:
    names = {
        "FedSoft-Async": "fedsoft",
        "FedBuff": "fedbuff",
        "FedAsync": "fedasync",
        "IFCA": "ifca",
        "Oracle": "oracle",
    }
    phrases, held = [], []
    for title, rival in names.items():
        found = {row.title: table1.against(RESULTS, row, "after", "default", rival) for row in table1.PICTURED}
        phrases.append(f"{title} {', '.join(f'{len(rows)} {kind}' for kind, rows in grouped(found).items())}")
        held += [kind == "above" for kind in found.values()]
    return Verdict(judged(held), phrases)


def time_models() -> Verdict:
    found = ablations.accuracies(RESULTS, FASHION)
    replies = [[one["after"] for one in found[name].values()] for name in ("time model", "time model, `default`")]
    ranges = [f"{number(min(values))} to {number(max(values))}" for values in replies]
    held = judged(max(values) - min(values) <= LITTLE for values in replies)
    return Verdict(held, [f"`paper-reading` {ranges[0]}", f"`default` {ranges[1]}"])


CHECKS: list[Callable[[], Verdict]] = [
    printed_values, table_1, above_fedsoft, above_local, digits, overtakes, nearer_estimates, savings, proxy_sets,
    more_clients, small_rho, rho_before_the_upload, theorem, adapts, adapts_better, better_replies, time_models,
]  # fmt: skip


def rows() -> list[list[str]]:
    page = (FOLDER.parent / "docs" / "paper.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if re.match(r"\| \d+ \|", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_row_has_a_check():
    assert [row[0] for row in rows()] == [str(place) for place in range(1, len(CHECKS) + 1)]


@pytest.mark.parametrize(
    ("row", "check"), list(zip(rows(), CHECKS, strict=False)), ids=lambda value: getattr(value, "__name__", "")
)
def test_a_verdict_is_that_of_the_results(row, check):
    _, claim, held, evidence, _ = row
    verdict = check()
    assert held == verdict.held, claim
    rest = evidence
    for phrase in verdict.phrases:
        before, found, after = rest.partition(phrase)
        assert found, f"{claim} expected {phrase!r} in {rest!r}"
        rest = before + after
    rest = rest.replace("CIFAR-10", "").replace("8x8", "").replace("Assumption 3", "")
    assert not re.search(r"\d", rest), f"{claim} has numbers that nothing checks: {rest!r}"
