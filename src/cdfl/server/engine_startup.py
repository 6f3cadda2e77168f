"""Open the engine of a server: recover it from the store, or pre-train the clusters and begin."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from cdfl.core import Layout, ServerState, Settings
from cdfl.core.estimate import reevaluated
from cdfl.core.guard import TRIAL_SAMPLES
from cdfl.core.router import train_one_by_one
from cdfl.problems import ProblemInstance, Progress
from cdfl.server.cluster_comparison import Matrices
from cdfl.server.engine import Engine
from cdfl.server.fingerprint import fingerprints_of
from cdfl.server.store import Store
from cdfl.server.store_records import Recovered
from cdfl.server.upload_losses import Evaluators
from cdfl.user_code import SetupError
from cdfl.wire import RouterMessage, decode_router, encode_router

logger = logging.getLogger("cdfl.server")

EQUAL_CLUSTERS = (
    "%s sets separate_epochs to 0: all %d clusters begin with the same weights, so it takes many uploads until they "
    "differ, and some may never learn; pre-train them, and use a new --store"
)
WAIT_SECONDS = 0.5  # between two looks whether another server has begun


def open_engine(
    instance: ProblemInstance,
    store: Store,
    *,
    accept_all: bool = False,
    progress: Progress = lambda message: None,
    trained: Callable[[int, int], Any] = lambda done, total: None,
    replayed: Callable[[int, int], None] | None = None,
    evaluators: Evaluators | None = None,
    **options: Any,
) -> Engine:
    """Recover the server in the store, or pre-train and begin; `options` are those of `Engine`.

    Without `evaluators`, this process evaluates.

    If another server owns the store, follow it.
    """
    settings = in_service(instance.settings, accept_all=accept_all)
    recovered = _own_or_wait(store, progress, replayed)
    if recovered is not None and not store.is_owner:
        _check_same(instance, recovered, settings, store)
        state = recovered.state
    elif recovered is None:
        if instance.settings.pretraining.separate_epochs == 0 and instance.num_clusters > 1:
            logger.warning(EQUAL_CLUSTERS, instance.place or "the problem", instance.num_clusters)
        state = instance.initial_state(progress, trained)
        for sentence in instance.warnings(instance.separation(state.cluster_models.to(instance.device))):
            logger.warning("%s", sentence)
        store.begin(state, instance.layout, settings)
    else:
        _check_fits(instance, recovered)
        state = _with_these_losses(instance, recovered.state, store)
        if settings != recovered.settings or state is not recovered.state:
            store.snapshot(state, settings)
    if store.is_owner:
        store.put_fingerprints(fingerprints_of(instance))
    used = evaluators or Evaluators(*(instance.evaluator(most) for most in (None, None, TRIAL_SAMPLES, TRIAL_SAMPLES)))
    compared: dict[str, Any] = {
        "matrices": Matrices(instance.evaluator()),
        "cluster_names": instance.federation.names,
        "router": _router(instance, state, store, settings, progress, trained),
    }
    return Engine(state, instance.layout, settings, store, used, **compared | options)


def _own_or_wait(store: Store, progress: Progress, replayed: Callable[[int, int], None] | None) -> Recovered | None:
    """Become the owner of the store, or wait until its owner has begun; return what there is to recover."""
    while True:
        is_owner = store.is_owner or store.try_own()
        recovered = store.recover(replayed)
        if is_owner:
            store.read_on()
            return recovered
        has_router = recovered is None or recovered.settings.replies.reply != "experts" or store.router() is not None
        if recovered is not None and store.fingerprints() is not None and has_router:
            store.follow(recovered.state.epoch, recovered.number)
            return recovered
        progress("waiting for another server on this store, which trains the clusters")
        time.sleep(WAIT_SECONDS)


def _check_same(instance: ProblemInstance, recovered: Recovered, settings: Settings, store: Store) -> None:
    """Refuse to serve beside a server with another problem or other settings."""
    _check_fits(instance, recovered)
    stored = store.fingerprints() or {}
    differ = _differences(settings.to_dict(), recovered.settings.to_dict())
    differ += [name for name, digest in fingerprints_of(instance).items() if stored.get(name) != digest]
    if differ:
        raise SetupError(
            f"another server serves this store with other settings or data: {', '.join(differ[:3])} differ; serve the "
            "same, or stop the other one first"
        )


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return the names of values that differ, in groups of settings, too."""
    found = []
    for name, value in ours.items():
        other = theirs.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            found += _differences(value, other)
        elif value != other:
            found.append(name)
    return found


