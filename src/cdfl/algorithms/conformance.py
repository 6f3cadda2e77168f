"""Check that an algorithm, ours or a user's, works with the simulator."""

import copy
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from cdfl.algorithms.base import Algorithm, Assignment, ClientView
from cdfl.core import Reply, Upload
from cdfl.json_values import jsonable

SIZE, LEARNED = 6, 5  # entries of a model; the last one is a statistic, mixed like the others but never trained
ROUNDING = 1e-6
A_NAME = "a word of letters, digits, '.', '_' and '-'"


def is_name(name: object) -> bool:
    """Return whether an algorithm can have this name, on the command line and in folder names."""
    return isinstance(name, str) and re.fullmatch(r"[\w.-]+", name) is not None


def check_algorithm(algorithm: Algorithm, *, uploads: int = 12) -> None:
    """Run an algorithm on a tiny problem with one and with three clusters; raise AssertionError if it misbehaves.

    An algorithm that passes can be simulated, stacked, interrupted and resumed:

    - shapes and types are those that the simulator expects, every number is finite, mixtures sum to one;
    - the epoch advances by one with each upload that is not rejected, and the reply carries it;
    - it changes neither its arguments nor itself, and the same inputs give the same outputs;
    - an upload older than `max_staleness` moves nothing; one equal to a current model does no harm;
    - statistics, after the first `num_parameters` entries, stay within the range of the first models and the uploads:
      beyond it a variance may be below 0;
    - an algorithm evaluates the proxy sets only if `uses_proxy` is True;
    - the state is a dataclass of tensors and numbers, which a checkpoint can store;
    - it has a unique name, under which runs are recorded.

    It cannot check an algorithm whose clients train another network than the clusters', as FedEM's do.

    >>> from cdfl.algorithms import CDFL
    >>> from cdfl.core import Settings
    >>> check_algorithm(CDFL(Settings()))
    """
    name, down = getattr(algorithm, "name", None), algorithm.models_down
    _expect(is_name(name), f"name is {name!r}; expected {A_NAME}")
    kinds = ("one", "clusters", "experts", "none")
    _expect(down in kinds, f"models_down is {down!r}; expected one of {', '.join(map(repr, kinds))}")
    for num_clusters in (1, 3):
        _Check(algorithm, num_clusters).run(uploads)
    own = type(algorithm)
    parents = [parent.__name__ for parent in own.__mro__[1:] if getattr(parent, "name", None) == name]
    whose = " and ".join(parents)
    _expect(
        not parents,
        f"{own.__name__} has the name {name!r} of {whose}; expected another one, e.g. name = {own.__name__.lower()!r}",
    )


