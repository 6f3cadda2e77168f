"""Write the report of an experiment beside its results, and `experiments/README.md` from all results."""

import re
from collections.abc import Sequence
from pathlib import Path

from experiments.harness import Experiment, Results
from experiments.harness.experiment import Tell
from experiments.harness.seed_comparison import RULE
from experiments.harness.table1_rows import FOLDER
from experiments.harness.tables import earlier
from experiments.registry import EXPERIMENTS

INTRODUCTION = f"""\
# The paper, table by table

Repeat a table or figure of the paper: `cdfl paper NAME` (or `python -m experiments NAME`) writes JSON, tables and
pictures to `runs/paper` or `--out`, and skips stored runs. `--rows`, `--presets`, `--algorithms` and `--trials` choose
a part; `--smoke` is a quick check; `cdfl paper list` shows all rows, also those of the paper's own data.

`cdfl paper readme` writes this page from [results](results). [docs/paper.md](../docs/paper.md) judges the claims and
explains the presets.

Accuracies are held out. *before*: own training, the model that a client uploads; *after*: the new model, the reply, on
the same data; *cluster*: of each cluster model on its own cluster. † marks a stand-in for the paper's data.

{RULE}"""
SMOKE = "**Smoke runs on 8x8 digits, whatever the rows are called: they show that the code works, nothing else.**\n\n"


def write_report(experiment: Experiment, results: Results, tell: Tell = print) -> None:
    """Write tables and pictures of an experiment beside its results, if there are any."""
    if not any(results.folder.glob("*.json")):
        return
    path = results.folder / f"{experiment.name}.md"
    path.write_text((SMOKE if results.smoke else "") + experiment.report(results), encoding="utf-8")
    tell(f"wrote {path}")
    draw(experiment, results, tell)


def draw(experiment: Experiment, results: Results, tell: Tell = print) -> None:
    """Draw the pictures of an experiment beside its results."""
    try:
        drawn = experiment.draw(results, results.folder)
    except ModuleNotFoundError as error:
        tell(f"no pictures: {error}; install what they need with: pip install 'cdfl[sim]'")
        return
    for name in drawn:
        tell(f"wrote {results.folder / name}.png and .svg")


def readme(results: Results) -> str:
    """Return the text of `experiments/README.md`."""
    return "\n".join([INTRODUCTION, *(_section(experiment, results) for experiment in EXPERIMENTS.values())])


def write_readme(tell: Tell, add: Sequence[Path] = (), folder: Path = FOLDER) -> None:
    """Copy the results in other folders to `results`, then draw every picture and write the README."""
    results = Results(folder / "results")
    results.expect(smoke=False)
    for other in add:
        if not any(other.glob("*.json")):
            raise ValueError(f"there are no results in {other}; expected files such as fashion-mnist-4.json")
        more = Results(other)
        more.expect(smoke=False)
        tell(_taken(more, results))
        results.take(more)
    for experiment in EXPERIMENTS.values():
        draw(experiment, results, tell)
    (folder / "README.md").write_text(readme(results), encoding="utf-8")
    tell(f"wrote {folder / 'README.md'}")


def _taken(more: Results, here: Results) -> str:
    keys = [kept.key for kept in more]
    replaced = sum(here.find(key) is not None for key in keys)
    rows = ", ".join(dict.fromkeys(key.scenario for key in keys)) or "no rows"
    return f"from {more.folder}: {len(keys)} runs of {rows}; {replaced} of them replace runs that were here"


def _section(experiment: Experiment, results: Results) -> str:
    about = experiment.about.strip().partition("\n")[2].strip().split("\n\n")[0]  # without title and command
    pictures = [f"![{path.stem}](results/{path.name})\n" for path in _pictures(experiment, results.folder)]
    head = [
        f"## {experiment.title}\n",
        f"`cdfl paper {experiment.name}` ([code]({experiment.name.replace('-', '_')}.py))\n",
    ]
    kept = [found for key in experiment.run_keys(experiment.trials) if (found := results.find(key)) is not None]
    facts = [*(f"- {line}" for line in _facts(about)), ""]
    return "\n".join([*head, *facts, experiment.report(results).replace(f"\n{RULE}", ""), *earlier(kept), *pictures])


def _facts(about: str) -> list[str]:
    """Return the parts that begin with Claim: and Settings:, each on one line; tables below say what a run cost."""
    text = " ".join(about.split()).partition("Cost: ")[0]
    return [part.strip() for part in re.split(r"(?=\b(?:Claim|Settings): )", text) if part.strip()]


def _pictures(experiment: Experiment, folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{experiment.name}.png")) + sorted(folder.glob(f"{experiment.name}-*.png"))
