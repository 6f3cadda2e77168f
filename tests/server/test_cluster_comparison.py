import torch

from cdfl.core import ServerState
from cdfl.server.cluster_comparison import Matrices


class Proxies:
    """The loss of a model on set j is how far its first number is from j."""

    def __init__(self):
        self.asked = 0

    def of_each(self, vectors):
        self.asked += 1
        return (torch.stack(list(vectors))[:, :1] - torch.arange(2.0)).abs()


def state(epoch, *models):
    values = torch.tensor(models)
    return ServerState(values, torch.zeros(2), torch.zeros(2, dtype=torch.int64), epoch, num_parameters=2)


def test_how_clusters_compare_worked_by_hand():
    found = Matrices(Proxies()).of(state(7, [0.0, 0.0, 9.0], [3.0, 4.0, 5.0]))
    assert found.epoch == 7
    assert found.losses == [[0.0, 1.0], [3.0, 2.0]]
    assert found.distances == [[0.0, 5.0], [5.0, 0.0]]  # statistics, the third number, do not count


def test_many_watchers_cost_one_comparison():
    now = [0.0]
    proxies = Proxies()
    matrices = Matrices(proxies, clock=lambda: now[0])
    for epoch in range(50):
        assert matrices.of(state(epoch, [0.0, 0.0], [1.0, 1.0])).epoch == 0
    assert proxies.asked == 1
    now[0] = 6.0
    assert matrices.of(state(50, [0.0, 0.0], [1.0, 1.0])).epoch == 50
    now[0] = 60.0
    matrices.of(state(50, [0.0, 0.0], [1.0, 1.0]))  # nothing has changed
    assert proxies.asked == 2
