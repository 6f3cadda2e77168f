"""The pictures of runs. Each function returns a matplotlib figure; `cdfl.report.style.save` writes it."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cdfl.report import style
from cdfl.report.mixtures import history, mixture_figure, smoothing, whole_numbers
from cdfl.run_events import score_text
from cdfl.run_series import Numbers, RunSeries, adaptation, check_one_metric, groups, smoothed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def story(runs: Sequence[RunSeries], client: int | None = None, samples: Sequence[Numbers] | None = None) -> "Figure":
    """Draw what happens to one client, and what that does for all of them.

    Left, for one client of the first run: what its data are made of, and the estimate. Right: the scores of all
    clients; with several algorithms, of the new models of each. `samples`: an image of each cluster.
    """
    check_one_metric(runs)
    first = runs[0]
    chosen = first.telling_client() if client is None else client
    if not len(first.of_client(chosen)):
        there = f"0 to {first.started.num_clients - 1}"
        raise ValueError(f"client {chosen} made no upload in {first.name}; there are clients {there}")
    with style.styled():
        figure = style.new_figure(style.WIDTH, 4.2)
        parts: Any = figure.subfigures(1, 2, width_ratios=(1.22, 1), wspace=0.02)
        history(parts[0], first, chosen, samples)
        number = 2 if first.mixtures is None else 3
        axes = parts[1].subplots()
        axes.set_title(f"{number}  {_finding(runs)}")
        window = smoothing(min(run.num_uploads for run in runs))
        if len(groups(runs)) == 1:
            _scores(axes, runs, window)
        else:
            _replies(axes, groups(runs), window, _words)
        _label_axes(axes, runs, window)
    return figure


def _finding(runs: Sequence[RunSeries]) -> str:
    """Say what the scores of all clients show."""
    grouped, first = groups(runs), runs[0]
    if len(grouped) > 1:
        (name, new), *others = ((name, _last(own, "reply")) for name, own in grouped.items())
        if all(other.startswith("local") and _is_better(first, new, score) for other, score in others):
            return f"{_words(name)} beats training alone".replace("\n", " ")
        return "New models of all clients"
    new, old, own = (_last(runs, name) for name in ("reply", "held", "before"))
    if not _is_better(first, new, own):
        return "Own training is as good"
    return "New models are best" if _is_better(first, new, old) else "Old models are as good"


def _last(runs: Sequence[RunSeries], name: str) -> float:
    return float(np.mean([run.last(run.reply if name == "reply" else run.scores[name]) for run in runs]))


def _is_better(run: RunSeries, one: float, other: float) -> bool:
    return one > other if run.higher_is_better else one < other


def comparison(runs: Sequence[RunSeries]) -> "Figure":
    """Draw what the new models of each algorithm reach over time, and all scores at the end; bands are over seeds."""
    check_one_metric(runs)
    grouped, window = groups(runs), smoothing(min(run.num_uploads for run in runs))
    with style.styled():
        figure = style.new_figure(style.WIDTH, max(3.9, 2.1 + 0.42 * len(grouped)))
        over_time, at_end = figure.subplots(1, 2, width_ratios=(1.1, 1))
        _replies(over_time, grouped, window, str)
        ends = {name: _last(own, "reply") for name, own in grouped.items()}
        best = (max if runs[0].higher_is_better else min)(ends, key=lambda name: ends[name])
        over_time.set_title(f"New models: {best} ends best ({score_text(ends[best])})")
        _label_axes(over_time, runs, window)
        in_order = sorted(ends, key=lambda name: ends[name], reverse=runs[0].higher_is_better)
        _final_scores(at_end, {name: grouped[name] for name in in_order}, list(grouped))
    return figure


def _replies(
    axes: "Axes", grouped: Mapping[str, Sequence[RunSeries]], window: int, named: Callable[[str], str]
) -> None:
    """Draw what the new models of each algorithm reach over time."""
    labels = []
    for place, (name, own) in enumerate(grouped.items()):
        color, line = style.algorithm_color(name, place), style.LINES[place % len(style.LINES)]
        end = _band(axes, [run.reply for run in own], window, color, line, 2.6 if place == 0 else 2.0)
        labels.append((end, named(name), color))
    style.label_beside(axes, labels)


def _final_scores(axes: "Axes", grouped: Mapping[str, Sequence[RunSeries]], places: Sequence[str]) -> None:
    """Draw one row an algorithm: its scores over the last upload of every client, with their deviation over seeds.

    The place of an algorithm in `places` chooses its colour.
    """
    markers = {"held": "o", "before": "s", "after": "D", "served": "*"}
    names = [name for name in markers if any(name in run.scores for own in grouped.values() for run in own)]
    for row, (algorithm, own) in enumerate(grouped.items()):
        color = style.algorithm_color(algorithm, places.index(algorithm))
        for name in names:
            values = [run.last(run.scores[name]) for run in own if name in run.scores]
            if values:
                spread = np.std(values, ddof=1) if len(values) > 1 else 0.0
                filled = color if name in ("after", "served") else "white"
                axes.errorbar(
                    np.mean(values), row, xerr=spread, color=color, marker=markers[name], mfc=filled, capsize=2, ls=""
                )
    for name in names:
        axes.plot([], [], color=style.QUIET, marker=markers[name], ls="", label=style.SCORE_WORDS[name],
                  mfc=style.QUIET if name in ("after", "served") else "white")  # fmt: skip
    axes.set_yticks(range(len(grouped)), list(grouped))
    axes.set_ylim(len(grouped) - 0.4, -0.6)
    first = next(iter(grouped.values()))[0]
    several = max(map(len, grouped.values()))
    meaning = f"\nbar: ± 1 SD, {several} seeds" if several > 1 else ""
    axes.set(title="At the end: last upload of every client", xlabel=f"{first.metric_label}, held-out data{meaning}")
    columns = len(names) if len(names) < 4 else 2
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.1), frameon=False, fontsize=9, ncols=columns,
                columnspacing=1.0, handletextpad=0.1)  # fmt: skip


def _scores(axes: "Axes", runs: Sequence[RunSeries], window: int) -> None:
    """Draw the scores of all clients of one algorithm."""
    labels = []
    for name in runs[0].scores:
        color, width = style.SCORES[name], 2.6 if name in ("after", "served") else 1.8
        end = _band(axes, [run.scores[name] for run in runs], window, color, style.SCORE_LINES[name], width)
        labels.append((end, style.SCORE_WORDS[name], color))
    style.label_beside(axes, labels)


def _label_axes(axes: "Axes", runs: Sequence[RunSeries], window: int) -> None:
    most = max(map(len, groups(runs).values()))
    spread = f"; band: ± 1 SD, {most} seeds" if most > 1 else ""
    mean = f"mean of {window}" if window > 1 else "each one"
    axes.set_xlabel(f"uploads, all clients ({mean}{spread})")
    axes.set_ylabel(f"{runs[0].metric_label}, held-out data")


def _words(algorithm: str) -> str:
    """Name an algorithm for those who do not know it.

    >>> _words("cdfl"), _words("ifca")
    ('CDFL', 'IFCA')
    """
    return {
        "cdfl": "CDFL",
        "local": "training alone,\neach time anew",
        "local-keep": "training\nalone",
        "fedasync": "one model for all\n(FedAsync)",
        "fedbuff": "one model for all\n(FedBuff)",
        "oracle": "true mixture\n(oracle)",
        "fedsoft": "FedSoft",
        "fedem": "FedEM",
        "ifca": "IFCA",
    }.get(algorithm, algorithm)


def _band(axes: "Axes", series: Sequence[Numbers], window: int, color: str, line: str, width: float = 2.0) -> float:
    """Draw the mean of several seeds, and their deviation as a band; return where the line ends."""
    length = min(map(len, series))
    curves = np.stack([smoothed(values[:length], window) for values in series])
    x, mean = np.arange(window, length + 1), curves.mean(axis=0)
    marker = "o" if len(x) == 1 else None
    axes.plot(x, mean, color=color, linestyle=line, linewidth=width, marker=marker)
    if len(curves) > 1:
        deviation = curves.std(axis=0, ddof=1)
        axes.fill_between(x, mean - deviation, mean + deviation, color=color, alpha=0.18, linewidth=0)
    return float(mean[-1])


def clusters_figure(runs: Sequence[RunSeries]) -> "Figure":
    """Draw the scores of the clusters of one algorithm over time, and how its models compare at the end."""
    first = runs[0]
    with style.styled():
        panels = 1 + (first.cluster_losses is not None) + (first.cluster_distances is not None)
        figure = style.new_figure(3.7 * panels, 3.6)
        axes = np.atleast_1d(figure.subplots(1, panels))
        labels = []
        for cluster, name in enumerate(first.clusters):
            same = [run.cluster_scores[: _common(runs), cluster] for run in runs]
            mean = np.mean(same, axis=0)
            x = first.cluster_uploads[: len(mean)]
            line = style.LINES[cluster // len(style.CLUSTERS) % len(style.LINES)]
            mark = "osD^vP*X"[cluster % 8]
            axes[0].plot(
                x, mean, color=style.cluster_color(cluster), linestyle=line, linewidth=2, marker=mark, markevery=0.1
            )
            labels.append((float(mean[-1]), name, style.cluster_color(cluster)))
        axes[0].set(title="Cluster models on their own data", xlabel="uploads")
        axes[0].set_ylabel(f"{first.metric_label}, held-out data")
        style.label_beside(axes[0], labels)
        tables = [
            (
                first.cluster_losses,
                "Loss of each model (row) on each cluster\n(column); bold: lowest of its row",
            )
        ]
        tables.append((first.cluster_distances, "Distance between cluster models"))
        shown = [(values, title) for values, title in tables if values is not None]
        for own, (values, title) in zip(axes[1:], shown, strict=True):
            _matrix(own, values[-1], first.clusters, title, is_lowest_bold=values is first.cluster_losses)
    return figure


def _common(runs: Sequence[RunSeries]) -> int:
    return min(len(run.cluster_scores) for run in runs)


def _matrix(axes: "Axes", values: Numbers, names: Sequence[str], title: str, *, is_lowest_bold: bool) -> None:
    axes.imshow(values, cmap="Greys", vmin=0, vmax=np.nanmax(values) * 2.2 or 1)
    for row, numbers in enumerate(values):
        for column, number in enumerate(numbers):
            weight = "bold" if is_lowest_bold and number == np.nanmin(numbers) else "normal"
            axes.text(column, row, f"{number:.3g}", ha="center", va="center", fontsize=9, fontweight=weight)
    ticks = range(len(names))
    axes.set_xticks(ticks, names, rotation=30, ha="right")
    axes.set_yticks(ticks, names)
    axes.set_title(title)
    axes.grid(visible=False)


def traffic_figure(run: RunSeries) -> "Figure":
    """Draw staleness, outcomes and bytes of a run."""
    with style.styled():
        figure = style.new_figure(10.5, 3.0)
        stale, outcomes, sent = figure.subplots(1, 3)
        stale.hist(run.staleness, bins=min(30, int(run.staleness.max()) + 1), color=style.QUIET)
        stale.set(title=f"Staleness: half below {np.median(run.staleness):.0f} epochs", ylabel="uploads")
        stale.set_xlabel("epochs between download and upload")
        counts = [run.outcomes.count(name) for name in style.OUTCOMES]
        drawn = outcomes.barh([*style.OUTCOME_WORDS.values()], counts, color=[*style.OUTCOMES.values()])
        outcomes.bar_label(drawn, padding=3)
        outcomes.margins(x=0.15)
        outcomes.set(
            title=f"Applied: {100 * run.outcomes.count('applied') / run.num_uploads:.0f} % of uploads", xlabel="uploads"
        )
        outcomes.invert_yaxis()
        x = np.arange(1, run.num_uploads + 1)
        up, down = run.bytes_up.cumsum() / 1e6, run.bytes_down.cumsum() / 1e6
        sent.plot(x, down, color=style.INK, linewidth=2)
        sent.plot(x, up, color=style.QUIET, linewidth=2, linestyle="--")
        sent.set(title=f"Sent: {up[-1]:.1f} MB up, {down[-1]:.1f} MB down", xlabel="uploads", ylabel="MB, all clients")
        style.label_beside(sent, [(float(down[-1]), "down", style.INK), (float(up[-1]), "up", style.QUIET)])
    return figure


def adaptation_figure(runs: Sequence[RunSeries]) -> "Figure | None":
    """Draw the scores of clients after their data moved, by the number of uploads since; None if none moved."""
    steps = [found for run in runs if (found := adaptation(run))]
    if not steps:
        return None
    first = runs[0]
    with style.styled():
        figure = style.new_figure(6.4, 3.2)
        axes, labels = figure.subplots(), []
        for name in steps[0]:
            known = np.array([each[name] for each in steps])
            values = known[:, ~np.isnan(known).all(axis=0)]
            values = np.nanmean(values, axis=0)
            color = style.SCORES[name]
            axes.plot(np.arange(1, len(values) + 1), values, color=color, linestyle=style.SCORE_LINES[name], marker="o")
            labels.append((float(values[-1]), style.SCORE_WORDS[name], color))
        axes.set(
            xlabel="its uploads since its largest share changed, 1 is the first",
            ylabel=f"{first.metric_label}, held-out data",
        )
        axes.set_title(_following(steps, first))
        whole_numbers(axes)
        style.label_beside(axes, labels)
    return figure


def _following(steps: Sequence[Mapping[str, Numbers]], run: RunSeries) -> str:
    """Say what the first new model after a change does."""
    name = "served" if "served" in steps[0] else "after"
    old, new = (float(np.nanmean([each[score][0] for each in steps])) for score in ("held", name))
    word = "better" if _is_better(run, new, old) else "worse"
    return f"Data changed: the first new model is {score_text(abs(new - old))} {word} than the old"


def all_figures(runs: Sequence[RunSeries], client: int | None = None) -> Mapping[str, "Figure"]:
    """Return every picture of some runs by the name of its file. The first algorithm gets those of a single run."""
    grouped = groups(runs)
    own = next(iter(grouped.values()))
    found = {
        "story": story(own, client),
        "comparison": comparison(runs) if len(grouped) > 1 else None,
        "mixtures": mixture_figure(own[0]),
        "adaptation": adaptation_figure(own),
        "clusters": clusters_figure(own),
        "uploads": traffic_figure(own[0]),
    }
    return {name: figure for name, figure in found.items() if figure is not None}
