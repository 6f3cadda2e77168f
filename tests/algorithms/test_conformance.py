"""`check_algorithm` accepts sound algorithms and says what is wrong with others."""

from dataclasses import dataclass, replace

import pytest
import torch

from cdfl.algorithms import ALGORITHMS, CDFL, Assignment, FedAsync, FedBuff, LocalKeep, Oracle, check_algorithm
from cdfl.core import Settings
from cdfl.core.guard import Guard

pytestmark = pytest.mark.slow

SETTINGS = [
    Settings(),
    Settings(max_staleness=3, staleness_slope=1.0, reply_clusters="moved"),
    Settings(base_rate=1.0, rate_floor=0.0, sharpness=(3.0, 3.0)),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=["default", "stale", "sharp"])
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "fedem"])  # its clients train K models
def test_the_library_s_algorithms_pass(name, settings):
    check_algorithm(ALGORITHMS[name](settings))


class Softmax:
    """An estimator that needs the losses only."""

    needs_measures = True

    def begin(self, num_clusters):
        return torch.empty(0)

    def __call__(self, upload, measures, memory, epoch):
        return torch.softmax(-measures.losses, 0), memory


class Doubled(Softmax):
    def __call__(self, upload, measures, memory, epoch):
        return torch.ones_like(measures.losses) * 2, memory


def test_algorithms_with_other_arguments_pass():
    check_algorithm(FedBuff(Settings(), buffer_size=1))
    check_algorithm(CDFL(Settings(), Softmax()))
    check_algorithm(CDFL(Settings(), defence=Guard(0.5)))
    check_algorithm(CDFL(Settings(measures="relative", cluster_step="towards")))


def changed_reply(**changes):
    class Changed(CDFL):
        def server_update(self, state, upload, assignment, evaluate):
            state, reply = super().server_update(state, upload, assignment, evaluate)
            return state, replace(reply, **{name: change(reply) for name, change in changes.items()})

    return Changed


class InPlace(CDFL):
    def server_update(self, state, upload, assignment, evaluate):
        state.cluster_models.lerp_(upload.local_model, 0.1)
        return super().server_update(state, upload, assignment, evaluate)


class EatsUploads(CDFL):
    def server_update(self, state, upload, assignment, evaluate):
        answer = super().server_update(state, upload, assignment, evaluate)
        upload.local_model.zero_()
        return answer


class Remembers(CDFL):
    count = 0

    def server_update(self, state, upload, assignment, evaluate):
        self.count += 1
        state, reply = super().server_update(state, upload, assignment, evaluate)
        return state, replace(reply, personal_model=reply.personal_model + self.count)


class Counts(CDFL):
    def __init__(self, settings):
        super().__init__(settings)
        self.seen = []

    def server_update(self, state, upload, assignment, evaluate):
        self.seen.append(upload.client_id)
        return super().server_update(state, upload, assignment, evaluate)


class Averages(CDFL):
    def server_update(self, state, upload, assignment, evaluate):
        self.mean = upload.local_model.clone()
        return super().server_update(state, upload, assignment, evaluate)


class BadEstimate(CDFL):
    def __init__(self, settings):
        super().__init__(settings, Doubled())


class Unnamed(FedAsync):
    pass


class StandsStill(CDFL):
    def server_update(self, state, upload, assignment, evaluate):
        after, reply = super().server_update(state, upload, assignment, evaluate)
        return after.replace(epoch=state.epoch), reply


class TakesEverything(FedAsync):
    def server_update(self, state, upload, assignment, evaluate):
        settings, self.settings = self.settings, self.settings.replace(max_staleness=None)
        answer = super().server_update(state, upload, assignment, evaluate)
        self.settings = settings
        return answer


class MovesTheOld(FedAsync):
    def server_update(self, state, upload, assignment, evaluate):
        state, reply = super().server_update(state, upload, assignment, evaluate)
        return state.replace(cluster_models=state.cluster_models * 0.9), reply


class Peeks(CDFL):
    uses_proxy = False


class IgnoresLosses(CDFL):
    def server_update(self, state, upload, assignment, evaluate):
        state, reply = super().server_update(state, upload, assignment, evaluate)
        extra = 1.0 if upload.losses is None else 0.0
        return state, replace(reply, personal_model=reply.personal_model + extra)


class Wide(CDFL):
    def cluster_models(self, state):
        return torch.cat([state.cluster_models] * 2)


class OneReply(CDFL):
    def server_update(self, state, upload, assignment, evaluate):
        return super().server_update(state, upload, assignment, evaluate)[1]


class LateJoin(CDFL):
    def join(self, state):
        return replace(super().join(state), epoch=7)


class WrongAssignment(CDFL):
    def assign(self, state, reply, view):
        return Assignment(reply.personal_model, reply.epoch + 1)