class _Check:
    """A tiny problem: F(w; D_k) = ||w - centre_k||^2, and clients near mixtures of centres."""

    def __init__(self, algorithm: Algorithm, num_clusters: int) -> None:
        self.algorithm = algorithm
        self.num_clusters = num_clusters
        self.random = torch.Generator().manual_seed(0)
        self.centres = torch.randn(num_clusters, SIZE, generator=self.random)
        self.start = self.centres + 0.1 * torch.randn(num_clusters, SIZE, generator=self.random)

    def run(self, uploads: int) -> None:
        """Run all checks, in the order of a server's life."""
        algorithm = self.algorithm
        evaluate = self.evaluate if algorithm.uses_proxy else self.unexpected
        state = _unchanged("initial", algorithm.initial, self.start, evaluate, LEARNED)
        self.check_state(state, epoch=0)
        reply = _unchanged("join", algorithm.join, state)
        self.check_reply("join", reply, epoch=0, staleness=0)
        _expect(reply.outcome == "applied", f"join: the reply to a newcomer has the outcome {reply.outcome}")
        for number in range(uploads):
            state, reply = self.one_upload(algorithm, state, reply, number)
        current = [reply.personal_model, *algorithm.cluster_models(state)]
        for number, model in enumerate(current):
            state, reply = self.one_upload(algorithm, state, reply, number, local_model=model.clone())
        self.one_stale_upload(state, reply)
        self.same_statistics(2 * uploads)

    def one_upload(
        self, algorithm: Algorithm, state: Any, reply: Reply, number: int, local_model: Tensor | None = None
    ) -> tuple[Any, Reply]:
        """Let a client receive a reply, train and upload; check the answer."""
        assignment = _unchanged("assign", algorithm.assign, state, reply, self.view())
        self.check_assignment(assignment, reply)
        if local_model is None:
            goal = self.true_mixture().float() @ self.centres
            noise = 0.01 * torch.randn(SIZE, generator=self.random)
            local_model = assignment.personal_model + 0.5 * (goal - assignment.personal_model) + noise
        upload = Upload(local_model, assignment.base_epoch, number, mixture=assignment.mixture)
        evaluate = self.evaluate if algorithm.uses_proxy else self.unexpected
        answer = _unchanged("server_update", algorithm.server_update, state, upload, assignment, evaluate)
        _expect(
            isinstance(answer, tuple) and len(answer) == 2,
            f"server_update returned {type(answer).__name__}; expected a state and a reply",
        )
        after, answered = answer
        if answered.outcome == "rejected":  # it ages nobody, and its client keeps what it was sent
            self.check_state(after, epoch=state.epoch)
            self.check_model("server_update: the reply's personal_model", answered.personal_model)
            return after, reply
        self.check_state(after, epoch=state.epoch + 1)
        self.check_reply("server_update", answered, state.epoch + 1, state.epoch + 1 - assignment.base_epoch)
        if algorithm.uses_proxy:
            everywhere = local_model.expand(self.num_clusters, -1), torch.arange(self.num_clusters)
            ahead = Upload(
                local_model, assignment.base_epoch, number, self.evaluate(*everywhere).double(), assignment.mixture
            )
            _, same = _called("server_update", algorithm.server_update, state, ahead, assignment, evaluate)
            _expect(
                _close(same.personal_model, answered.personal_model),
                "server_update: an upload with its losses is answered differently from the same upload without them; "
                "expected the same personal model",
            )
        return after, answered

    def one_stale_upload(self, state: Any, reply: Reply) -> None:
        """Check that an upload older than max_staleness moves nothing."""
        if self.algorithm.models_down == "none":
            return
        strict = copy.copy(self.algorithm)
        strict.settings = strict.settings.replace(max_staleness=1)
        before = strict.cluster_models(state).clone()
        old = Assignment(reply.personal_model, 0, mixture=strict.assign(state, reply, self.view()).mixture)
        upload = Upload(reply.personal_model + 1, 0, 0, mixture=old.mixture)
        after, answer = _unchanged("server_update", strict.server_update, state, upload, old, self.evaluate)
        age = state.epoch + 1
        what = f"server_update: an upload {age} epochs old, with max_staleness 1,"
        _expect(answer.outcome == "deprecated", f"{what} has the outcome {answer.outcome}; expected deprecated")
        moved = not torch.equal(strict.cluster_models(after), before)
        _expect(not moved, f"{what} moved a model; expected no change")
        _expect(not bool(answer.rates.any()), f"{what} has rates {answer.rates.tolist()}; expected zeros")
        epoch = max(age - 1, min(after.epoch, age))  # a defence may let such uploads age nobody
        self.check_state(after, epoch)
        self.check_reply("server_update", answer, epoch, age)

    def same_statistics(self, uploads: int) -> None:
        """Check that statistics stay in range when clients all train from the first model."""
        eager = copy.copy(self.algorithm)
        eager.settings = eager.settings.replace(base_rate=1.0, max_staleness=None, staleness_slope=0.0)
        evaluate = self.evaluate if eager.uses_proxy else self.unexpected
        state = eager.initial(self.start, evaluate, LEARNED)
        assignment = eager.assign(state, eager.join(state), self.view())
        base = assignment.personal_model
        local_model = torch.cat([base[:LEARNED], base[LEARNED:] - 1])
        seen = torch.cat([self.start[:, LEARNED:], local_model[None, LEARNED:]])
        for number in range(uploads):
            upload = Upload(local_model, assignment.base_epoch, number, mixture=assignment.mixture, base_model=base)
            state, reply = _called("server_update", eager.server_update, state, upload, assignment, evaluate)
            _between("cluster_models", eager.cluster_models(state)[:, LEARNED:], seen)
            _between("the reply's personal_model", reply.personal_model[None, LEARNED:], seen)

    # -- checks of results

    def check_state(self, state: Any, epoch: int) -> None:
        """Check that a state can be stored in a checkpoint and is finite."""
        _expect(is_dataclass(state), f"the state is a {type(state).__name__}; expected a dataclass")
        for part in fields(state):
            value = getattr(state, part.name)
            _expect(
                isinstance(value, Tensor | int | float | str | None),
                f"the state's {part.name} is a {type(value).__name__}; expected a tensor, a number or None, "
                "which a checkpoint can store",
            )
        _expect(
            state.epoch == epoch, f"the state is at epoch {state.epoch}; expected {epoch}, one more with each upload"
        )
        models = self.algorithm.cluster_models(state)
        shapes = (self.num_clusters, SIZE), (1, SIZE)
        _expect(
            tuple(models.shape) in shapes, f"cluster_models has shape {tuple(models.shape)}; expected {shapes[0]}, or "
            f"{shapes[1]} where one model serves all",
        )  # fmt: skip
        _finite("cluster_models", models)

    def check_reply(self, step: str, reply: Any, epoch: int, staleness: int) -> None:
        """Check that a reply fits the client and the server."""
        _expect(isinstance(reply, Reply), f"{step} replied with {type(reply).__name__}; expected a Reply")
        self.check_model(f"{step}: the reply's personal_model", reply.personal_model)
        _expect(reply.epoch == epoch, f"{step}: the reply is of epoch {reply.epoch}; expected {epoch}, the server's")
        _expect(
            reply.staleness == staleness,
            f"{step}: the reply has staleness {reply.staleness}; expected {staleness}, its epoch minus the base epoch",
        )
        rates = reply.rates
        fine = rates.ndim == 1 and bool((rates.isfinite() & (rates >= 0)).all())
        _expect(fine, f"{step}: rates are {rates.tolist()}; expected one number, 0 or more, for each model")
        if self.algorithm.estimates:
            self.check_mixture(f"{step}: the reply's mixture", reply.mixture)

    def check_assignment(self, assignment: Any, reply: Reply) -> None:
        """Check what a client trains from."""
        kind = type(assignment).__name__
        _expect(isinstance(assignment, Assignment), f"assign returned {kind}; expected an Assignment")
        self.check_model("assign: personal_model", assignment.personal_model)
        base = assignment.base_epoch
        _expect(base == reply.epoch, f"assign: base_epoch is {base}; expected {reply.epoch}, the epoch of the reply")
        if assignment.mixture is not None and self.algorithm.estimates:
            self.check_mixture("assign: mixture", assignment.mixture)

    def check_model(self, what: str, model: Tensor) -> None:
        """Check the shape, type and values of one model."""
        _expect(tuple(model.shape) == (SIZE,), f"{what} has shape {tuple(model.shape)}; expected ({SIZE},)")
        _expect(
            model.dtype == self.start.dtype,
            f"{what} is {model.dtype}; expected {self.start.dtype}",
        )
        _finite(what, model)

    def check_mixture(self, what: str, mixture: Tensor) -> None:
        """Check the shares of the clusters."""
        shape, expected = tuple(mixture.shape), (self.num_clusters,)
        _expect(shape == expected, f"{what} has shape {shape}; expected {expected}, a share for each cluster")
        fine = bool((mixture >= 0).all()) and abs(float(mixture.sum()) - 1) < ROUNDING
        _expect(fine, f"{what} is {mixture.tolist()}; expected shares of at least 0 that sum to one")

    # -- the problem

    def evaluate(self, models: Tensor, clusters: Tensor) -> Tensor:
        """Return the loss of each model (n, P) on the proxy set of its cluster (n,)."""
        return ((models - self.centres[clusters]) ** 2).sum(dim=1)

    def unexpected(self, models: Tensor, clusters: Tensor) -> Tensor:
        """Raise: this algorithm must not evaluate."""
        raise AssertionError("uses_proxy is False, but the proxy sets were evaluated; set uses_proxy = True")

    def true_mixture(self) -> Tensor:
        """Return a mixture with more of cluster 0 than of the others."""
        shares = torch.ones(self.num_clusters, dtype=torch.float64)
        shares[0] += 1
        return shares / shares.sum()

    def view(self) -> ClientView:
        """Return the view of a client with eight samples at the centres."""
        samples = self.centres[torch.arange(8) % self.num_clusters]
        return ClientView(
            losses=lambda models: ((samples[:, None] - models[None]) ** 2).sum(dim=2), true_mixture=self.true_mixture()
        )


