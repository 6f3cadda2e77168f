"""Run the missing cells, many at a time."""

import gc
import json
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, Literal

import torch

from cdfl.data import DataError, Sudden
from cdfl.data.sources import check_is_here
from cdfl.record import Event
from cdfl.sim import progress_log
from cdfl.sim.engine_choice import Precision
from cdfl.sim.runner import RunConfig, compare_events
from experiments.harness.cells import Cell, resolve
from experiments.harness.digest import digest
from experiments.harness.experiment import Tell
from experiments.harness.failures import Failure, UnfinishedError, stopped
from experiments.harness.machine import commit, machine
from experiments.harness.results import Results
from experiments.harness.tables import counted

Group = Sequence[tuple[Cell, RunConfig]]  # cells that share stacks
Outcome = tuple[list[tuple[Cell, RunConfig, dict[str, Any]]], dict[str, Any]]  # digests, and the header they share


@dataclass(frozen=True)
class How:
    """Where and how cells are run; it does not identify a cell."""

    device: str = "auto"
    precision: Precision | Literal["auto"] = "auto"
    data_dir: Path | None = None
    together: int | None = None  # cells in common stacks: more are faster, fewer lose less at an interruption
    processes: int = 1  # groups that run side by side
    smoke: bool = False
    commit: str | None = None  # of the code; None: ask git


def run_missing(cells: Sequence[Cell], results: Results, how: How, tell: Tell) -> None:
    """Run every cell that `results` does not hold, group by group; store each group when it is done.

    A group that fails does not stop the others: `UnfinishedError` is raised after the last group.
    """
    how = replace(how, commit=how.commit or commit())  # of the loaded code; the checkout may change during the run
    configs = {cell.key: resolve(cell, how.device, how.precision, smoke=how.smoke) for cell in cells}
    missing = {cell.key: cell for cell in cells if not _is_known(cell, configs[cell.key], results)}
    wanted = [(cell, configs[key]) for key, cell in missing.items()]
    _check_data(cells, wanted, how.data_dir)
    tell(f"{len(configs)} cells, {len(configs) - len(wanted)} of them stored already")
    groups = list(_groups(wanted, len(wanted) if how.smoke else how.together))
    try:
        failures = _run_groups(groups, results, how, tell)
    except KeyboardInterrupt:
        kept = sum(_is_known(cell, configs[key], results) for key, cell in missing.items())
        largest = max(map(len, groups), default=1)
        together = 1 if how.smoke else largest  # smoke runs are one group
        tell(stopped(len(configs) - len(wanted) + kept, len(configs), together))
        raise
    if failures:
        raise UnfinishedError(failures, len(groups))


def _run_groups(groups: Sequence[Group], results: Results, how: How, tell: Tell) -> list[Failure]:
    """Store every group; return the failures."""
    failures = []
    with closing(_outcomes(groups, how, tell)) as outcomes:
        for number, outcome in enumerate(outcomes, start=1):
            if isinstance(outcome, Failure):
                failures.append(outcome)
                tell(f"{number} of {len(groups)}: {outcome.group} failed: {outcome.error}\n{outcome.trace}".rstrip())
            else:
                results.add(*outcome)
                tell(f"{number} of {len(groups)}: {_name(outcome[0])}, {outcome[1]['seconds']:.0f} s")
    return failures


def _check_data(asked: Sequence[Cell], missing: Group, data_dir: Path | None) -> None:
    """Refuse to begin without the data: else a run would fail after hours."""
    lacking: dict[str, list[str]] = {}  # message about a dataset -> rows that need it
    for row, sources in {cell.scenario: config.scenario.sources for cell, config in missing}.items():
        for source in sources:
            try:
                check_is_here(source, data_dir)
            except DataError as error:
                lacking.setdefault(str(error), []).append(row)
    if not lacking:
        return
    lines = [f"{what} (needed by {', '.join(rows)})" for what, rows in lacking.items()]
    needing = {row for rows in lacking.values() for row in rows}
    others = dict.fromkeys(cell.scenario for cell in asked if cell.scenario not in needing)
    if data_dir is None:
        lines.append("if the data are in another folder, name it with --data-dir")
    if others:
        lines.append(f"to run only the other rows: --rows {','.join(others)}")
    raise DataError("\n".join(lines))


