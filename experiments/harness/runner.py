"""Run what is missing of an experiment, in groups that train together."""

import gc
import json
import sys
import time
import traceback
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from multiprocessing import active_children, get_context
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

import torch

from cdfl.data import DataError, Sudden
from cdfl.data.sources import check_is_here
from cdfl.on_ray.connection import RayEngine, connected
from cdfl.report.progress_display import Lines
from cdfl.run_events import Event
from cdfl.sim.engine_choice import Precision
from cdfl.sim.on_ray.runs import Spread
from cdfl.sim.runner import RunConfig, compare_events
from experiments.harness.experiment import Tell
from experiments.harness.fedbuff_int8 import known
from experiments.harness.machine import commit, machine
from experiments.harness.results_folder import Results
from experiments.harness.run_keys import RunKey, resolve
from experiments.harness.run_summary import final_numbers, summarize_run
from experiments.harness.tables import counted

Group = Sequence[tuple[RunKey, RunConfig]]  # runs that share stacks
Outcome = tuple[list[tuple[RunKey, RunConfig, dict[str, Any]]], dict[str, Any]]  # summaries, and their common header


@dataclass(frozen=True)
class RunOptions:
    """Where and how runs are computed; not part of a run's key."""

    device: str = "auto"
    precision: Precision | Literal["auto"] = "auto"
    data_dir: Path | None = None
    together: int | None = None  # runs in common stacks: more are faster, fewer lose less at an interruption
    processes: int = 1  # groups that run side by side
    smoke: bool = False
    commit: str | None = None  # of the code; None to ask git
    engine: RayEngine | None = None  # whose workers do the runs, each one at a time; None to run here


class UnfinishedError(RuntimeError):
    """Some groups failed; the others are stored."""

    def __init__(self, failures: "Sequence[Failure]", groups: int) -> None:
        lines = [
            f"{len(failures)} of {groups} groups failed; the others are stored; repeat the command to try these again:"
        ]
        lines += [f"  {failure.group}: {failure.error}" for failure in failures]
        if any(failure.memory for failure in failures):
            lines.append("use a smaller --together or --processes to save memory")
        super().__init__("\n".join(lines))


@dataclass(frozen=True)
class Failure:
    """A group that failed. Not an exception: that would keep the group's memory alive."""

    group: str
    error: str
    trace: str = ""  # the traceback, if it is a bug
    memory: bool = False  # out of memory

    @classmethod
    def of(cls, group: str, error: Exception) -> "Failure":
        """Return the failure for an exception; call it in the handler."""
        text = shorten(f"{type(error).__name__}: {error}", 300)
        # A pool breaks when the system kills one of its processes, usually for lack of memory.
        if isinstance(error, MemoryError | BrokenExecutor) or "out of memory" in text or "allocate memory" in text:
            return cls(group, text, memory=True)
        if isinstance(error, ModuleNotFoundError):
            return cls(group, f"{text}; install it with: pip install 'cdfl[sim]'")
        return cls(group, text, "" if isinstance(error, ValueError | OSError) else traceback.format_exc())


def stopped(stored: int, runs: int, together: int) -> str:
    """Return the message for an interruption; `together` is the size of a group.

    >>> stopped(3, 11, 8)
    '3 of 11 runs are stored, 8 are missing; only whole groups are stored: --together 1 loses less, but is slower'
    >>> stopped(3, 11, 1)
    '3 of 11 runs are stored, 8 are missing'
    """
    message = f"{stored} of {runs} runs are stored, {runs - stored} are missing"
    hint = "only whole groups are stored: --together 1 loses less, but is slower"
    return f"{message}; {hint}" if together > 1 and stored < runs else message


