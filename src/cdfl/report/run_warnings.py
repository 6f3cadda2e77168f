"""What is odd about runs, one sentence each: the part of a report to read first."""

from collections.abc import Sequence

import numpy as np

from cdfl.run_events import score_text
from cdfl.run_series import RunSeries, groups

MANY_REJECTED = 0.05
MANY_STALE = 0.2


def findings(runs: Sequence[RunSeries]) -> list[str]:
    """Return one sentence for each odd thing; the names of its runs are in front where there are several."""
    odd: dict[str, list[str]] = {}  # sentence -> runs
    for run in runs:
        for sentence in _of_run(run):
            odd.setdefault(sentence, []).append(run.name)
    found = [f"{', '.join(names)}: {sentence}" if len(runs) > 1 else sentence for sentence, names in odd.items()]
    for name, own in groups(runs).items():
        found += _of_seeds(name, own)
    return found


def _of_run(run: RunSeries) -> list[str]:
    found = [*run.notes, *run.warnings]
    if run.finished is None:
        found.append(f"The run is not finished: {run.num_uploads} of {run.started.num_uploads} uploads are there.")
    elif run.finished.shortfall:
        found.append(run.finished.shortfall)
    if run.num_diverged:
        found.append(f"{run.num_diverged} trainings diverged and were refused; use a smaller learning_rate.")
    shares = {name: run.outcomes.count(name) / run.num_uploads for name in ("deprecated", "rejected")}
    if shares["deprecated"] > MANY_STALE:
        found.append(f"{shares['deprecated']:.0%} of the uploads were too stale to count; raise max_staleness.")
    if shares["rejected"] > MANY_REJECTED:
        found.append(f"{shares['rejected']:.0%} of the uploads were rejected by the defence; `cdfl watch` shows whose.")
    better = 1 if run.higher_is_better else -1
    if better * (run.last(run.reply) - run.last(run.scores["before"])) < 0:
        found.append("New models are worse than own training: federation does not pay off here.")
    elif better * (run.last(run.reply) - run.last(run.scores["held"])) < 0:
        found.append("New models are worse than old ones.")
    return found + _of_clusters(run, better)


def _of_clusters(run: RunSeries, better: int) -> list[str]:
    found = []
    for cluster, name in enumerate(run.clusters):
        if better * (run.cluster_scores[-1, cluster] - run.cluster_scores[0, cluster]) < 0:
            found.append(
                f"The model of cluster {name} is worse at the end ({score_text(run.cluster_scores[-1, cluster])}) than "
                f"at the start ({score_text(run.cluster_scores[0, cluster])})."
            )
    return found


def _of_seeds(name: str, runs: Sequence[RunSeries]) -> list[str]:
    if len(runs) < 3:
        return []
    last = np.array([run.last(run.reply) for run in runs])
    apart = np.abs(last - np.median(last))
    usual = np.median(apart) or 1e-9
    worst = int(apart.argmax())
    if apart[worst] > 6 * usual and apart[worst] > 0.02 * abs(np.median(last)):
        return [f"{name}: seed {runs[worst].started.seed} is far from the other seeds ({score_text(last[worst])})."]
    return []
