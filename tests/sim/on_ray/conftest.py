import pytest

from benchmarks.ray_cluster import RayCluster


@pytest.fixture(scope="session")
def cluster():
    """A head and a second node, with two cores each."""
    with RayCluster(2, 2) as made:
        yield made
