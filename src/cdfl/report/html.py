"""A report: one HTML file that needs nothing else, and its plots as files."""

import base64
import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from cdfl.report import style
from cdfl.report.figures import all_figures
from cdfl.report.run_warnings import findings
from cdfl.run_events import score_text
from cdfl.run_folder import RunFolder, versions
from cdfl.run_series import RunSeries, groups

CAPTIONS = {
    "story": "1 and 2: one client, the true mixture of its data and the estimate, at each upload. 3: three models of "
    "every client, tested on held-out data like its newest.",
    "comparison": "Left: the new models of each algorithm on held-out data, over the run. Right: every score at the "
    "end; bars are the standard deviation (SD) over seeds.",
    "mixtures": "Left: for each cluster that truly has the largest share (row), which cluster has it in the estimate. "
    "Middle: the estimates of shares that are truly so large; the median, and the half of them around it. The estimate "
    "of cdfl gives no cluster more than the setting main_share, by default 65 %. Right: the error of the mixture (KL).",
    "adaptation": "Scores by the number of uploads since another cluster has the largest share of a client's data.",
    "clusters": "Each cluster's model on held-out data of its cluster, over time; and at the end each model on the "
    "server's samples of every cluster, and how far the models are apart.",
    "uploads": "How old uploads were, what happened to them, and how many bytes were sent.",
}
LEGEND = (
    "Each time that a client uploads, three models are tested on held-out data like its newest. Old model: the last "
    "reply (held in scores.csv and in events). Own training: what the client trained from it and uploads (before). New "
    "model: the reply (after; with experts and their router: served). All are means over the last upload of every "
    "client. Clusters: each cluster's model on its own cluster. Mixture error (KL): from the true to the estimated "
    "mixture, 0 is exact."
)
CSS = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1f23; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; border-bottom: 1px solid #d9dde1; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } caption { text-align: left; color: #565e66; }
th, td { padding: .25rem .45rem; border-bottom: 1px solid #d9dde1; text-align: right; white-space: nowrap; }
th, td { font-size: .9rem; } thead th { white-space: normal; vertical-align: bottom; max-width: 8rem; }
th:first-child { text-align: left; }
td.words { text-align: left; white-space: normal; overflow-wrap: anywhere; }
figure { margin: 1rem 0; } figure img { max-width: 100%; }
figcaption, .quiet { color: #565e66; font-size: .92rem; } .scroll { overflow-x: auto; }
@media print { h2 { break-after: avoid; } figure { break-inside: avoid; } }
"""


def write_report(
    runs: Mapping[str, RunFolder],
    read: Sequence[RunSeries],
    out: Path,
    client: int | None = None,
    progress: Callable[[int, int], Any] = lambda done, total: None,
) -> list[Path]:
    """Write report.html, the plots as PNG and SVG, and scores.csv into a folder; return the files."""
    out.mkdir(parents=True, exist_ok=True)
    pictures = all_figures(read, client)
    files, images = [], {}
    for done, (name, figure) in enumerate(pictures.items()):
        progress(done, len(pictures))
        for suffix in (".png", ".svg"):
            style.save(figure, out / f"{name}{suffix}")
            files.append(out / f"{name}{suffix}")
        images[name] = (out / f"{name}.svg").read_bytes()
    progress(len(pictures), len(pictures))
    table = score_table(read)
    (out / "scores.csv").write_text(_csv(table), encoding="utf-8")
    (out / "report.html").write_text(_page(runs, read, table, images), encoding="utf-8")
    return [out / "report.html", out / "scores.csv", *files]


def score_table(runs: Sequence[RunSeries]) -> list[list[str]]:
    """Return one row an algorithm and metric, after a row of titles: means over seeds, with their deviation."""
    names = [name for name in style.SCORES if any(name in run.scores for run in runs)]
    rows = [["algorithm", "metric", "seeds", *names, "clusters", "KL", "MB up", "MB down"]]
    for metric in [name for name in runs[0].metrics if all(name in run.metrics for run in runs)]:
        for algorithm, own in groups([run.by(metric) for run in runs]).items():
            cells = [_spread([run.last(run.scores[name]) for run in own if name in run.scores]) for name in names]
            cells.append(_spread([float(run.cluster_scores[-1].mean()) for run in own]))
            cells.append(_spread([run.last(run.divergence) for run in own if run.mixtures is not None]))
            cells += [f"{np.mean([values(run) for run in own]) / 1e6:.1f}" for values in (_sent_up, _sent_down)]
            rows.append([algorithm, own[0].metric_label, str(len(own)), *cells])
    return rows


def _in_words(table: list[list[str]]) -> list[list[str]]:
    """Return the table with the scores' names as the pictures have them."""
    words = style.SCORE_WORDS | {"KL": "mixture error (KL)"}
    return [[words.get(name, name) for name in table[0]], *table[1:]]


def _sent_up(run: RunSeries) -> float:
    return float(run.bytes_up.sum())


def _sent_down(run: RunSeries) -> float:
    return float(run.bytes_down.sum())


def _spread(values: Sequence[float]) -> str:
    mean = float(np.mean(values)) if values else None
    return score_text(mean, float(np.std(values, ddof=1)) if len(values) > 1 else None)


def _page(
    runs: Mapping[str, RunFolder], read: Sequence[RunSeries], table: list[list[str]], images: Mapping[str, bytes]
) -> str:
    first = read[0]
    title = f"{', '.join(groups(read))} on {first.started.scenario}"
    odd = findings(read)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="quiet">{_described(read)}</p>',
        "<h2>Scores</h2>",
        _table(_in_words(table), "On held-out data; mean ± standard deviation over seeds"),
        f'<p class="quiet">{LEGEND}</p>',
        "<h2>What was odd</h2>",
        "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in odd) + "</ul>" if odd else "<p>Nothing.</p>",
    ]
    for name, image in images.items():
        data = base64.b64encode(image).decode()
        parts.append(
            f'<figure><img src="data:image/svg+xml;base64,{data}" alt="{escape(CAPTIONS[name])}">'
            f"<figcaption>{escape(CAPTIONS[name])} Files: {name}.png, {name}.svg.</figcaption></figure>"
        )
    parts += ["<h2>What was run</h2>", *_settings(runs)]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{CSS}</style></head>\n'
        f"<body>\n{body}\n</body></html>\n"
    )


