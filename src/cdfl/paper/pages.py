"""Pages that are written from results: a report beside them, `experiments/README.md`, and blocks in `docs/paper.md`."""

import re
from collections.abc import Sequence
from pathlib import Path

from cdfl.paper.experiment import Experiment, list_experiments
from cdfl.paper.folder import experiments_folder
from cdfl.paper.results import Results
from cdfl.paper.run import Tell
from cdfl.paper.tables import earlier

INTRODUCTION = """\
# The paper, table by table

Written by `cdfl paper readme` from the files in [results](results); do not edit. What held up and what did not, in ten
sentences: [docs/paper.md](../docs/paper.md).

Each result of the paper is one file here, with its claim, settings, machine and cost in its header.
`cdfl paper NAME` runs it, or the rest of it if it was interrupted, and writes JSON, tables and pictures into
`runs/paper`, or where `--out` says: a copy of `results` there, and only what is not in it is run. `--rows`,
`--presets`, `--algorithms` and `--trials` run a part of it; `--smoke` shows in seconds that it works. Where only torch,
numpy and safetensors are, `python -m cdfl.paper NAME` does the same. Algorithms have short names there: `fedsoft` is
FedSoft-Async, `local-restart` is Local, which trains anew, `local` is Local (keeps). Who has CIFAR-100 and all of
MiniImageNet can run the paper's own rows of Table 1, as in `cdfl paper list`.

Three presets, no more: `paper` has the printed values literally, with uniform uploads; `paper-reading` is one reading
of what is not printed, found on FashionMNIST (4) alone; `default` is ours, with settings of their own for digit
recognition and MiniImageNet. Accuracies are on data that neither client nor server trained on. *Before*: the model a
client uploads; *after*: the reply, on the same data; *cluster*: the cluster models, each on its own cluster.
"""
SMOKE = (
    "**Smoke runs, on 8x8 digits whatever a row is called: they show that the code works, and their figures mean "
    "nothing.**\n\n"
)
BLOCK = re.compile(r"(<!-- (\w+): written by `cdfl paper readme` -->\n).*?(<!-- \w+: end -->)", re.DOTALL)


def write_report(experiment: Experiment, results: Results, tell: Tell = print) -> None:
    """Its tables as Markdown and its pictures as PNG and SVG, beside its results, if there are any."""
    if not any(results.folder.glob("*.json")):
        return
    path = results.folder / f"{experiment.name}.md"
    path.write_text((SMOKE if results.smoke else "") + experiment.report(results), encoding="utf-8")
    tell(f"wrote {path}")
    draw(experiment, results, tell)


def draw(experiment: Experiment, results: Results, tell: Tell = print) -> None:
    """Its pictures, beside its results."""
    try:
        drawn = experiment.draw(results, results.folder)
    except ModuleNotFoundError as error:
        tell(f"no pictures: {error}; they need what comes with: pip install 'cdfl[sim]'")
        return
    for name in drawn:
        tell(f"wrote {results.folder / name}.png and .svg")


def readme(results: Results) -> str:
    """The text of `experiments/README.md`."""
    return "\n".join([INTRODUCTION, *(_section(experiment, results) for experiment in list_experiments())])


def with_blocks(page: str, results: Results) -> str:
    """A page with its blocks written anew: each is what an experiment says in a few sentences."""
    found = {experiment.name: experiment for experiment in list_experiments()}

    def block(match: re.Match[str]) -> str:
        experiment = found[match[2]]
        return match[1] + "\n".join([experiment.verdict(results), *_earlier(experiment, results)]) + match[3]

    return BLOCK.sub(block, page)


def write_pages(tell: Tell, add: Sequence[Path] = ()) -> None:
    """Draw every picture and write both pages, with the results in other folders added first."""
    folder = experiments_folder()
    results = Results(folder / "results")
    results.expect(smoke=False)
    for other in add:
        if not any(other.glob("*.json")):
            raise ValueError(f"there are no results in {other}; expected files such as fashion-mnist-4.json")
        more = Results(other)
        more.expect(smoke=False)
        tell(_taken(more, results))
        results.take(more)
    for experiment in list_experiments():
        draw(experiment, results, tell)
    (folder / "README.md").write_text(readme(results), encoding="utf-8")
    page = folder.parent / "docs" / "paper.md"
    page.write_text(with_blocks(page.read_text(encoding="utf-8"), results), encoding="utf-8")
    tell(f"wrote {folder / 'README.md'} and {page}")


def _taken(more: Results, here: Results) -> str:
    """What comes from another folder, and how much of it takes the place of something."""
    cells = [kept.cell for kept in more]
    replaced = sum(here.find(cell) is not None for cell in cells)
    rows = ", ".join(dict.fromkeys(cell.scenario for cell in cells)) or "no rows"
    return f"from {more.folder}: {len(cells)} runs of {rows}, in place of {replaced} that were here"


def _section(experiment: Experiment, results: Results) -> str:
    head, _, rest = experiment.about.strip().partition("\n")
    about = rest.strip().split("\n\n")[0]  # less the command, which is the heading
    pictures = [f"![{path.stem}](results/{path.name})\n" for path in _pictures(experiment, results.folder)]
    parts = [
        f"## {head.rstrip('.')}\n",
        f"`cdfl paper {experiment.name}` ([{experiment.name}.py]({experiment.name}.py))\n",
    ]
    parts += [*(f"- {line}" for line in _sentences(about)), ""]
    return "\n".join([*parts, experiment.report(results), *_earlier(experiment, results), *pictures])


def _earlier(experiment: Experiment, results: Results) -> list[str]:
    """A paragraph about what has to be run again, if anything has."""
    cells = experiment.cells(experiment.trials)
    line = earlier(kept for cell in cells if (kept := results.find(cell)) is not None)
    return [line] if line else []


def _sentences(about: str) -> list[str]:
    """The parts of a header that begin with Claim:, Settings:, Machine: and Cost:, each on one line."""
    text = " ".join(about.split())
    return [part.strip() for part in re.split(r"(?=\b(?:Claim|Settings|Machine|Cost): )", text) if part.strip()]


def _pictures(experiment: Experiment, folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{experiment.name}.png")) + sorted(folder.glob(f"{experiment.name}-*.png"))
