"""Split the samples of K clusters between server and clients, and draw each client's data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from cdfl.data.clusters import Cluster
from cdfl.data.drift import Drift, apportion, checked_counts
from cdfl.data.errors import DataError
from cdfl.data.randomness import generator
from cdfl.data.split import Sizes, half_sizes, split_dataset
from cdfl.data.transforms import to_input


@dataclass(frozen=True, eq=False)
class Samples:
    """References to samples, sorted by cluster; `Federation.fetch` returns the inputs and targets."""

    split: str  # "pretraining", "train", "proxy" or "test"
    cluster: np.ndarray  # int64 (n,)
    index: np.ndarray  # int64 (n,), position inside that cluster's split

    def __len__(self) -> int:
        return len(self.cluster)

    def at(self, places: np.ndarray) -> Samples:
        """Return some of these samples."""
        return Samples(self.split, self.cluster[places], self.index[places])


@dataclass(frozen=True, eq=False)
class Draw:
    """What a client holds between two uploads."""

    train: Samples
    test: Samples  # other samples, the same mixture
    true_mixture: np.ndarray  # float64 (K,), share of each cluster among the training samples


class Federation:
    """K clusters of samples, split between server and clients.

    With `validation`, clients are scored on samples that no other run is scored on (see `split_dataset`). Without
    `sizes`, they follow the number of samples.

    >>> from cdfl.scenarios import load_scenario
    >>> federation = load_scenario("digits-4").federation(seed=0)
    >>> draw = federation.draw(client=6, update=0)
    >>> images, labels = federation.fetch(draw.train)
    >>> images.dtype, tuple(images.shape)[1:], len(labels) == len(draw.train)
    (torch.uint8, (1, 8, 8), True)
    >>> int(draw.true_mixture.argmax()), float(draw.true_mixture.sum())
    (2, 1.0)
    """

    def __init__(
        self,
        clusters: Sequence[Cluster],
        drift: Drift,
        sizes: Sizes | None = None,
        seed: int = 0,
        *,
        validation: bool = False,
        clients: bool = True,
    ) -> None:
        if not clusters:
            raise DataError("a federation needs at least one cluster, got none")
        _check_alike(clusters)
        datasets = [cluster.dataset for cluster in clusters]
        self.clusters = tuple(clusters)
        self.drift = drift
        self.sizes = sizes or Sizes.fitting(*half_sizes(datasets, validation=validation))
        self.seed = seed
        self.validation = validation
        self.clients = clients
        self.num_clusters = len(clusters)
        classes = [dataset.num_classes for dataset in datasets if dataset.num_classes is not None]
        self.num_classes = max(classes) if len(classes) == len(datasets) else None
        self.is_image = datasets[0].is_image
        self.input_shape = datasets[0].input_shape
        self.target_shape = datasets[0].target_shape
        self.device = datasets[0].device
        checked_counts(drift, seed, 0, 0, self.sizes.high, len(clusters))  # raises before any work is done
        self.splits = [
            split_dataset(dataset, self.sizes, seed, validation=validation, clients=clients) for dataset in datasets
        ]

    @property
    def num_outputs(self) -> int:
        """The number of classes, or of the numbers in a target."""
        return prod(self.target_shape) if self.num_classes is None else self.num_classes

    @property
    def names(self) -> list[str]:
        """The names of the clusters."""
        return [cluster.name for cluster in self.clusters]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of results should know about these data, e.g. server sets smaller than requested."""
        read = [note for cluster in self.clusters for note in cluster.dataset.notes]
        return tuple(dict.fromkeys([*read, *(note for split in self.splits for note in split.notes)]))

    @property
    def num_bytes(self) -> int:
        """Bytes of the inputs held in memory; clusters that share them count once."""
        datasets = {id(cluster.dataset): cluster.dataset for cluster in self.clusters}.values()
        return sum(data.train_inputs.nbytes + data.test_inputs.nbytes for data in datasets)

    def draw(self, client: int, update: int) -> Draw:
        """Draw what `client` holds after its `update`-th upload: a pure function of (seed, client, update).

        Any client number works; an unused one is a new client.
        """
        rng = generator(self.seed, "draw", client, update)
        size = int(rng.integers(self.sizes.low, self.sizes.high, endpoint=True))
        counts = checked_counts(self.drift, self.seed, client, update, size, self.num_clusters)
        mixture = counts / size
        return Draw(
            train=self._sample(rng, "train", counts),
            test=self._sample(rng, "test", apportion(self.sizes.test, mixture)),
            true_mixture=mixture,
        )

    def fetch(self, samples: Samples) -> tuple[Tensor, Tensor]:
        """Gather inputs and targets as they are stored, in the order of `samples`."""
        like, target = self.clusters[0].dataset.half("train")
        inputs = torch.empty((len(samples), *self.input_shape), dtype=like.dtype, device=self.device)
        targets = torch.empty((len(samples), *self.target_shape), dtype=target.dtype, device=self.device)
        for k in np.unique(samples.cluster):
            where = np.flatnonzero(samples.cluster == k)
            split = self.splits[k]
            picked = split.part(samples.split)[samples.index[where]]
            found = self.clusters[k].take(split.half(samples.split), torch.from_numpy(picked).to(self.device))
            if where[-1] - where[0] + 1 == len(where):  # contiguous, as in every draw: no scatter needed
                inputs[where[0] : where[-1] + 1], targets[where[0] : where[-1] + 1] = found
            else:
                at = torch.from_numpy(where).to(self.device)
                inputs[at], targets[at] = found
        return inputs, targets

    def ready(self, samples: Samples, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Gather inputs and targets for the network: pixels scaled to [-1, 1], other numbers as `dtype`."""
        inputs, targets = self.fetch(samples)
        return to_input(inputs, dtype), targets.to(dtype) if targets.is_floating_point() else targets

    def dtypes(self, dtype: torch.dtype) -> tuple[torch.dtype, torch.dtype]:
        """Return the types of the inputs and targets that `ready` gives."""
        inputs, targets = self.clusters[0].dataset.half("train")
        return (
            torch.int64 if inputs.dtype == torch.int64 else dtype,
            dtype if targets.is_floating_point() else torch.int64,
        )

    def pretraining(self, cluster: int) -> tuple[Tensor, Tensor]:
        """Return the samples on which the server pre-trains a cluster."""
        return self.fetch(self.all_samples("pretraining", cluster))

    def proxy(self, cluster: int) -> tuple[Tensor, Tensor]:
        """Return the samples with which the server recognises a cluster (D_k in the paper)."""
        return self.fetch(self.all_samples("proxy", cluster))

    def test(self, cluster: int) -> tuple[Tensor, Tensor]:
        """Return all samples of a cluster from which clients' test sets are drawn."""
        return self.fetch(self.all_samples("test", cluster))

    def to(self, device: torch.device | str) -> Federation:
        """Copy the samples to another device; every draw and every number stay the same."""
        held = {id(cluster.dataset): cluster.dataset for cluster in self.clusters}
        moved = {key: dataset.to(device) for key, dataset in held.items()}  # copies shared inputs once
        clusters = [cluster.on(moved[id(cluster.dataset)]) for cluster in self.clusters]
        return self._with(clusters, self.seed)

    def reseeded(self, seed: int) -> Federation:
        """Return a federation of the same samples in memory, split and drawn with another seed."""
        return self._with(self.clusters, seed)

    def _with(self, clusters: Sequence[Cluster], seed: int) -> Federation:
        return Federation(clusters, self.drift, self.sizes, seed, validation=self.validation, clients=self.clients)

    def all_samples(self, split: str, cluster: int) -> Samples:
        """Return references to all samples of one split of a cluster."""
        index = np.arange(len(self.splits[cluster].part(split)))
        return Samples(split, np.full_like(index, cluster), index)

    def _sample(self, rng: np.random.Generator, split: str, counts: np.ndarray) -> Samples:
        index = [
            # With replacement only if a cluster has fewer samples than the client needs.
            rng.choice(available, count, replace=bool(count > available))
            for count, available in zip(counts, (len(s.part(split)) for s in self.splits), strict=True)
        ]
        return Samples(split, np.repeat(np.arange(len(counts)), counts), np.concatenate(index))


def _check_alike(clusters: Sequence[Cluster]) -> None:
    """Raise DataError if the clusters differ in the shape or type of their samples."""
    datasets = [cluster.dataset for cluster in clusters]
    if all(dataset.is_image for dataset in datasets):
        shapes = {dataset.input_shape for dataset in datasets}
        if len(shapes) > 1:
            raise DataError(
                f"the clusters have images of different sizes {sorted(shapes)} (C, H, W); resize them to one"
            )
    first = clusters[0]
    for cluster in clusters[1:]:
        for what, one, other in zip(
            ("inputs", "targets"), first.dataset.half("train"), cluster.dataset.half("train"), strict=True
        ):
            if (one.shape[1:], one.dtype) != (other.shape[1:], other.dtype):
                raise DataError(
                    f"cluster {cluster.name!r} has {what} {list(other.shape[1:])} ({other.dtype}) and cluster "
                    f"{first.name!r} {list(one.shape[1:])} ({one.dtype}); expected one shape and type in all clusters"
                )