def _described(read: Sequence[RunSeries]) -> str:
    first = read[0].started
    seeds = sorted({run.started.seed for run in read})
    kinds = ", ".join(read[0].clusters)
    return escape(
        f"{first.num_clients} clients, {first.num_uploads} uploads, {first.num_clusters} clusters ({kinds}), models of "
        f"{first.model_bytes / 1e6:.3g} MB, seeds {', '.join(map(str, seeds))}; cdfl {versions()['cdfl']}."
    )


def _settings(runs: Mapping[str, RunFolder]) -> Iterable[str]:
    """Yield the settings: those of the first run, then what differs in the others."""
    configs = {name: dict(_flat(run.config())) for name, run in runs.items() if (run.path / "config.json").exists()}
    if not configs:
        yield "<p>The folders hold no config.json.</p>"
        return
    (first, common), *others = configs.items()
    whole = _table([["setting", first], *map(list, common.items())])
    yield f"<details><summary>All settings of {escape(first)}</summary>{whole}</details>"
    changed = [[name, *pair] for name, own in others for pair in own.items() if common.get(pair[0]) != pair[1]]
    if changed:
        yield _table([["run", "setting", "value"], *changed], "What differs in the other runs")
    made = runs[first].path / "versions.json"
    if made.exists():
        found = json.loads(made.read_text(encoding="utf-8"))
        yield f'<p class="quiet">{escape(", ".join(f"{name} {value}" for name, value in found.items()))}</p>'


def _flat(values: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    if isinstance(values, dict) and values:
        for name, value in values.items():
            yield from _flat(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, json.dumps(values, default=str)


def _table(rows: Sequence[Sequence[str]], caption: str = "") -> str:
    head, *body = rows
    words = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    lines = [
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f'<td class="{"words" if len(cell) > 16 else ""}">{escape(cell)}</td>' for cell in row[1:])
        + "</tr>"
        for row in body
    ]
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    inside = f"{title}<thead><tr>{words}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="scroll"><table>{inside}</table></div>'


def _csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
