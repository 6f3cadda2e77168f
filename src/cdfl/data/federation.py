"""Split the images of K clusters between server and clients, and draw each client's data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cdfl.data.clusters import Cluster
from cdfl.data.drift import Drift, apportion, checked_counts
from cdfl.data.errors import DataError
from cdfl.data.randomness import generator
from cdfl.data.split import HALF_OF, Sizes, split_dataset


@dataclass(frozen=True, eq=False)
class Samples:
    """References to images, sorted by cluster; `Federation.fetch` returns the images."""

    split: str  # "pretraining", "train", "proxy" or "test"
    cluster: np.ndarray  # int64 (n,)
    index: np.ndarray  # int64 (n,), position inside that cluster's split

    def __len__(self) -> int:
        return len(self.cluster)


@dataclass(frozen=True, eq=False)
class Draw:
    """What a client holds between two uploads."""

    train: Samples
    test: Samples  # other images, the same mixture
    true_mixture: np.ndarray  # float64 (K,), share of each cluster among the training samples


class Federation:
    """K clusters of real images, split between server and clients.

    >>> from cdfl.scenarios import load_scenario
    >>> federation = load_scenario("digits-4").federation(seed=0)
    >>> draw = federation.draw(client=6, update=0)
    >>> images, labels = federation.fetch(draw.train)
    >>> images.dtype, tuple(images.shape)[1:], len(labels) == len(draw.train)
    (torch.uint8, (1, 8, 8), True)
    >>> int(draw.true_mixture.argmax()), float(draw.true_mixture.sum())
    (2, 1.0)
    """

    def __init__(self, clusters: Sequence[Cluster], drift: Drift, sizes: Sizes, seed: int = 0) -> None:
        if not clusters:
            raise DataError("a federation needs at least one cluster, got none")
        shapes = {cluster.dataset.input_shape for cluster in clusters}
        if len(shapes) > 1:
            raise DataError(
                f"the clusters have images of different sizes {sorted(shapes)} (C, H, W); resize them to one"
            )
        self.clusters = tuple(clusters)
        self.drift = drift
        self.sizes = sizes
        self.seed = seed
        self.num_clusters = len(clusters)
        self.num_classes = max(cluster.dataset.num_classes for cluster in clusters)
        self.input_shape = clusters[0].dataset.input_shape
        self.device = clusters[0].dataset.train_images.device
        checked_counts(drift, seed, 0, 0, sizes.high, len(clusters))  # raises before any work is done
        self.splits = [split_dataset(cluster.dataset, sizes, seed) for cluster in clusters]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of results should know about these data, e.g. server sets smaller than requested."""
        read = [note for cluster in self.clusters for note in cluster.dataset.notes]
        return tuple(dict.fromkeys([*read, *(note for split in self.splits for note in split.notes)]))

    @property
    def num_bytes(self) -> int:
        """Bytes of the images held in memory; clusters that share images count once."""
        datasets = {id(cluster.dataset): cluster.dataset for cluster in self.clusters}.values()
        return sum(data.train_images.nbytes + data.test_images.nbytes for data in datasets)

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
        """Gather the images, uint8 `(n, C, H, W)`, and labels, int64 `(n,)`, in the order of `samples`."""
        images = torch.empty((len(samples), *self.input_shape), dtype=torch.uint8, device=self.device)
        labels = torch.empty(len(samples), dtype=torch.int64, device=self.device)
        for k in np.unique(samples.cluster):
            where = np.flatnonzero(samples.cluster == k)
            picked = self.splits[k].part(samples.split)[samples.index[where]]
            found = self.clusters[k].take(HALF_OF[samples.split], torch.from_numpy(picked).to(self.device))
            if where[-1] - where[0] + 1 == len(where):  # contiguous, as in every draw: no scatter needed
                images[where[0] : where[-1] + 1], labels[where[0] : where[-1] + 1] = found
            else:
                at = torch.from_numpy(where).to(self.device)
                images[at], labels[at] = found
        return images, labels

    def pretraining(self, cluster: int) -> tuple[Tensor, Tensor]:
        """Return the images on which the server pre-trains a cluster."""
        return self.fetch(self.all_samples("pretraining", cluster))

    def proxy(self, cluster: int) -> tuple[Tensor, Tensor]:
        """Return the images with which the server recognises a cluster (D_k in the paper)."""
        return self.fetch(self.all_samples("proxy", cluster))

    def test(self, cluster: int) -> tuple[Tensor, Tensor]:
        """Return all images of a cluster from which clients' test sets are drawn."""
        return self.fetch(self.all_samples("test", cluster))

    def to(self, device: torch.device | str) -> Federation:
        """Copy the images to another device; every draw and every pixel stay the same."""
        held = {id(cluster.dataset): cluster.dataset for cluster in self.clusters}
        moved = {key: dataset.to(device) for key, dataset in held.items()}  # copies shared images once
        clusters = [cluster.on(moved[id(cluster.dataset)]) for cluster in self.clusters]
        return Federation(clusters, self.drift, self.sizes, self.seed)

    def reseeded(self, seed: int) -> Federation:
        """Return a federation of the same images in memory, split and drawn with another seed."""
        return Federation(self.clusters, self.drift, self.sizes, seed)

    def all_samples(self, split: str, cluster: int) -> Samples:
        """Return references to all images of one split of a cluster."""
        index = np.arange(len(self.splits[cluster].part(split)))
        return Samples(split, np.full_like(index, cluster), index)

    def _sample(self, rng: np.random.Generator, split: str, counts: np.ndarray) -> Samples:
        index = [
            # With replacement only if a cluster has fewer images than the client needs.
            rng.choice(available, count, replace=bool(count > available))
            for count, available in zip(counts, (len(s.part(split)) for s in self.splits), strict=True)
        ]
        return Samples(split, np.repeat(np.arange(len(counts)), counts), np.concatenate(index))