class BadVotes(CDFL):
    def assign(self, state, reply, view):
        return replace(super().assign(state, reply, view), mixture=torch.full((len(state.cluster_models),), 0.9))


class Dictionary(LocalKeep):
    def initial(self, cluster_models, evaluate, num_parameters):
        return {"start": cluster_models}


@dataclass(frozen=True, eq=False)
class Listed:
    models: list
    epoch: int = 0


class KeepsAList(LocalKeep):
    def initial(self, cluster_models, evaluate, num_parameters):
        return Listed([cluster_models])


class AddsStatistics(FedAsync):
    name = "adds-statistics"

    def server_update(self, state, upload, assignment, evaluate):
        after, reply = super().server_update(state, upload, assignment, evaluate)
        moved = state.cluster_models + reply.rates.float() * (upload.local_model - assignment.personal_model)
        return after.replace(cluster_models=moved), replace(reply, personal_model=moved[0])


class OverstepsInReplies(Oracle):
    name = "oversteps-in-replies"

    def server_update(self, state, upload, assignment, evaluate):
        state, reply = super().server_update(state, upload, assignment, evaluate)
        return state, replace(reply, personal_model=2 * upload.local_model - assignment.personal_model)


class Nameless(CDFL):
    name = ""


class Slashed(FedAsync):
    name = "e x/ü"


class SendsTwo(CDFL):
    models_down = "two"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (InPlace, r"server_update changed ServerState\.cluster_models in place; expected a new one"),
        (EatsUploads, r"server_update changed Upload\.local_model in place"),
        (Remembers, r"server_update returned another Reply\.personal_model for the same inputs"),
        (Counts, r"server_update changed self\.seen; expected an algorithm object that never changes"),
        (Averages, r"server_update changed self\.mean; expected"),
        (BadEstimate, r"server_update raised ValueError: the mixture is \[2\.0\]; expected shares of at least 0"),
        (Unnamed, "Unnamed has the name 'fedasync' of FedAsync; expected another one, e.g. name = 'unnamed'"),
        (StandsStill, "the state is at epoch 0; expected 1, one more with each upload"),
        (
            TakesEverything,
            r"an upload \d+ epochs old, with max_staleness 1, has the outcome applied; expected deprecated",
        ),
        (MovesTheOld, r"an upload \d+ epochs old, with max_staleness 1, moved a model; expected no change"),
        (Peeks, "uses_proxy is False, but the proxy sets were evaluated"),
        (IgnoresLosses, "an upload with its losses is answered differently"),
        (Wide, r"cluster_models has shape \(2, 6\); expected \(1, 6\)"),
        (OneReply, "server_update returned Reply; expected a state and a reply"),
        (LateJoin, "join: the reply is of epoch 7; expected 0, the server's"),
        (WrongAssignment, "assign: base_epoch is 1; expected 0, the epoch of the reply"),
        (BadVotes, r"mixture is \[0\.89.*\]; expected shares of at least 0 that sum to one"),
        (Dictionary, "the state is a dict; expected a dataclass"),
        (KeepsAList, "the state's models is a list; expected a tensor, a number or None"),
        (AddsStatistics, r"cluster_models has statistics \[\[-?\d.*\]\]; expected .* towards an upload, not along"),
        (OverstepsInReplies, "the reply's personal_model has statistics .* expected"),
        (Nameless, "name is ''; expected a word of letters"),
        (Slashed, "name is 'e x/ü'; expected a word of letters, digits, '.', '_' and '-'"),
        (SendsTwo, "models_down is 'two'; expected one of 'one', 'clusters', 'experts', 'none'"),
        (changed_reply(personal_model=lambda reply: reply.personal_model * torch.nan), "expected finite numbers"),
        (changed_reply(personal_model=lambda reply: reply.personal_model[:3]), r"has shape \(3,\); expected \(6,\)"),
        (changed_reply(personal_model=lambda reply: reply.personal_model.double()), "is torch.float64; expected torch"),
        (changed_reply(mixture=lambda reply: reply.mixture * 2), r"the reply's mixture is \[2\.0\]; expected shares"),
        (changed_reply(mixture=lambda reply: torch.ones(9)), r"mixture has shape \(9,\); expected \(1,\)"),
        (changed_reply(epoch=lambda reply: reply.epoch - 1), "the reply is of epoch 0; expected 1"),
        (changed_reply(staleness=lambda reply: 0), "the reply has staleness 0; expected 1"),
        (changed_reply(rates=lambda reply: reply.rates - 5), "expected one number, 0 or more, for each model"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_mistakes_are_named(kind, message):
    with pytest.raises(AssertionError, match=message):
        check_algorithm(kind(Settings()))


def test_a_reply_must_be_a_reply():
    class Talks(CDFL):
        def join(self, state):
            return "hello"

    with pytest.raises(AssertionError, match="join replied with str; expected a Reply"):
        check_algorithm(Talks(Settings()))
