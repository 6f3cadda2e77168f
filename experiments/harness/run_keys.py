"""Identify a run of the study by names, and resolve them to its settings."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from cdfl.data import DRIFTS, Drift, Rotations, Sizes, Sudden
from cdfl.scenarios import Scenario, load_scenario
from cdfl.sim.engine_choice import Precision
from cdfl.sim.runner import RunConfig, configure
from cdfl.sim.time_models import TIME_MODELS, TimeModel
from experiments.harness.fedbuff_int8 import known
from experiments.harness.networks import NETWORKS

# A smoke run has one client for so many of the study, and at most MOST_SMOKE_CLIENTS.
CLIENTS_FOR_ONE, MOST_SMOKE_CLIENTS = 20, 12


@dataclass(frozen=True)
class RunKey:
    """One scenario, preset, algorithm and seed; `changes` holds what else differs, by name.

    A change is a setting, `num_clients`, `num_uploads`, `validation`, `model` (a name, also of
    `experiments.harness.networks`), `proxy` (images of each proxy set), `drift` or `time_model`. A drift or time model
    is a name, or a table with a `kind` and its settings.

    >>> key = RunKey("fashion-mnist-4", "paper", changes={"time_model": {"kind": "few-active", "active": 8}})
    >>> resolve(key).time_model
    FewActive(active=8, turns_each=5)
    """

    scenario: str
    preset: str
    algorithm: str = "cdfl"
    seed: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def without_seed(self) -> str:
        """The key without the seed: the same for all trials."""
        return json.dumps([self.scenario, self.preset, self.algorithm, self.changes], sort_keys=True)

    @property
    def name(self) -> str:
        """The key as a string."""
        return f"{self.without_seed} {self.seed}"


def resolve(
    key: RunKey, device: str = "auto", precision: Precision | Literal["auto"] = "auto", *, smoke: bool = False
) -> RunConfig:
    """Return the settings of a run; `smoke` shrinks them to seconds on 8x8 digits."""
    changes = dict(key.changes)
    scenario = load_scenario(key.scenario)
    if "proxy" in changes:
        scenario = replace(scenario, sizes=replace(scenario.sizes or Sizes(), proxy=changes.pop("proxy")))
    if "model" in changes:
        scenario = replace(scenario, model=NETWORKS.get(changes["model"], changes["model"]))
        del changes["model"]
    if "drift" in changes:
        scenario = replace(scenario, drift=_drift(changes.pop("drift")))
    config = configure(
        scenario,
        algorithm=known(key.algorithm),
        preset=key.preset,
        time_model=_time_model(changes.pop("time_model", None)),
        seed=key.seed,
        device=device,
        precision=precision,
        **changes,
    )
    return _shrunk(config) if smoke else config


def _drift(given: str | Mapping[str, Any]) -> Drift:
    kind, settings = _kind("drift", given, DRIFTS)
    return DRIFTS[kind](**settings)


def _time_model(given: str | Mapping[str, Any] | None) -> TimeModel | None:
    if given is None:
        return None
    kind, settings = _kind("time model", given, TIME_MODELS)
    model: Any = TIME_MODELS[kind]
    changed: TimeModel = replace(model, **settings)
    return changed


def _kind(what: str, given: str | Mapping[str, Any], known: Mapping[str, object]) -> tuple[str, dict[str, Any]]:
    """Return the kind that is named, and its settings."""
    settings: dict[str, Any] = {"kind": given} if isinstance(given, str) else dict(given)
    kind = str(settings.pop("kind", None))
    if kind not in known:
        raise ValueError(f"there is no {what} {kind!r}; there are {', '.join(known)}")
    return kind, settings


def _shrunk(config: RunConfig) -> RunConfig:
    """Return the same kind of run with few clients and a few dozen 8x8 digits each."""
    scenario = config.scenario
    clients = min(MOST_SMOKE_CLIENTS, max(scenario.num_clusters, scenario.num_clients // CLIENTS_FOR_ONE))
    small: Scenario = replace(
        scenario,
        name=f"{scenario.name} (smoke)",
        clusters=Rotations("digits", scenario.num_clusters),
        model="small-cnn",
        num_clients=clients,
        num_uploads=(5 if isinstance(scenario.drift, Sudden) else 3) * clients,
        sizes=Sizes(low=8, high=16, test=20, pretraining=40, proxy=max(10, (scenario.sizes or Sizes()).proxy // 50)),
        drift=replace(scenario.drift, every=2) if isinstance(scenario.drift, Sudden) else scenario.drift,
    )
    quick = config.settings.replace(batch_size=8, local_epochs=1, shared_epochs=1, separate_epochs=1)
    return replace(config, scenario=small, settings=quick)
