"""Time one training of a text client in a stack, against a plain PyTorch loop.

Claim: clients with recurrent and attending networks train in stacks, too, and faster than one after the other.

The plain loop is what people write: torch.nn.GRU, or torch.nn.TransformerEncoder, one client after the other, Adam.
Both train 16 clients on the same windows of text, for as many steps. Pairs are interleaved; the result is the median of
the ratios. Results are appended to benchmarks/results/sequences.json. On a GPU, with the handbook in a folder DATA:

    python -m benchmarks.sequences --device cuda --data-dir DATA
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.result_files import RESULTS, machine, read
from cdfl.core import flatten
from cdfl.core.batches import batch_plan
from cdfl.scenarios import load_scenario
from cdfl.sim.cuda_client_stack import tensor_cores
from cdfl.sim.engine import Training
from cdfl.sim.engine_choice import make_engines
from cdfl.sim.scenario_instance import ScenarioInstance

SCENARIOS = {"gru": "handbook-4", "transformer": "handbook-4-transformer"}
WINDOWS = 96  # of each client


class PlainGRU(nn.Module):
    """torch's own GRU, of the same size."""

    def __init__(self, num_tokens: int, places: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, 32)
        self.gru = nn.GRU(32, 64, batch_first=True)
        self.last = nn.Linear(64, num_tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores (n, T, tokens)."""
        scores: Tensor = self.last(self.gru(self.embedding(tokens))[0])
        return scores


class PlainTransformer(nn.Module):
    """torch's own encoder with a causal mask, of the same size."""

    def __init__(self, num_tokens: int, places: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, 32)
        self.places = nn.Parameter(0.02 * torch.randn(places, 32))
        layer = nn.TransformerEncoderLayer(
            32, 4, 128, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(32), enable_nested_tensor=False)
        self.last = nn.Linear(32, num_tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores (n, T, tokens)."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        scores: Tensor = self.last(self.encoder(self.embedding(tokens) + self.places, mask=mask, is_causal=True))
        return scores


PLAIN: dict[str, Callable[[int, int], nn.Module]] = {"gru": PlainGRU, "transformer": PlainTransformer}


def main() -> None:
    """Measure both networks and store the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--clients", type=int, default=16, help="clients in a stack")
    parser.add_argument("--pairs", type=int, default=7, help="interleaved pairs")
    parser.add_argument("--passes", type=int, default=2, help="passes of a client over its windows")
    parser.add_argument("--models", default="gru,transformer", help="separated by commas")
    parser.add_argument("--data-dir", type=Path, help="folder that holds handbook/; default: $CDFL_DATA")
    parser.add_argument("--out", type=Path, default=RESULTS / "sequences.json", help="result file")
    args = parser.parse_args()
    for model in args.models.split(","):
        found = measure(model, args.device, args.clients, args.pairs, args.passes, args.data_dir)
        print(
            f"{model} on {args.device}: plain {found['plain_ms']:.1f} ms a client, in a stack "
            f"{found['stack_ms']:.1f} ms: {found['ratio']:.2f}x ({found['lowest']:.2f} to {found['highest']:.2f})",
            flush=True,
        )
        cases = json.loads(args.out.read_text()) if args.out.exists() else []
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps([*cases, found], indent=1) + "\n", encoding="utf-8")


def measure(model: str, device: str, clients: int, pairs: int, passes: int, data_dir: Path | None) -> dict[str, Any]:
    """Train the same clients both ways, several times."""
    scenario = load_scenario(SCENARIOS[model])
    settings = scenario.all_settings.replace(local_epochs=passes)
    instance = ScenarioInstance(scenario, scenario.federation(0, data_dir).to(device), settings)
    trainings = [_training(instance, client) for client in range(clients)]
    precision: Any = "tf32" if device.startswith("cuda") else "float32"
    stack = make_engines(instance, precision=precision, width=clients).trainer
    shape, outputs = instance.federation.input_shape, instance.federation.num_outputs
    networks = [PLAIN[model](outputs, shape[0]).to(device) for _ in range(clients)]
    data = [instance.inputs(training.samples) for training in trainings]
    plans = [training.plan.to(device) for training in trainings]

    def plain() -> None:
        with tensor_cores(precision):
            for network, (inputs, targets), plan in zip(networks, data, plans, strict=True):
                _train(network, inputs, targets, plan, settings.training.learning_rate)

    def stacked() -> None:
        stack.train(trainings)

    plain()
    stacked()
    times = [(_seconds(plain, device), _seconds(stacked, device)) for _ in range(pairs)]
    ratios = [one / other for one, other in times]
    return {
        "model": model,
        "device": device,
        "precision": precision,
        "clients": clients,
        "windows": WINDOWS,
        "steps": len(plans[0]),
        "batch_size": settings.training.batch_size,
        "threads": torch.get_num_threads(),
        "plain_ms": 1e3 * median(one for one, _ in times) / clients,
        "stack_ms": 1e3 * median(other for _, other in times) / clients,
        "ratio": median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "machine": machine(),
    }


def _training(instance: ScenarioInstance, client: int) -> Training:
    """One client's training on a fixed number of windows of its main language."""
    samples = instance.federation.all_samples("train", client % instance.federation.num_clusters)
    chosen = slice(client * WINDOWS, (client + 1) * WINDOWS)
    own = type(samples)(samples.split, samples.cluster[chosen], samples.index[chosen])
    training = instance.settings.training
    plan = batch_plan(WINDOWS, training.batch_size, training.local_epochs, torch.Generator().manual_seed(client))
    return Training(instance.federation, own, flatten(instance.model), plan, 0)


def _train(network: nn.Module, inputs: Tensor, targets: Tensor, plan: Tensor, rate: float) -> None:
    """Train one client, as people write it."""
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    for batch in plan:
        optimizer.zero_grad()
        scores = network(inputs[batch])
        cross_entropy(scores.flatten(0, 1), targets[batch].flatten()).backward()
        optimizer.step()


def _seconds(work: Callable[[], None], device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def table() -> str:
    """Return the ratios of all cases."""
    rows = ["| network | device | plain loop, a client | in a stack | faster by |", "|---|---|---|---|---|"]
    cases = read("sequences", [])
    if not cases:
        return "Not measured yet.\n"
    for case in cases:
        on = case["machine"]
        where = on["gpu"] if case["device"].startswith("cuda") else f"{on['cpu']}, {case['threads']} thread"
        spread = f"{case['lowest']:.1f} to {case['highest']:.1f}"
        rows.append(
            f"| {case['model']}, {case['clients']} clients, {case['steps']} steps of {case['batch_size']} | {where} "
            f"| {case['plain_ms']:.0f} ms | {case['stack_ms']:.0f} ms | **{case['ratio']:.1f}x** ({spread}) |"
        )
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