def run_missing(keys: Sequence[RunKey], results: Results, options: RunOptions, tell: Tell) -> None:
    """Compute every run that `results` does not hold, group by group; store each group when it is done.

    A group that fails does not stop the others: `UnfinishedError` is raised after the last group.
    """
    # The commit of the loaded code: the checkout may change during the run.
    options = replace(options, commit=options.commit or commit())
    configs = {key.name: resolve(key, options.device, options.precision, smoke=options.smoke) for key in keys}
    missing = {key.name: key for key in keys if not _is_known(key, configs[key.name], results)}
    wanted = [(key, configs[name]) for name, key in missing.items()]
    _check_data(keys, wanted, options.data_dir)
    tell(f"{len(configs)} runs, {len(configs) - len(wanted)} of them stored already")
    together = 1 if options.engine else len(wanted) if options.smoke else options.together
    groups = list(_groups(wanted, together))
    try:
        failures = _run_groups(groups, results, options, tell)
    except KeyboardInterrupt:
        kept = sum(_is_known(key, configs[name], results) for name, key in missing.items())
        largest = max(map(len, groups), default=1)
        together = 1 if options.smoke else largest  # smoke runs are one group
        tell(stopped(len(configs) - len(wanted) + kept, len(configs), together))
        raise
    if failures:
        raise UnfinishedError(failures, len(groups))


def _run_groups(groups: Sequence[Group], results: Results, options: RunOptions, tell: Tell) -> list[Failure]:
    """Store every group; return the failures."""
    failures = []
    with closing(_outcomes(groups, options, tell)) as outcomes:
        for number, outcome in enumerate(outcomes, start=1):
            if isinstance(outcome, Failure):
                failures.append(outcome)
                tell(f"{number} of {len(groups)}: {outcome.group} failed: {outcome.error}\n{outcome.trace}".rstrip())
            else:
                results.add(*outcome)
                tell(f"{number} of {len(groups)}: {_name(outcome[0])}, {outcome[1]['seconds']:.0f} s")
    return failures


def _check_data(asked: Sequence[RunKey], missing: Group, data_dir: Path | None) -> None:
    """Refuse to begin without the data: else a run would fail after hours."""
    lacking: dict[str, list[str]] = {}  # message about a dataset -> rows that need it
    for row, sources in {key.scenario: config.scenario.sources for key, config in missing}.items():
        for source in sources:
            try:
                check_is_here(source, data_dir)
            except DataError as error:
                lacking.setdefault(str(error), []).append(row)
    if not lacking:
        return
    lines = [f"{what} (needed by {', '.join(rows)})" for what, rows in lacking.items()]
    needing = {row for rows in lacking.values() for row in rows}
    others = dict.fromkeys(key.scenario for key in asked if key.scenario not in needing)
    if data_dir is None:
        lines.append("if the data are in another folder, name it with --data-dir")
    if others:
        lines.append(f"to run only the other rows: --rows {','.join(others)}")
    raise DataError("\n".join(lines))


