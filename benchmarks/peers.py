"""Measure client trainings a second on 2 CPU cores: a bare PyTorch loop, other frameworks and cdfl on the same work.

Each framework runs in its own virtual environment. It is made on first use, with the torch that cdfl is tested with.
benchmarks/contenders holds the work (work.py) and one script for each framework.

Writes benchmarks/results/peers.json.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.peers_table import BARE, BARE_AGAIN, DISTURBED, table
from benchmarks.processes import FailedError, last_words, observe, others_cores
from benchmarks.result_files import ROOT, machine, read, write
from cdfl.data import DataError, load_source

SCRIPTS = ROOT / "benchmarks" / "contenders"
TORCH = "torch==2.13.0"
TRIES = 3


@dataclass(frozen=True)
class Work:
    """What is trained; the optimiser is Adam, learning rate 1e-3, weight decay .005."""

    model: str
    source: str
    shape: tuple[int, int, int]
    samples: int  # of each client
    epochs: int
    batch_size: int
    clients: int  # in a round
    rounds: int  # that are measured, after one that is not


@dataclass(frozen=True)
class Setting:
    """One way to run a contender."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    clients: int | None = None  # in a round, where those of the work would take too long
    rounds: int | None = None  # where those of the work are over too soon


@dataclass(frozen=True)
class Contender:
    """Who does the work, in the settings that are tried; the best one counts."""

    name: str
    script: str
    settings: dict[str, list[Setting]]  # by work
    packages: tuple[str, ...] = ()  # empty: this very Python
    note: str = ""


# 48 samples are three full batches: cdfl fills the last batch of a training, the others leave it short, and with the
# usual 50 they would take more steps. With 1,250 both take ten, and cdfl trains on 30 images more.
WORKS = {
    "cnn": Work("cnn", "fashion-mnist", (1, 28, 28), samples=1250, epochs=1, batch_size=128, clients=8, rounds=4),
    "small-cnn": Work("small-cnn", "digits", (1, 8, 8), samples=48, epochs=5, batch_size=16, clients=32, rounds=6),
}
FLOWER = [
    Setting("2 cores a client (its default)", {"num_cpus": 2}),
    Setting("1 core a client", {"num_cpus": 1}),
]
PFL = [
    Setting("1 process of 2 threads (its default)", {"processes": 1}),
    Setting("2 processes of 1 thread", {"processes": 2}),
]
APPFL = [
    Setting("its default", {"optimize_memory": True}, clients=3, rounds=3),
    Setting("optimize_memory off", {"optimize_memory": False}),
]
CONTENDERS = [
    Contender(
        BARE,
        "run_bare.py",
        {"cnn": [Setting("2 threads (torch's default)")], "small-cnn": [Setting("2 threads (torch's default)")]},
    ),
    Contender(
        "bare PyTorch loop, tuned by hand",
        "run_bare.py",
        {
            "cnn": [Setting("channels last", {"channels_last": True})],
            "small-cnn": [Setting("1 thread", {"threads": 1})],
        },
    ),
    Contender(
        "Flower",
        "run_flower.py",
        {"cnn": FLOWER, "small-cnn": FLOWER},
        ("flwr[simulation]==1.41.0",),
        "not 1.42.0, which asks for a newer certifi (2026.10.19) than the package index had",
    ),
    Contender("pfl-research", "run_pfl.py", {"cnn": PFL, "small-cnn": PFL}, ("pfl[pytorch]==0.6.0",)),
    Contender("APPFL", "run_appfl.py", {"cnn": APPFL, "small-cnn": APPFL}, ("appfl==1.12.0",)),
    Contender(
        "cdfl",
        "run_cdfl.py",
        {
            "cnn": [Setting("Workers", {"engine": "workers", "precision": "float32"})],
            "small-cnn": [Setting("Stack", {"engine": "stack"}, rounds=40)],
        },
    ),
    Contender(
        "pfl-research, bfloat16 allowed",
        "run_pfl.py",
        {"cnn": [Setting("2 processes of 1 thread", {"processes": 2, "precision": "bfloat16"})]},
        ("pfl[pytorch]==0.6.0",),
    ),
    Contender(
        "cdfl, bfloat16 allowed",
        "run_cdfl.py",
        {"cnn": [Setting("Workers", {"engine": "workers", "precision": "bfloat16"})]},
    ),
    Contender(
        BARE_AGAIN,
        "run_bare.py",
        {"cnn": [Setting("2 threads (torch's default)")], "small-cnn": [Setting("2 threads (torch's default)")]},
    ),
]


# -- virtual environments


