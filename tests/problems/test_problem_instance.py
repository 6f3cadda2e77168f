"""A problem, read: its network, its checks, and how its clusters start."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cdfl
from cdfl.core import Settings, flatten
from cdfl.problems import ProblemInstance
from cdfl.problems.problem_instance import client_network
from cdfl.scenarios import load_problem
from cdfl.user_code import SetupError

INPUTS = torch.arange(40.0).view(20, 2) / 40
QUICK = Settings(shared_epochs=2, separate_epochs=3, batch_size=4)


def problem(**changes):
    clusters = {"up": (INPUTS, INPUTS.sum(1, keepdim=True)), "down": (INPUTS, -INPUTS.sum(1, keepdim=True))}
    given = {"model": lambda: nn.Linear(2, 1), "loss": F.mse_loss, "clusters": clusters, "settings": QUICK}
    return cdfl.Problem(**given | changes)


def said_by(attempt):
    with pytest.raises(SetupError) as caught:
        attempt()
    return str(caught.value)


class TestNetwork:
    def test_a_function_is_seeded(self):
        state = torch.get_rng_state()
        one, again, other = (ProblemInstance.of(problem(), seed=seed) for seed in (0, 0, 1))
        assert torch.equal(flatten(one.model), flatten(again.model))
        assert not torch.equal(flatten(one.model), flatten(other.model))
        assert torch.equal(torch.get_rng_state(), state)

    def test_a_network_keeps_its_weights_and_is_not_changed(self):
        net = nn.Linear(2, 1)
        before = flatten(net)
        instance = ProblemInstance.of(problem(model=net), seed=5)
        assert torch.equal(flatten(instance.model), before)
        instance.initial_state()
        assert torch.equal(flatten(net), before)

    def test_a_function_may_ask_for_the_shape(self):
        asked = []

        def make(input_shape, num_outputs):
            asked.append((input_shape, num_outputs))
            return nn.Linear(2, 1)

        ProblemInstance.of(problem(model=make))
        assert asked == [((2,), 1)]

    @pytest.mark.parametrize(
        ("model", "words"),
        [
            (lambda: 3, "`model()` is of type int; expected a torch.nn.Module"),
            (nn.ReLU, "`model()` has no parameters"),
            (lambda: 1 / 0, "`model()` failed with ZeroDivisionError: division by zero; expected a torch.nn.Module"),
            (lambda a, b: [a, b], "`model(input_shape, num_outputs)` is a list of 2; expected a torch.nn.Module"),
        ],
    )
    def test_a_function_that_makes_none(self, model, words):
        assert words in said_by(lambda: ProblemInstance.of(problem(model=model)))

    def test_a_client_reads_no_data_unless_the_shape_decides(self):
        def never():
            raise AssertionError("data were read")

        assert isinstance(client_network(problem(clusters=never)), nn.Linear)
        assert isinstance(client_network(problem(model=nn.Linear(2, 1), clusters=None)), nn.Linear)
        assert client_network(load_problem("digits-4"))[-1].out_features == 10


class TestCheck:
    """One line: what came, what was expected, before anything is trained."""

    def test_a_problem_that_is_fine(self):
        ProblemInstance.of(problem()).check()

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            (
                {"model": lambda: nn.Linear(3, 1)},
                "`model(inputs)` on cluster 'up' with a tensor of shape [2, 2] (float32) failed with RuntimeError",
            ),
            (
                {"loss": nn.functional.cross_entropy, "metrics": ["mae"]},
                "cross_entropy, the default, takes classes; expected another loss for numbers, such as",
            ),
            (
                {"loss": lambda outputs, targets: (outputs - targets) ** 2, "metrics": ["mae"]},
                "with a tensor of shape [2, 1] (float32) and a tensor of shape [2, 1] (float32) is a tensor of shape",
            ),
            (
                {"loss": lambda outputs, targets: float((outputs - targets).mean()), "metrics": ["mae"]},
                "is of type float; expected one number, a tensor of shape []",
            ),
            (
                {"loss": lambda outputs, targets: outputs.mean() + float("nan"), "metrics": ["mae"]},
                "is nan; expected a finite number: check the weights of `model`",
            ),
            (
                {"loss": lambda outputs, targets: missing, "metrics": ["mae"]},  # noqa: F821
                "failed with NameError: name 'missing' is not defined; expected one number",
            ),
            (
                {"model": lambda: nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))},
                "would compare every output with every target; expected one shape: let the model return "
                "outputs.squeeze(1), or give targets [2]",
            ),
            (
                {"metrics": [cdfl.Metric("odd", lambda outputs, targets: outputs, higher_is_better=True)]},
                "the metric odd on cluster 'up' with",
            ),
            (
                {"metrics": [cdfl.Metric("odd", lambda outputs, targets: 1 / 0, higher_is_better=True)]},
                "failed with ZeroDivisionError",
            ),
            (
                {
                    "loss": F.cross_entropy,
                    "clusters": {"a": (INPUTS, torch.arange(20))},
                    "model": lambda: nn.Linear(2, 7),
                },
                "the targets have 20 classes, 0..19, but the outputs of `model` on cluster 'a' have shape [2, 7]: "
                "7 classes; expected at least 20 outputs, or targets below 7: cluster 'a' has 19",
            ),
            (
                {
                    "loss": nn.CrossEntropyLoss(),
                    "clusters": {"a": (INPUTS, torch.arange(20) % 7), "b": (INPUTS, torch.arange(20) % 9)},
                    "model": lambda: nn.Linear(2, 7),
                },
                "expected at least 9 outputs, or targets below 7: cluster 'b' has 8",
            ),
            (
                {"clusters": {"a": (INPUTS, torch.arange(20) % 2)}, "model": "mlp", "loss": F.mse_loss},
                "expected one shape: targets are classes, which cross_entropy, the default, takes; to predict numbers",
            ),
            (
                {
                    "clusters": {"a": (INPUTS, torch.arange(20) % 2)},
                    "model": "mlp",
                    "loss": F.cross_entropy,
                    "metrics": ["mae"],
                },
                "rmse, mae and r2 compare numbers and expect one shape; for classes, use accuracy",
            ),
            ({"loss": F.cross_entropy, "model": lambda: nn.Linear(2, 3)}, "`loss(outputs, targets)` on cluster 'up'"),
        ],
    )
    def test_mistakes(self, changes, words):
        assert words in said_by(lambda: ProblemInstance.of(problem(**changes)).check())

    def test_a_file_and_its_line(self, tmp_path):
        path = tmp_path / "mine.py"
        path.write_text(
            "import torch, cdfl\n\n\ndef loss(outputs, targets):\n    return outputs.mean() + missing\n\n\n"
            "clusters = [(torch.ones(8, 2), torch.ones(8, 1))]\n"
            "problem = cdfl.Problem(model=torch.nn.Linear(2, 1), loss=loss, clusters=clusters)\n"
        )
        said = said_by(ProblemInstance.of(load_problem(str(path))).check)
        assert said.startswith(
            f"{path}, line 5: `loss(outputs, targets)` on cluster 'cluster 0' with a tensor of shape"
        )

    def test_a_few_samples_are_enough_for_a_run(self):
        seen = []

        def loss(outputs, targets):
            seen.append(len(outputs))
            return F.mse_loss(outputs, targets)

        ProblemInstance.of(problem(loss=loss)).check(1)
        assert set(seen) == {1}

    def test_a_run_checks_what_a_server_checks(self):
        with pytest.raises(SetupError, match="would compare every output with every target"):
            cdfl.run(problem(model=lambda: nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))))


class TestStart:
    def test_clusters_are_pretrained_from_one_shared_model(self):
        said = []
        state = ProblemInstance.of(problem()).initial_state(said.append)
        assert said == ["pre-training, shared model", "pre-training, cluster 1 of 2", "pre-training, cluster 2 of 2"]
        assert (state.epoch, state.num_parameters) == (0, 3)
        assert torch.equal(state.cluster_models, ProblemInstance.of(problem()).initial_state().cluster_models)
        assert not torch.equal(state.cluster_models[0], state.cluster_models[1])

    def test_without_passes_they_are_the_model(self):
        instance = ProblemInstance.of(problem()).with_settings(shared_epochs=0, separate_epochs=0)
        models = instance.initial_state().cluster_models
        assert torch.equal(models, flatten(instance.model).expand(2, -1))

    def test_each_thread_has_an_evaluator_of_its_own(self):
        instance = ProblemInstance.of(problem())
        one, other = instance.evaluator(), instance.evaluator()
        assert one.model is not other.model
        models = instance.initial_state().cluster_models
        assert torch.equal(one(models, torch.arange(2)), other(models, torch.arange(2)))
        assert torch.equal(one.of_each([models[1]])[0].float(), one(models[1].expand(2, -1), torch.arange(2)))

    def test_a_server_may_take_all_samples(self):
        greedy = problem(sizes=cdfl.Sizes(pretraining=15, proxy=5))
        instance = ProblemInstance.of(greedy)
        assert [len(targets) for _, targets in instance.sets("pretraining")] == [15, 15]
        assert [len(targets) for _, targets in instance.proxy_sets] == [5, 5]
