"""The paper as pure functions on stacked tensors: no I/O, no clock, no seeding."""

from cdfl.core.client import Loss, Optimizer, client_update
from cdfl.core.defence import NO_DEFENCE, Defence, Limited
from cdfl.core.estimate import (
    GIVEN,
    Estimator,
    GivenMixture,
    PrintedEstimator,
    RelativeEstimator,
    estimate_mixture,
    estimator_of,
    measure,
)
from cdfl.core.flat import Layout, flatten, load
from cdfl.core.guard import Guard, defence_of
from cdfl.core.paper_settings import PAPER, paper, reading
from cdfl.core.pretrain import pretrain
from cdfl.core.proxy_sets import ProxySets, for_evaluation
from cdfl.core.replay import Replay
from cdfl.core.server import NEWCOMER, Decision, base_model_of, estimate_and_rate, is_too_stale, join, server_update
from cdfl.core.settings import (
    DEFAULT,
    EXPERTS,
    EstimateSettings,
    PretrainingSettings,
    RateSettings,
    Settings,
    TrainingSettings,
)
from cdfl.core.state import (
    UNMEASURED,
    ClientMemory,
    Evaluate,
    Measures,
    NotFiniteError,
    Outcome,
    Reply,
    ServerState,
    Upload,
    Verdict,
    initial_state,
)
from cdfl.core.update import personalize, reply_weights, staleness_factor, take_step, update_clusters, update_rates

__all__ = [
    "DEFAULT",
    "EXPERTS",
    "GIVEN",
    "NEWCOMER",
    "NO_DEFENCE",
    "PAPER",
    "UNMEASURED",
    "ClientMemory",
    "Decision",
    "Defence",
    "EstimateSettings",
    "Estimator",
    "Evaluate",
    "GivenMixture",
    "Guard",
    "Layout",
    "Limited",
    "Loss",
    "Measures",
    "NotFiniteError",
    "Optimizer",
    "Outcome",
    "PretrainingSettings",
    "PrintedEstimator",
    "ProxySets",
    "RateSettings",
    "RelativeEstimator",
    "Replay",
    "Reply",
    "ServerState",
    "Settings",
    "TrainingSettings",
    "Upload",
    "Verdict",
    "base_model_of",
    "client_update",
    "defence_of",
    "estimate_and_rate",
    "estimate_mixture",
    "estimator_of",
    "flatten",
    "for_evaluation",
    "initial_state",
    "is_too_stale",
    "join",
    "load",
    "measure",
    "paper",
    "personalize",
    "pretrain",
    "reading",
    "reply_weights",
    "server_update",
    "staleness_factor",
    "take_step",
    "update_clusters",
    "update_rates",
]
