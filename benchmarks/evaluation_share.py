"""Measure which part of an upload's CPU time a server spends on evaluation.

Claim: if clients bring their mixtures, only the guard evaluates; for all but small networks that is most of an upload.

A server in this process takes uploads over HTTP, one after another, once with mixtures that it estimates and once with
those of clients (replies are then experts). CPU seconds of evaluation are those of the threads that evaluate: the
losses of the upload itself, the guard's tried steps, and the new losses of moved clusters. The rest is that of the
process without the client. The machine is shared, so the table shows shares. Data come from $CDFL_DATA.

Writes benchmarks/results/evaluation_share.json. Takes about five minutes.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.load import HERE
from benchmarks.result_files import commit, machine, read, write
from cdfl import wire
from cdfl.cli.init import EXAMPLE
from cdfl.core import ProxySets
from cdfl.core.guard import TRIAL_SAMPLES
from cdfl.data import Sizes
from cdfl.problems import Problem, ProblemInstance
from cdfl.scenarios import load_problem
from cdfl.server.upload_losses import Evaluators
from tests.server.live import Live

MODES = {"model": "the server", "experts": "clients"}  # what replies carry -> who estimates mixtures
PARTS = ("own", "trial", "level")


def small() -> Problem:
    """Return the problem of `cdfl init`."""
    return load_problem(str(EXAMPLE))


def paper() -> Problem:
    """Return the paper's CNN on FashionMNIST, pre-trained until an upload is told to be of one cluster."""
    return load_problem(str(HERE / "fleet" / "paper_setup.py")).with_settings(shared_epochs=2, separate_epochs=6)


def resnet() -> Problem:
    """Return the paper's ResNet-18 on CIFAR-10, with small proxy sets; hardly pre-trained, so all clusters move."""
    problem = replace(load_problem("cifar-10-4"), model="resnet18", sizes=Sizes(pretraining=32, proxy=50))
    return problem.with_settings(shared_epochs=1, separate_epochs=1)


# Problem, number of uploads, and the share of its own cluster in a mixture that a client brings.
NETWORKS: dict[str, tuple[Callable[[], Problem], int, float]] = {
    "the CNN of `cdfl init`": (small, 100, 0.9),
    "the paper's CNN": (paper, 16, 0.9),
    "ResNet-18": (resnet, 6, 0.25),
}


class Timed:
    """Proxy sets that count the CPU seconds of their thread."""

    def __init__(self, proxies: ProxySets) -> None:
        self.proxies, self.seconds = proxies, 0.0

    def __call__(self, models: Tensor, clusters: Tensor) -> Tensor:
        """Evaluate."""
        return self._timed(lambda: self.proxies(models, clusters))

    def of_each(self, vectors: Sequence[Tensor]) -> Tensor:
        """Evaluate on all sets."""
        return self._timed(lambda: self.proxies.of_each(vectors))

    def _timed(self, evaluate: Callable[[], Tensor]) -> Tensor:
        begun = time.thread_time()
        losses = evaluate()
        self.seconds += time.thread_time() - begun
        return losses


def measure(instance: ProblemInstance, uploads: int, share: float) -> dict[str, Any]:
    """Return CPU seconds of an upload by what they are spent on."""
    timed = [Timed(instance.evaluator(most)) for most in (None, None, TRIAL_SAMPLES, TRIAL_SAMPLES)]
    with (
        tempfile.TemporaryDirectory() as folder,
        Live(Path(folder) / "store", instance, evaluators=Evaluators(*timed)) as server,
    ):
        server.http.timeout = 600
        start = server.engine.state.cluster_models
        names = [f"client-{number}" for number in range(5)]
        for name in names:
            server.model(name)
        for number in range(1 + uploads):
            if number == 1:  # the first one prepares memory
                before = time.process_time() - time.thread_time(), *(each.seconds for each in timed)
                first = server.store.newest_number()
            upload(server, instance, share, start, names[number % len(names)], number)
        after = time.process_time() - time.thread_time(), *(each.seconds for each in timed)
        entries = server.store.entries(first)
    total, *parts = [(late - early) / uploads for early, late in zip(before, after, strict=True)]
    own, level, early_trial, trial = parts
    return {
        "own": own,
        "level": level,
        "trial": early_trial + trial,
        "rest": total - sum(parts),
        "uploads": uploads,
        "moved": sum(rate > 0 for entry in entries for rate in entry.rates) / uploads,
        "applied": sum(entry.outcome == "applied" for entry in entries),
    }


def upload(server: Live, instance: ProblemInstance, share: float, start: Tensor, name: str, number: int) -> None:
    """Upload a model near one of the first clusters; bring a mixture if replies are experts."""
    cluster = number % len(start)
    noise = torch.randn(start.shape[1], generator=torch.Generator().manual_seed(number))
    noise[instance.layout.num_parameters :] = 0  # a variance must not become negative
    body = wire.encode_model(start[cluster] * (1 + 0.01 * noise), instance.layout)
    headers = {}
    if instance.settings.replies.reply == "experts":
        shares = [(1 - share) / (len(start) - 1)] * len(start)
        shares[cluster] = share
        headers = {wire.MIXTURE: ",".join(map(str, shares))}
    epoch = server.model(name).headers[wire.EPOCH]
    answer = server.update(body, name, epoch, f"key-{number}", headers=headers)
    assert answer.status_code == 200, answer.text


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=NETWORKS, nargs="+", default=list(NETWORKS), help="networks; default: all")
    parser.add_argument("--replies", choices=MODES, nargs="+", default=list(MODES), help="default: both")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for network in chosen.only:
        make, uploads, share = NETWORKS[network]
        for reply in chosen.replies:
            instance = ProblemInstance.of(make().with_settings(reply=reply))
            row = {"network": network, "reply": reply, "parameters": instance.layout.num_parameters}
            row |= {"clusters": instance.num_clusters, "proxy": len(instance.proxy_sets[0][1])}
            row |= measure(instance, uploads, share)
            print(row, flush=True)
            kept = read("evaluation_share", {}).get("rows", {})
            rows = kept | {f"{network}, {reply}": row}
            write("evaluation_share", {"machine": machine(), "commit": commit(), "rows": rows})


def table() -> str:
    """Return the shares."""
    stored = read("evaluation_share")
    if stored is None:
        return "Not measured yet.\n"
    lines = [
        "| network, proxy sets | mixtures come from | clusters moved | losses of the upload | tried steps "
        "| losses of moved clusters | the rest | CPU time, relative |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    first = 0.0
    for network, reply in product(NETWORKS, MODES):
        row = stored["rows"][f"{network}, {reply}"]
        total = sum(row[part] for part in (*PARTS, "rest"))
        first = total if reply == "model" else first
        cells = [f"{row[part] / total:.0%}" for part in (*PARTS, "rest")]
        name = f"{network}, {row['clusters']} x {row['proxy']:,}"
        lines.append(f"| {name} | {MODES[reply]} | {row['moved']:.1f} | {' | '.join(cells)} | {total / first:.2f} |")
    on = stored["machine"]
    where = f"One core of {on['cpu']}, shared with other programs; torch {on['torch']}, {on['date']}."
    return "\n".join([*lines, "", where, ""])


if __name__ == "__main__":
    main()
