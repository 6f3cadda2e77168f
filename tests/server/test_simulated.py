"""Interleavings of the whole service, by seed. CDFL_SEEDS=1000 runs more of them."""

import os

import pytest

from cdfl.server import store as store_module

from .simulated import simulate

pytestmark = pytest.mark.slow
SEEDS = int(os.environ.get("CDFL_SEEDS", "12"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_everything_holds(tmp_path, seed):
    simulate(tmp_path, seed)


def test_a_seed_replays(tmp_path):
    one, other = (simulate(tmp_path / name, seed=3) for name in ("one", "other"))
    assert one.trace == other.trace
    assert one.acknowledged == other.acknowledged
    assert len(one.acknowledged) > 5


def test_it_finds_a_forgotten_client_that_a_queued_upload_brings_back(tmp_path, monkeypatch):
    """With claims unchecked at commit, as they once were."""
    monkeypatch.setattr(store_module, "_check_claims", lambda connection, claims: None)

    def run_all():
        for seed in range(40):
            simulate(tmp_path / str(seed), seed)

    with pytest.raises(AssertionError, match=r"withdrawn|forgotten"):
        run_all()
