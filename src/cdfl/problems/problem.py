"""What is to be learned: a network, a loss, metrics, and the data of each cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from torch import nn
from torch.nn.functional import cross_entropy

from cdfl.argument_checks import did_you_mean
from cdfl.core import DEFAULT, Loss, Settings
from cdfl.core.batches import described
from cdfl.data import Clusters, Datasets, Drift, Federation, PaperDrift, Sizes, load_source
from cdfl.data.user_data import Data, clusters_of
from cdfl.json_values import jsonable
from cdfl.metrics import Metric, find_metrics
from cdfl.models import MODELS, MakeModel
from cdfl.upload_policies import Policy, check_policy
from cdfl.user_code import SetupError

NAME = re.compile(r"(?!\.{1,2}\Z)[^/\\:\x00-\x1f\x7f]+")  # one valid part of a path
NOT_STORED = ("place", "stream")  # fields that a run's config does not hold

Stream = Callable[[str], Iterable[Any]]  # client_id -> fresh data, turn by turn


@dataclass(frozen=True, kw_only=True, repr=False)
class Problem:
    """What is to be learned. The simulator, the server and the client take the same description.

    Args:
        model: A `torch.nn.Module`, whose weights pre-training begins with; a function without arguments, or of
            (input_shape, num_outputs), that makes one; or a name of `cdfl.models`.
        clusters: For each cluster its data, by name or in a list: a pair (inputs, targets) of tensors or arrays, or a
            torch `Dataset`. Or a recipe: `cdfl.Table`, `cdfl.Texts`, `cdfl.Windows`, `cdfl.data.Rotations`, ... Or a
            function that returns any of these, called when the data are needed. A client needs none.
        loss: A function of (outputs, targets) that returns one number for a batch.
        metrics: What runs are scored by: names or `cdfl.Metric`; the first is the main one. Default: by the loss.
        settings: `cdfl.Settings`, or some of them by name.
        sizes: How the samples are divided. Default: by their number.
        drift: How the mixtures of simulated clients change.
        name: Of folders and pictures.
        router: Tells clusters apart by their inputs: a module or a function that makes one, which maps inputs to one
            number for each cluster. Default: a small network for pictures, text or numbers.
        policy: When a client uploads. Default: at every turn.
        stream: For `cdfl join --watch`: a function that yields fresh data of the client with this name. Default: the
            data of a simulated client.
        place: The file it is from, for error messages.

    """

    model: str | nn.Module | MakeModel | Callable[[], nn.Module]
    clusters: Clusters | Mapping[str, Data] | Sequence[Data] | Callable[[], Any] | None = None
    loss: Loss = cross_entropy
    metrics: Sequence[str | Metric] = ()
    settings: Settings | Mapping[str, Any] = field(default_factory=dict)
    sizes: Sizes | None = None
    drift: Drift = field(default_factory=PaperDrift)
    name: str = "problem"
    router: nn.Module | Callable[[], nn.Module] | None = None
    policy: Policy | None = None
    stream: Stream | None = None
    place: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Refuse values of a wrong kind; `ProblemInstance.check` finds the rest."""
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise ValueError(
                f"a problem has the name {self.name!r}, but files and folders are named after it; set "
                'name = "..." to words without / \\ : and control characters, not . or ..'
            )
        self._check_model()
        if isinstance(self.loss, type):
            name = self.loss.__name__
            raise self.mistake(f"`loss` is the class {name}; expected a function of (outputs, targets): {name}()")
        if not callable(self.loss):
            raise self.mistake(f"`loss` is {described(self.loss)}; expected a function of (outputs, targets)")
        if not isinstance(self.settings, Settings | Mapping):
            raise self.mistake(f"`settings` is {described(self.settings)}; expected cdfl.Settings, or some by name")
        if not isinstance(self.sizes, Sizes | None):
            raise self.mistake(f"`sizes` is {described(self.sizes)}; expected cdfl.Sizes(...)")
        if isinstance(self.drift, type) or not callable(getattr(self.drift, "counts", None)):
            raise self.mistake(
                f"`drift` is {self.drift!r}; expected an object with counts(seed, client, update, size, num_clusters)"
            )
        if self.router is not None and not callable(self.router):
            raise self.mistake(
                f"`router` is {described(self.router)}; expected a torch.nn.Module, or a function that returns one"
            )
        if self.stream is not None and not callable(self.stream):
            raise self.mistake(
                f"`stream` is {described(self.stream)}; expected a function: client_id -> iterable of fresh data"
            )
        if self.policy is not None:
            check_policy(self.policy, f"{self.place}: `policy`" if self.place else "`policy`")
        object.__setattr__(self, "metrics", find_metrics(self.metrics, self.loss))
        if not callable(self.clusters) and self.clusters is not None:
            object.__setattr__(self, "clusters", clusters_of(self.clusters))

    def _check_model(self) -> None:
        if isinstance(self.model, str):
            if self.model not in MODELS:
                raise self.mistake(
                    f"there is no model {self.model!r}; there are {', '.join(MODELS)}; a torch.nn.Module or a function "
                    f"that makes one works, too{did_you_mean(self.model, MODELS)}"
                )
        elif isinstance(self.model, nn.Module):
            if next(self.model.parameters(), None) is None:
                raise self.mistake("`model` has no parameters; expected a model that can be trained")
        elif not callable(self.model):
            raise self.mistake(
                f"`model` is {described(self.model)}; expected a torch.nn.Module, or a function that returns one"
            )

    def __repr__(self) -> str:
        model = self.model if isinstance(self.model, str) else _name(self.model)
        metrics = ", ".join(metric if isinstance(metric, str) else metric.name for metric in self.metrics)
        clusters = type(self.clusters).__name__
        if isinstance(self.clusters, Datasets):
            clusters = ", ".join(repr(dataset.name) for dataset in self.clusters.datasets)
        words = f"model {model}, loss {_name(self.loss)}, {metrics}; clusters {clusters}"
        return f"{type(self).__name__}({self.name!r}, {words})"

    @cached_property
    def recipe(self) -> Clusters:
        """How the clusters are made."""
        given = self.clusters
        if given is None:
            raise self.mistake("there are no `clusters`; expected the data of each, as in cdfl.Problem(clusters=...)")
        if isinstance(given, type) or not hasattr(given, "build"):
            given = given() if callable(given) else given
        return clusters_of(given)

    @property
    def num_clusters(self) -> int:
        """K."""
        return self.recipe.num_clusters

    @property
    def all_settings(self) -> Settings:
        """The settings, with defaults for those that are not named."""
        return self.settings if isinstance(self.settings, Settings) else DEFAULT.replace(**dict(self.settings))

    @property
    def main_metric(self) -> Metric:
        """The metric that runs are compared by."""
        metric = self.metrics[0]
        assert isinstance(metric, Metric)  # noqa: S101  __post_init__ has made it one
        return metric

    @property
    def sources(self) -> list[str]:
        """The datasets that it reads, by name or path."""
        given = getattr(self.recipe, "sources", None) or (getattr(self.recipe, "source", ""),)
        return [name for source in given for name in source.split("+") if name]

    def with_settings(self, **changes: Any) -> Self:
        """Return the problem with some settings changed."""
        return replace(self, settings=self.all_settings.replace(**changes)) if changes else self

    def federation(
        self, seed: int = 0, data_dir: Path | str | None = None, *, validation: bool = False, clients: bool = True
    ) -> Federation:
        """Read the data and split them between server and clients; without `clients` the server may take all."""
        clusters = self.recipe.build(lambda source: load_source(source, data_dir))
        return Federation(clusters, self.drift, self.sizes, seed, validation=validation, clients=clients)

    def to_dict(self) -> dict[str, object]:
        """Return all fields as plain values, to be stored with a run."""
        return {own.name: jsonable(getattr(self, own.name)) for own in fields(self) if own.name not in NOT_STORED}

    def mistake(self, words: str) -> SetupError:
        """Return an error about this problem."""
        return SetupError(f"{self.place}: {words}" if self.place else words)


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", type(value).__name__))
