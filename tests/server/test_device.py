"""A server that evaluates on a GPU, held to one on the CPU. Where there is no GPU, the CPU is held to itself."""

import hashlib

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cdfl import wire
from cdfl.core import Settings
from cdfl.data import Dataset, Datasets, Sizes
from cdfl.problems import Problem, ProblemInstance
from cdfl.server.engine import Engine
from cdfl.server.store import Store
from cdfl.server.store_records import Claim, Retention
from cdfl.server.submission import Submission
from cdfl.server.upload_losses import Evaluators
from cdfl.server.verify import verify

from .toy import keep, same_state

gpu = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"))
DEVICES = pytest.mark.parametrize("device", ["cpu", gpu])
KEEP_ALL = Retention(keep_snapshots=100, keep_uploads=True)
BOUND = 1e-3  # by which mixtures, rates and models of the two may differ: losses are rounded otherwise on a GPU
UPLOADS = 16
OLD = "old"  # a client whose upload is too old
POISON = (3, 13)  # uploads a thousand times too large: before anything is usual, and after


@pytest.fixture(autouse=True)
def full_precision(monkeypatch):
    """Convolutions round to 10 bits on a GPU unless told otherwise."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def small_instance(device: str = "cpu") -> ProblemInstance:
    """Three clusters of images with a bright row, labelled by where it is; each cluster counts from another one."""
    random = torch.Generator().manual_seed(0)

    def images(cluster: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.arange(count) % 6
        inputs = torch.randn(count, 1, 6, 6, generator=random)
        inputs[torch.arange(count), 0, rows] += 1
        return inputs, (rows + 2 * cluster) % 6

    torch.manual_seed(0)
    head = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
    proxy, pretraining = ([images(cluster, count) for cluster in range(3)] for count in (30, 60))
    pairs = zip(pretraining, proxy, strict=True)
    problem = Problem(
        model=nn.Sequential(*head, nn.Flatten(), nn.Linear(64, 6)),
        loss=cross_entropy,
        clusters=Datasets(tuple(Dataset(f"{number}", *one, *two, 6) for number, (one, two) in enumerate(pairs))),
        sizes=Sizes(pretraining=60, proxy=30),
        settings=Settings(
            shared_epochs=5, separate_epochs=5, batch_size=20, learning_rate=0.01, guard=True, max_staleness=9
        ),
    )
    return ProblemInstance.of(problem, device=device)


LAYOUT = small_instance().layout


@pytest.fixture(scope="module")
def start():
    return small_instance().initial_state()


def trained(given: torch.Tensor, start, number: int) -> torch.Tensor:
    """What client `number` makes of the model it was given: something nearer to a cluster, or something absurd."""
    noise = 0.003 * torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(number))
    noise[LAYOUT.num_parameters :] = 0  # a variance must not become negative
    model = given + 0.3 * (start.cluster_models[number % 3] - given) + noise
    model[: LAYOUT.num_parameters] *= 1000 if number in POISON else 1
    return model


def open_engine(store: Store, instance: ProblemInstance, start) -> Engine:
    """As `cdfl serve` does, without what the web needs."""
    recovered = store.recover()
    if recovered is None:
        store.begin(start, instance.layout, instance.settings)
    state = start if recovered is None else recovered.state
    return Engine(
        state,
        instance.layout,
        instance.settings,
        store,
        Evaluators(instance.evaluator(), instance.evaluator()),
        snapshot_every=1000,
    )


def exchange(engine: Engine, client_id: str, number: int, start) -> wire.ReplyHead:
    """Join or refresh, "train", upload."""
    given = engine.join(Claim(client_id))
    received = wire.decode_model(b"".join(given.body), LAYOUT)
    model, base_epoch = trained(received, start, number), 0 if client_id == OLD else given.head.epoch
    body = wire.encode_model(model, LAYOUT)
    upload, digest = keep(engine.store, body), hashlib.sha256(body).hexdigest()
    claim = Claim(client_id, since=engine.store.client(client_id).since)
    waiting = Submission(client_id, f"key-{number}", base_epoch, digest, model, upload, claim)
    return engine.submit(waiting).result(60).head


def run_twice(folder, device: str, start):
    """Half of the uploads, a restart without a snapshot, the other half: what was answered, and the last state."""
    heads, ends = [], []
    for half in (range(UPLOADS // 2), range(UPLOADS // 2, UPLOADS)):
        instance = small_instance(device)
        with Store.open(folder, retention=KEEP_ALL) as store:
            engine = open_engine(store, instance, start)
            if ends:
                assert same_state(engine.state, ends[-1])  # what the journal gives, on the CPU
            for number in half:
                client_id = OLD if number == UPLOADS - 1 else f"client-{number % 5}"
                heads.append(exchange(engine, client_id, number, start))
            ends.append(engine.state)
            engine.maintenance.finish = lambda state: None
            engine.close()
            found = verify(store)
            assert (found.entries, found.findings) == (len(heads), [])
    return heads, ends[-1]


@DEVICES
def test_an_engine_and_its_journal(tmp_path, device, start):
    """The clusters lie in the memory of the host, so a restart and `cdfl verify` get every bit without a GPU."""
    heads, end = run_twice(tmp_path / "here", device, start)
    expected, expected_end = run_twice(tmp_path / "cpu", "cpu", start)
    assert [head.outcome for head in heads] == [head.outcome for head in expected]
    assert [head.outcome for head in heads] == ["applied"] * (UPLOADS - 1) + ["deprecated"]
    for here, there in zip(heads, expected, strict=True):
        assert torch.tensor(here.mixture).sub(torch.tensor(there.mixture)).abs().max() < BOUND
        assert torch.tensor(here.rates).sub(torch.tensor(there.rates)).abs().max() < BOUND
    assert (end.cluster_models - expected_end.cluster_models).abs().max() < BOUND
    assert (end.cluster_losses - expected_end.cluster_losses).abs().max() < BOUND
    assert (end.cluster_models - start.cluster_models).abs().max() > 10 * BOUND  # or nothing was compared


@DEVICES
def test_pretraining(device, start):
    """Training amplifies rounding: that the clusters are as good is what can be asked."""
    there = small_instance(device).initial_state()
    assert there.cluster_models.device.type == "cpu"
    assert (there.cluster_losses - start.cluster_losses).abs().max() < 0.2
    assert there.cluster_losses.max() < 1.5  # of a guess it is 1.8


@DEVICES
def test_a_server(tmp_path, device):
    """The same over HTTP: pre-training, exchanges, a restart, and the journal run again."""
    for needed in ("fastapi", "uvicorn", "httptools", "httpx"):
        pytest.importorskip(needed)
    from .live import Live

    with Live(tmp_path, small_instance(device), retention=KEEP_ALL) as server:
        start = server.engine.state
        for number in range(UPLOADS):
            given = server.model(f"client-{number % 5}")
            epoch, model = int(given.headers[wire.EPOCH]), wire.decode_model(given.content, LAYOUT)
            body = wire.encode_model(trained(model, start, number), LAYOUT)
            response = server.update(body, f"client-{number % 5}", epoch, key=f"key-{number}")
            assert response.status_code == 200, response.text
            outcome = wire.ReplyHead.from_headers(response.headers).outcome
            last = server.store.client(f"client-{number % 5}").last
            assert number not in POISON or outcome == "rejected" or last.verdict.bounds[0] < 1
        end = server.engine.state
        assert end.epoch > UPLOADS / 2
        assert verify(server.store).findings == []
        server.engine.maintenance.finish = lambda state: None
    with Live(tmp_path, small_instance(device)) as server:
        assert same_state(server.engine.state, end)
        again = server.update(body, f"client-{(UPLOADS - 1) % 5}", epoch, key=f"key-{UPLOADS - 1}")
        assert again.content == response.content
