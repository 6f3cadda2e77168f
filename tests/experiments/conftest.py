import pytest

from cdfl import algorithms


@pytest.fixture(autouse=True)
def _own_algorithms(monkeypatch):
    """What a test registers is gone afterwards."""
    monkeypatch.setattr(algorithms, "ALGORITHMS", dict(algorithms.ALGORITHMS))