def _outcomes(groups: Sequence[Group], how: How, tell: Tell) -> Generator[Outcome | Failure]:
    """Yield what each group gave, as it is done."""
    if how.processes == 1:
        for group in groups:
            tell(f"next: {_name(group)}")
            yield _attempt(group, how, tell)
        return
    others = active_children()
    threads = max(1, torch.get_num_threads() // how.processes)  # share the cores
    with ProcessPoolExecutor(how.processes, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        try:
            begun = {pool.submit(_attempt, group, how, _silent): group for group in groups}
            for done in as_completed(begun):
                yield _result(done, begun[done])
        finally:
            # The pool would wait for groups that are no longer needed.
            pool.shutdown(wait=False, cancel_futures=True)
            mine = set(active_children()).difference(others)
            for process in mine:
                process.terminate()
            for process in mine:
                process.join()


def _name(cells: Sequence[tuple[Any, ...]]) -> str:
    names = sorted({" ".join([cell.scenario, cell.preset, cell.algorithm, *_changes(cell)]) for cell, *_ in cells})
    return f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''} ({counted(len(cells), 'cell')})"


def _changes(cell: Cell) -> list[str]:
    """Return the changes of a cell as name=value."""
    return [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in cell.changes.items()]


def _silent(line: str) -> None:
    """Print nothing: the output of several processes would mix."""


def _attempt(group: Group, how: How, tell: Tell) -> Outcome | Failure:
    try:
        return _run_group(group, how, tell)
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


def _run_group(group: Group, how: How, tell: Tell) -> Outcome:
    begun = time.monotonic()
    events: list[list[Event]] = [[] for _ in group]
    configs = [config for _, config in group]
    with warnings.catch_warnings():
        # Runs with the printed bars are part of the study.
        warnings.filterwarnings("ignore", message="(loss|gap|distance)_bar is", category=RuntimeWarning)
        uploads = sum(config.scenario.num_uploads for config in configs)
        with (
            progress_log.lines(lambda line: tell(f"  {line}"), uploads) as count,
            closing(compare_events(configs, None, how.data_dir)) as stream,
        ):
            for which, event in stream:
                events[which].append(event)
                count(event)
    seconds = time.monotonic() - begun
    kept = [(cell, config, _digest(cell, config, own)) for (cell, config), own in zip(group, events, strict=True)]
    return kept, {
        "device": configs[0].device,
        "precision": configs[0].precision,
        "machine": machine(),
        "commit": how.commit,
        "seconds": round(seconds, 1),
        "together": len(group),
        "processes": how.processes,
        "smoke": how.smoke,
    }


def _digest(cell: Cell, config: RunConfig, events: Sequence[Event]) -> dict[str, Any]:
    """Return the digest of a run, with details only where an experiment uses them: results stay small."""
    jumps = isinstance(config.scenario.drift, Sudden)
    shown = cell.seed == 0 and not cell.changes and cell.algorithm in ("cdfl", "fedsoft")
    return digest(events, config.scenario.num_clients, updates=jumps, mixtures=shown)


def _groups(cells: Sequence[tuple[Cell, RunConfig]], together: int | None) -> Iterator[list[tuple[Cell, RunConfig]]]:
    """Yield cells that can share stacks, in order."""
    alike: dict[str, list[tuple[Cell, RunConfig]]] = {}
    for cell, config in cells:
        shared = [config.scenario.to_dict(), asdict(config.settings.training), asdict(config.settings.pretraining)]
        alike.setdefault(json.dumps(shared), []).append((cell, config))
    for group in alike.values():
        # One ResNet keeps a GPU busy; in a group it would only wait for the others.
        size = together or (1 if group[0][1].scenario.model == "resnet18" else 10)
        for first in range(0, len(group), size):
            yield group[first : first + size]


def _is_known(cell: Cell, config: RunConfig, results: Results) -> bool:
    kept = results.find(cell)
    return kept is not None and kept.is_of(config)