def python_of(contender: Contender, cache: Path) -> Path:
    """The interpreter that runs a contender; its virtual environment is made if it is not there."""
    if not contender.packages:
        return Path(sys.executable)
    folder = cache / Path(contender.script).stem.rpartition("_")[2]
    python, ready = folder / "bin" / "python", folder / "ready.txt"
    wanted = "\n".join((TORCH, *contender.packages)) + "\n"
    if ready.exists() and ready.read_text() == wanted:
        return python
    print(f"installing {' '.join(contender.packages)} ...", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    call([sys.executable, "-m", "venv", str(folder)])
    constraints = folder / "constraints.txt"
    constraints.write_text(TORCH + "\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    call([*pip, TORCH])
    call([*pip, "--constraint", str(constraints), *contender.packages])
    ready.write_text(wanted)
    return python


def call(command: list[str]) -> None:
    """Run a command; raise if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise FailedError(last_words(done.stderr))


# -- data


def write_data(work: Work, data_dir: Path | None, path: Path) -> str:
    """Store images and labels of all clients for one work; return the name of the data."""
    count = work.clients * work.samples
    try:
        dataset, kind = load_source(work.source, data_dir), work.source
        images, labels = dataset.train_inputs, dataset.train_targets
        assert tuple(images.shape[1:]) == work.shape, f"{work.source} has images of {tuple(images.shape[1:])}"
    except DataError:
        kind = "random pixels"
        shuffle = torch.Generator().manual_seed(0)
        images = torch.randint(256, (count, *work.shape), dtype=torch.uint8, generator=shuffle)
        labels = torch.randint(10, (count,), generator=shuffle)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    order = order.repeat(-(-count // len(order)))[:count]
    shape = (work.clients, work.samples)
    torch.save({"images": images[order].unflatten(0, shape), "labels": labels[order].unflatten(0, shape)}, path)
    return kind


# -- running


def run(contender: Contender, setting: Setting, work: Work, data: Path, cache: Path) -> dict[str, Any]:
    """Measure one contender in one setting; try again if other processes used the cores."""
    tries = []
    for _ in range(TRIES):
        tries.append(run_once(contender, setting, work, data, cache))
        if (tries[-1].get("others_cores") or 0.0) <= DISTURBED:
            break
    least_disturbed = min(tries, key=lambda row: row.get("others_cores") or 0.0)  # not the fastest
    return {**least_disturbed, "tries": len(tries)}


def run_once(contender: Contender, setting: Setting, work: Work, data: Path, cache: Path) -> dict[str, Any]:
    """Measure once: speed, memory and versions, or the error."""
    row: dict[str, Any] = {"work": work.model, "contender": contender.name, "setting": setting.name}
    clients = min(setting.clients or work.clients, work.clients)
    work = replace(work, clients=clients, rounds=setting.rounds or work.rounds)
    try:
        python = python_of(contender, cache)
        with tempfile.TemporaryDirectory(prefix="peers-") as folder:
            job = Path(folder) / "job.json"
            values = {name: value for name, value in asdict(work).items() if name != "source"}
            job.write_text(json.dumps({**values, "data": str(data), "setting": setting.options}))
            result, samples, started = observe([str(python), str(SCRIPTS / contender.script), str(job)], folder)
    except FailedError as failure:
        return {**row, "error": str(failure)}
    ends = result["round_ends"]
    rates = [work.clients / (end - begin) for begin, end in pairwise(ends)]
    steady = [sample for sample in samples if ends[0] <= sample.time <= ends[-1]] or samples[-1:]
    notes = [note for note in (contender.note, *result.get("notes", [])) if note]
    return {
        **row,
        "trainings": result["trainings"],
        "seconds": round(result["seconds"], 3),
        "rate": round(median(rates), 3),
        "rates": [round(rate, 3) for rate in rates],
        "clients_a_round": work.clients,
        "first_round_after_s": round(ends[0] - started, 2),
        "others_cores": others_cores(steady),
        "rss_mb": {
            "begin": round(steady[0].memory) if steady else None,
            "end": round(steady[-1].memory) if steady else None,
            "peak": round(max([result["peak_rss_mb"], *(sample.memory for sample in samples)])),
            "every_second": [round(sample.memory) for sample in samples],
        },
        "versions": result["versions"],
        **({"notes": notes} if notes else {}),
    }


def measure(contenders: list[Contender], works: dict[str, Work], data_dir: Path | None, cache: Path) -> dict[str, Any]:
    """Measure all contenders, one after the other."""
    results: dict[str, Any] = {"machine": machine(), "works": {}, "rows": []}
    results["machine"]["load_before"] = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        for name, work in works.items():
            data = Path(folder) / f"{name}.pt"
            results["works"][name] = {**asdict(work), "images": write_data(work, data_dir, data)}
            for contender in contenders:
                for setting in contender.settings.get(name, []):
                    row = run(contender, setting, work, data, cache)
                    results["rows"].append(row)
                    said = row.get("error") or f"{row['rate']:.2f} a second (others took {row['others_cores']} cores)"
                    print(f"{name}: {contender.name}, {setting.name}: {said}", file=sys.stderr)
    results["machine"]["load_after"] = round(os.getloadavg()[0], 2)
    return results


def main() -> None:
    """Measure, or print the stored table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder of the datasets; default: $CDFL_DATA")
    parser.add_argument("--cache", type=Path, default=ROOT / ".venv-peers", help="folder of the virtual environments")
    parser.add_argument(
        "--only", nargs="+", metavar="TEXT", help="only contenders whose names contain this; stores nothing"
    )
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS), help="default: all")
    parser.add_argument(
        "--quick", action="store_true", help="check that it runs: two clients, one round; stores nothing"
    )
    parser.add_argument("--table", action="store_true", help="print the stored results as Markdown")
    args = parser.parse_args()
    if args.table:
        print(table(read("peers")), end="")
        return
    works = {name: WORKS[name] for name in args.works}
    contenders = CONTENDERS
    if args.quick:
        works = {name: replace(work, clients=2, rounds=1) for name, work in works.items()}
    if args.only:
        contenders = [c for c in contenders if any(text.lower() in c.name.lower() for text in args.only)]
    results = measure(contenders, works, args.data_dir, args.cache.resolve())
    if not (args.quick or args.only or len(works) < len(WORKS)):
        write("peers", results)
    print(table(results), end="")


if __name__ == "__main__":
    main()