def _outcomes(groups: Sequence[Group], options: RunOptions, tell: Tell) -> Generator[Outcome | Failure]:
    """Yield what each group gave, as it is done."""
    if options.engine is not None:
        yield from _outcomes_on_cluster([run for group in groups for run in group], options.engine, options, tell)
        return
    if options.processes == 1:
        for group in groups:
            tell(f"next: {_name(group)}")
            yield _attempt(group, options, tell)
        return
    others = active_children()
    threads = max(1, torch.get_num_threads() // options.processes)  # share the cores
    with ProcessPoolExecutor(options.processes, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        begun = {pool.submit(_attempt, group, options, _silent): group for group in groups}
        try:
            for done in as_completed(begun):
                yield _result(done, begun[done])
        finally:
            # The pool would wait for groups that are no longer needed.
            for future in begun:
                future.cancel()
            mine = set(active_children()).difference(others)
            for process in mine:
                process.terminate()
            for process in mine:
                process.join()


def _outcomes_on_cluster(
    runs: Group, engine: RayEngine, options: RunOptions, tell: Tell
) -> Iterator[Outcome | Failure]:
    """Yield what each run gave, as it is done; the workers of a cluster do them side by side."""
    if not runs:
        return
    events: dict[int, list[Event]] = {which: [] for which in range(len(runs))}
    begun: dict[int, float] = {}
    configs = [config for _, config in runs]
    package = sys.modules["experiments"]  # networks of the study travel: workers need no checkout
    with (
        connected(engine) as ray,
        closing(Spread(ray, engine, configs, modules=[package])) as spread,
        Lines(sum(config.scenario.num_uploads for config in configs), lambda line: tell(f"  {line}")) as progress,
    ):
        for which, part in spread.parts(options.data_dir):
            key, config = runs[which]
            begun.setdefault(which, time.monotonic())
            if isinstance(part, Exception):
                yield _failure(runs[which], part)
                continue
            events[which] += part.events
            for event in part.events:
                progress.show(event)
            if part.models is not None:  # the end
                kept = [(key, config, _summarize(key, config, events.pop(which)))]
                yield kept, _header(config, time.monotonic() - begun[which], 1, options)


def _failure(run: tuple[RunKey, RunConfig], error: Exception) -> Failure:
    try:
        raise error
    except Exception as raised:
        return Failure.of(_name([run]), raised)


def _name(keys: Sequence[tuple[Any, ...]]) -> str:
    names = sorted({" ".join([key.scenario, key.preset, key.algorithm, *_changes(key)]) for key, *_ in keys})
    return f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''} ({counted(len(keys), 'run')})"


def _changes(key: RunKey) -> list[str]:
    """Return the changes of a run as name=value."""
    return [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in key.changes.items()]


def _silent(line: str) -> None:
    """Print nothing: the output of several processes would mix."""


def _attempt(group: Group, options: RunOptions, tell: Tell) -> Outcome | Failure:
    try:
        return _run_group(group, options, tell)
    except Exception as error:
        failure = Failure.of(_name(group), error)
    gc.collect()  # free the GPU memory of the group
    torch.cuda.empty_cache()
    return failure


def _result(done: "Future[Outcome | Failure]", group: Group) -> Outcome | Failure:
    """Return what a process gave; if the system kills one process, all groups that are left fail."""
    try:
        return done.result()
    except BrokenExecutor as error:
        return Failure.of(_name(group), error)


def _run_group(group: Group, options: RunOptions, tell: Tell) -> Outcome:
    begun = time.monotonic()
    events: list[list[Event]] = [[] for _ in group]
    configs = [config for _, config in group]
    for config in configs:
        known(config.algorithm)  # also in a process that has not resolved it
    with warnings.catch_warnings():
        # Runs with the printed bars are part of the study.
        warnings.filterwarnings("ignore", message="(loss|gap|distance)_bar is", category=RuntimeWarning)
        uploads = sum(config.scenario.num_uploads for config in configs)
        with (
            Lines(uploads, lambda line: tell(f"  {line}")) as progress,
            closing(compare_events(configs, None, options.data_dir)) as stream,
        ):
            for which, event in stream:
                events[which].append(event)
                progress.show(event)
    seconds = time.monotonic() - begun
    kept = [(key, config, _summarize(key, config, own)) for (key, config), own in zip(group, events, strict=True)]
    return kept, _header(configs[0], seconds, len(group), options)


def _header(config: RunConfig, seconds: float, together: int, options: RunOptions) -> dict[str, Any]:
    """Return what is stored with the results of a group: where and how they were computed."""
    return {
        "device": config.device,
        "precision": config.precision,
        "machine": machine(),
        "commit": options.commit,
        "seconds": round(seconds, 1),
        "together": together,
        "processes": options.processes,
        "smoke": options.smoke,
    }


def _summarize(key: RunKey, config: RunConfig, events: Sequence[Event]) -> dict[str, Any]:
    """Return the summary of a run, with details only where an experiment uses them: results stay small."""
    jumps = isinstance(config.scenario.drift, Sudden)
    shown = key.seed == 0 and not key.changes and key.algorithm in ("cdfl", "fedsoft")
    if config.validation:
        return {"end": final_numbers(events)}
    return summarize_run(events, config.scenario.num_clients, updates=jumps, mixtures=shown)


def _groups(keys: Sequence[tuple[RunKey, RunConfig]], together: int | None) -> Iterator[list[tuple[RunKey, RunConfig]]]:
    """Yield runs that can share stacks, in order."""
    alike: dict[str, list[tuple[RunKey, RunConfig]]] = {}
    for key, config in keys:
        shared = [config.scenario.to_dict(), asdict(config.settings.training), asdict(config.settings.pretraining)]
        alike.setdefault(json.dumps(shared), []).append((key, config))
    for group in alike.values():
        # One ResNet keeps a GPU busy; in a group it would only wait for the others.
        size = together or (1 if group[0][1].scenario.model == "resnet18" else 10)
        for first in range(0, len(group), size):
            yield group[first : first + size]


def _is_known(key: RunKey, config: RunConfig, results: Results) -> bool:
    kept = results.find(key)
    return kept is not None and kept.is_of(config)