def _router(
    instance: ProblemInstance,
    state: ServerState,
    store: Store,
    settings: Settings,
    progress: Progress,
    trained: Callable[[int, int], Any],
) -> bytes | None:
    """Return the router as clients get it: the one in the store, or else a new one; None if replies are one model."""
    if settings.replies.reply != "experts":
        return None
    kept, module = store.router(), instance.router_module()
    if kept is None:
        progress("training the router")
        router = instance.train_router(module, partial(train_one_by_one, trained=trained))
        message = RouterMessage(
            router, instance.router_spec, instance.loss_scale(state.cluster_models.to(instance.device))
        )
        store.put_router(encode_router(message))
    else:
        message = decode_router(kept)
        is_same = message.spec == instance.router_spec and len(message.router.model) == Layout.of(module).size
        if not is_same or message.router.num_clusters != instance.num_clusters:
            raise SetupError(
                f"the problem's router is not the stored one: expected {message.spec or 'a module of your own'}, as "
                "stored; serve that one, or use a new --store"
            )
    rates, replies = settings.rates, settings.replies
    message = replace(
        message,
        reply_clusters=rates.reply_clusters,
        rate_floor=rates.rate_floor,
        takes_mixtures=replies.send_mixture,
    )
    return encode_router(message)


def _with_these_losses(instance: ProblemInstance, state: ServerState, store: Store) -> ServerState:
    """Return the state; evaluate the clusters again if the losses in it are those of other proxy sets or another loss.

    What was usual of other losses is then forgotten, too.
    """
    before, now = store.fingerprints() or {}, fingerprints_of(instance)
    changed = [name for name in now if before.get(name, now[name]) != now[name]]
    if not changed:
        return state
    logger.warning(
        "%s: %s changed since the last start; the clusters are evaluated again, and what was usual is forgotten",
        instance.place,
        " and ".join(changed),
    )
    unknown = torch.full_like(state.cluster_losses, torch.nan)
    empty = state.estimator_memory.new_empty(0)
    state = state.replace(cluster_losses=unknown, estimator_memory=empty, defence_memory=empty)
    return reevaluated(state, instance.evaluator())


def in_service(settings: Settings, *, accept_all: bool) -> Settings:
    """Return the settings of a server: every upload is judged unless `accept_all`."""
    return settings.replace(guard=not accept_all)


def _check_fits(instance: ProblemInstance, recovered: Recovered) -> None:
    if instance.layout != recovered.layout:
        ours, theirs = dict(zip(instance.layout.names, instance.layout.shapes, strict=True)), recovered.layout
        stored = dict(zip(theirs.names, theirs.shapes, strict=True))
        odd = sorted(name for name in ours.keys() | stored.keys() if ours.get(name) != stored.get(name))
        raise SetupError(
            f"the problem's model is not the stored one: {', '.join(odd[:3]) or 'the order of its tensors'} differ"
            f"{'s' if len(odd) == 1 else ''}; serve the stored model, or use a new --store"
        )
    if instance.num_clusters != recovered.state.num_clusters:
        there = recovered.state.num_clusters
        raise SetupError(
            f"the problem has {instance.num_clusters} clusters, the store {there}; serve as many, or use a new --store"
        )
