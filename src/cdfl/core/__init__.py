"""The paper as pure functions on stacked tensors: no I/O, no clock, no seeding."""

from cdfl.core.client import Loss, client_update, make_optimizer
from cdfl.core.estimate import Estimator, estimate_mixture, measure, mixture_of, relative, usual_after
from cdfl.core.evaluate import ProxySets
from cdfl.core.flat import Layout, flatten, load
from cdfl.core.paper_values import DEFAULT, PAPER, paper, reading
from cdfl.core.pretrain import pretrain
from cdfl.core.server import base_model_of, join, server_update
from cdfl.core.settings import Settings
from cdfl.core.state import Evaluate, Measures, NotFiniteError, Reply, ServerState, Upload, initial_state
from cdfl.core.update import personalize, reply_weights, staleness_factor, update_clusters, update_rates

__all__ = [
    "DEFAULT",
    "PAPER",
    "Estimator",
    "Evaluate",
    "Layout",
    "Loss",
    "Measures",
    "NotFiniteError",
    "ProxySets",
    "Reply",
    "ServerState",
    "Settings",
    "Upload",
    "base_model_of",
    "client_update",
    "estimate_mixture",
    "flatten",
    "initial_state",
    "join",
    "load",
    "make_optimizer",
    "measure",
    "mixture_of",
    "paper",
    "personalize",
    "pretrain",
    "reading",
    "relative",
    "reply_weights",
    "server_update",
    "staleness_factor",
    "update_clusters",
    "update_rates",
    "usual_after",
]
