"""Interleavings of the whole service, by seed. `make test-long` runs more of them; CDFL_SEEDS says how many."""

import gc
import os

import pytest

from cdfl.server import store as store_module

from .simulated import simulate

pytestmark = pytest.mark.slow
MANY = int(os.environ.get("CDFL_SEEDS", "40"))


@pytest.mark.parametrize("seed", range(4))
def test_everything_holds(tmp_path, seed):
    simulate(tmp_path, seed)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # servers that died left files open
def test_everything_holds_for_many_seeds(tmp_path):
    for seed in range(4, MANY):
        simulate(tmp_path / str(seed), seed)
    gc.collect()


def test_a_seed_replays(tmp_path):
    one, other = (simulate(tmp_path / name / "store", seed=3, steps=250) for name in ("one", "other"))
    assert one.trace == other.trace
    assert one.disk.log == other.disk.log
    assert one.acknowledged.keys() == other.acknowledged.keys()
    assert one.acknowledged


def test_it_finds_a_withdrawn_client_that_a_queued_upload_brings_back(tmp_path, monkeypatch):
    """With claims unchecked at commit, as they once were."""
    monkeypatch.setattr(store_module, "_check_claims", lambda connection, claims: None)

    def run_some():
        for seed in range(20):
            simulate(tmp_path / str(seed), seed)

    with pytest.raises(AssertionError, match=r"withdrawn|forgotten"):
        run_some()