def _unchanged(step: str, work: Callable[..., Any], *given: Any) -> Any:
    """Call a step twice; check that it gives the same result and changes nothing; return the result."""
    before = [(name, tensor, tensor.clone()) for value in given for name, tensor in _tensors(value)]
    own = getattr(work, "__self__", None)
    settings = jsonable(own)
    first = _called(step, work, *given)
    for name, tensor, copied in before:
        _expect(_same(tensor, copied), f"{step} changed {name} in place; expected a new one and the old one unchanged")
    second = _called(step, work, *given)
    for (name, one), (_, other) in zip(_tensors(first), _tensors(second), strict=True):
        _expect(_same(one, other), f"{step} returned another {name} for the same inputs; expected the same bits")
    after = jsonable(own)
    changed = [f"self.{name}" for name in after if name not in settings or after[name] != settings[name]] if own else []
    _expect(
        not changed,
        f"{step} changed {', '.join(changed)}; expected an algorithm object that never changes; put what it learns "
        "into the state, which checkpoints store",
    )
    return first


def _called(step: str, work: Callable[..., Any], *given: Any) -> Any:
    """Call a step; turn an exception into an AssertionError."""
    try:
        return work(*given)
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{step} raised {type(error).__name__}: {error}") from error


def _tensors(value: Any, name: str = "a tensor") -> list[tuple[str, Tensor]]:
    """Return the tensors of a value, with names for messages."""
    if isinstance(value, Tensor):
        return [(name, value)]
    if isinstance(value, tuple):
        return [found for part in value for found in _tensors(part, name)]
    if is_dataclass(value) and not isinstance(value, type):
        own = type(value).__name__
        return [found for part in fields(value) for found in _tensors(getattr(value, part.name), f"{own}.{part.name}")]
    return []


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one.nan_to_num(), other.nan_to_num())


def _close(one: Tensor, other: Tensor) -> bool:
    return bool(((one - other).abs() < ROUNDING).all())


def _finite(what: str, values: Tensor) -> None:
    _expect(bool(torch.isfinite(values).all()), f"{what} is {values.tolist()}; expected finite numbers")


def _between(what: str, statistics: Tensor, seen: Tensor) -> None:
    """Check that statistics (n, S) are within the range of those seen (m, S)."""
    lowest, highest = seen.amin(dim=0), seen.amax(dim=0)
    slack = 100 * ROUNDING  # of float32, summed over a buffer
    _expect(
        bool(((statistics >= lowest - slack) & (statistics <= highest + slack)).all()),
        f"server_update: {what} has statistics {statistics.tolist()}; expected {lowest.tolist()} to "
        f"{highest.tolist()}, the range seen so far; move statistics towards an upload, not along its change",
    )


def _expect(fine: bool, message: str) -> None:
    if not fine:
        raise AssertionError(message)
