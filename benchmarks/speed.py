"""Time the simulator against a plain loop over clients.

Claim: clients that are trained together give the same result in a fraction of the time.

Both run in this process, on the same data, at the same precision. --plain-uploads stops the plain loop early; its time
for the whole run is then computed from the mean time of an upload, which is constant over a run. The case is appended
to the result file. Examples:

    python -m benchmarks.speed digits-4 --num-uploads 200
    python -m benchmarks.speed fashion-mnist-4 --device cuda --plain-uploads 100 --out speed-h200.json
"""

import argparse
import gc
import json
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from benchmarks.result_files import RESULTS, commit, machine
from cdfl.algorithms import make_algorithm
from cdfl.cli.run_options import parse_settings
from cdfl.run_events import Clusters, Event, Finished, Uploaded
from cdfl.sim.client_stack import Rows
from cdfl.sim.cuda_client_stack import tensor_cores
from cdfl.sim.engine_choice import make_engines, make_fast
from cdfl.sim.reference_simulation import simulate
from cdfl.sim.runner import configure
from cdfl.sim.scenario_instance import ScenarioInstance
from cdfl.sim.simulation import Simulation
from cdfl.sim.time_models import TIME_MODELS


def main() -> None:
    """Measure one case and store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?", default="digits-4", help="name of a scenario; default: digits-4")
    parser.add_argument("--num-uploads", type=int, help="default: the scenario's")
    parser.add_argument("--num-clients", type=int, help="default: the scenario's")
    parser.add_argument("--plain-uploads", type=int, default=10**9, help="uploads after which the plain loop stops")
    parser.add_argument("--algorithm", default="cdfl", help="default: cdfl")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--precisions", default="auto", help="separated by commas; the plain loop runs the first")
    parser.add_argument("--width", type=int, help="clients in a stack; default: the fastest")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="a setting, as name=value")
    parser.add_argument("--once", action="store_true", help="run each once: no warm-up, no profile")
    parser.add_argument("--data-dir", type=Path, help="folder of the datasets; default: $CDFL_DATA")
    parser.add_argument("--out", type=Path, default=RESULTS / "speed-cpu.json", help="result file")
    parser.add_argument("--commit", help="commit of the code, for a copy without git")
    args = parser.parse_args()
    case: dict[str, Any] = {"scenario": args.scenario, "algorithm": args.algorithm, "machine": machine(), "fast": {}}
    case["commit"], case["settings"] = args.commit or commit(), args.settings
    for number, precision in enumerate(args.precisions.split(",")):
        config = configure(
            args.scenario, algorithm=args.algorithm, device=args.device, precision=precision,
            num_uploads=args.num_uploads, num_clients=args.num_clients, **parse_settings(args.settings),
        )  # fmt: skip
        federation = config.scenario.federation(0, args.data_dir).to(config.device)
        case["uploads"], case["clients"] = config.scenario.num_uploads, config.scenario.num_clients

        def fast(watch: bool = False, config: Any = config, federation: Any = federation) -> dict[str, Any]:
            instance = ScenarioInstance(config.scenario, federation, config.settings)
            engines = make_engines(instance, precision=config.precision, width=args.width)
            algorithm = make_fast(make_algorithm(config.algorithm, config.settings), instance, engines)
            simulation = Simulation(instance, algorithm, TIME_MODELS["uniform"], engines)
            watcher: AbstractContextManager[dict[str, float]] = stopwatch(simulation) if watch else nullcontext({})
            with watcher as times:
                found = clocked(simulation.events())
            return found | {"seconds_in": {stage: round(seconds, 3) for stage, seconds in times.items()}}

        if number == 0:
            half = torch.autocast(
                config.device, torch.bfloat16, enabled=config.precision == "bfloat16", cache_enabled=False
            )
            with tensor_cores(config.precision), half:
                instance = ScenarioInstance(config.scenario, federation, config.settings)
                algorithm = make_algorithm(config.algorithm, config.settings)
                case["plain"] = clocked(simulate(instance, algorithm, TIME_MODELS["uniform"]), args.plain_uploads)
                case["plain"]["precision"] = config.precision
            report("plain", case["plain"], case)
        cold = fast()
        warm, profile = (cold, {"seconds_in": {}}) if args.once else (fast(), fast(watch=True))
        case["fast"][config.precision] = {"cold": cold, "warm": warm, "profile": profile["seconds_in"]}
        report(config.precision + ", first run", cold, case)
        report(config.precision, warm, case)
        for stage, seconds in sorted(profile["seconds_in"].items(), key=lambda pair: -pair[1]):
            print(f"    {stage:45s} {seconds:7.2f} s", flush=True)
    store(args.out, case)


def clocked(events: Iterator[Event], most: int = 10**9) -> dict[str, Any]:
    """Run to the end or to `most` uploads; return the times of start and uploads, memory and scores."""
    gc.collect()
    begun = opened = time.perf_counter()
    uploads, end = 0, None
    for event in events:
        if isinstance(event, Clusters) and event.epoch == 0:
            _wait()
            opened = time.perf_counter()
        uploads += isinstance(event, Uploaded)
        if isinstance(event, Finished):
            end = event
        if uploads == most:
            break
    _wait()
    ended = time.perf_counter()
    found: dict[str, Any] = {
        "uploads": uploads,
        "seconds_to_start": round(opened - begun, 3),
        "seconds_for_uploads": round(ended - opened, 3),
        "ms_per_upload": round(1e3 * (ended - opened) / max(1, uploads), 3),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    if end is not None:
        found |= {"before": end.before, "after": end.after, "cluster": end.cluster, "divergence": end.divergence}
    return found


def whole(run: dict[str, Any], uploads: int) -> float:
    """Return the seconds of a whole run."""
    return float(run["seconds_to_start"] + run["ms_per_upload"] * uploads / 1e3)


def report(name: str, run: dict[str, Any], case: dict[str, Any]) -> None:
    """Print one line about one run."""
    seconds, plain = whole(run, case["uploads"]), whole(case["plain"], case["uploads"])
    scores = f"after {run['after']:.3f} cluster {run['cluster']:.3f}" if "after" in run else ""
    print(
        f"{case['scenario']} {name:24s} {seconds:8.2f} s  ({run['seconds_to_start']:.2f} to start, "
        f"{run['ms_per_upload']:.2f} ms an upload)  1/{plain / seconds:.1f}  {scores}",
        flush=True,
    )


@contextmanager
def stopwatch(simulation: Simulation) -> Iterator[dict[str, float]]:
    """Where the time goes; waits for the device around every part, so the sum is a little more than the run."""
    times: dict[str, float] = defaultdict(float)

    def watched(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            _wait()
            begun = time.perf_counter()
            try:
                return work(*args, **options)
            finally:
                _wait()
                times[name] += time.perf_counter() - begun

        return timed

    parts: list[tuple[Any, str, str]] = [
        (simulation.engines.trainer, "train", "training of clients"),
        (simulation.engines.pretrainer, "train", "pre-training"),
        (simulation.algorithm, "server_update", "server steps, one by one"),
        (simulation.losses, "on_proxy_sets", "proxy losses of whole stacks"),
        (simulation.scoring, "_scores", "scores of clients"),
        (simulation.scoring, "_cluster_scores", "scores of clusters"),
        (Rows, "load", "  loading stacks"),
        (simulation, "_prepare", "drawing data and receiving replies"),
    ]
    originals = [getattr(owner, method) for owner, method, _ in parts]
    for (owner, method, name), original in zip(parts, originals, strict=True):
        setattr(owner, method, watched(name, original))
    begun = time.perf_counter()
    try:
        yield times
    finally:
        _wait()
        times["everything"] = time.perf_counter() - begun
        inner = sum(seconds for name, seconds in times.items() if name.startswith("  "))
        times["everything else"] = 2 * times["everything"] + inner - sum(times.values())
        for (owner, method, _), original in zip(parts, originals, strict=True):
            setattr(owner, method, original)


def store(path: Path, case: dict[str, Any]) -> None:
    """Add a case to a result file."""
    cases = json.loads(path.read_text()) if path.exists() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*cases, case], indent=1) + "\n")


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
