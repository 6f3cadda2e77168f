"""One description of a problem: what it takes, and what it refuses in one sentence."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import cdfl
from cdfl.core import Settings
from cdfl.data import DataError, Rotations
from cdfl.scenarios import Scenario, load_problem, load_scenario
from cdfl.upload_policies import LossRises
from cdfl.user_code import SetupError

INPUTS, TARGETS = torch.arange(24.0).view(12, 2), torch.arange(12) % 3
NET = nn.Linear(2, 3)
TWO = {"north": (INPUTS, TARGETS), "south": (INPUTS + 1, TARGETS)}


def problem(**changes):
    return cdfl.Problem(**{"model": NET, "clusters": TWO, **changes})


class TestClusters:
    @pytest.mark.parametrize(
        "data",
        [
            (INPUTS, TARGETS),
            (INPUTS.numpy(), TARGETS.numpy()),
            (INPUTS.tolist(), TARGETS.tolist()),
            [INPUTS, TARGETS],
            (list(INPUTS), list(TARGETS)),
            (INPUTS.double(), TARGETS.to(torch.uint8)),
            TensorDataset(INPUTS, TARGETS),
            [(INPUTS, TARGETS)][0],
        ],
        ids=["tensors", "arrays", "lists", "a list of two", "lists of tensors", "other types", "a dataset", "a tuple"],
    )
    def test_forms_of_a_clusters_data(self, data):
        federation = problem(clusters={"north": data}).federation()
        assert federation.names == ["north"]
        everything = [federation.fetch(federation.all_samples(part, 0)) for part in ("pretraining", "train")]
        everything += [federation.fetch(federation.all_samples(part, 0)) for part in ("proxy", "test")]
        inputs, targets = (torch.cat(parts) for parts in zip(*everything, strict=True))
        assert inputs.dtype == torch.float32
        assert targets.dtype == torch.int64
        order = inputs[:, 0].argsort()
        assert torch.equal(inputs[order], INPUTS)
        assert torch.equal(targets[order], TARGETS)

    def test_names_or_a_list(self):
        assert problem().federation().names == ["north", "south"]
        assert problem(clusters=list(TWO.values())).federation().names == ["cluster 0", "cluster 1"]
        assert problem(clusters=Rotations("digits", 3), model="small-cnn").num_clusters == 3

    def test_a_function_is_called_when_the_data_are_needed(self):
        calls = []
        lazy = problem(clusters=lambda: calls.append(1) or TWO)
        assert not calls
        assert lazy.num_clusters == 2
        assert lazy.federation().num_clusters == 2
        assert calls == [1]

    def test_images_in_numpy_are_channels_last_and_in_torch_channels_first(self):
        images = np.zeros((8, 4, 5, 3), np.uint8)
        for given in (images, torch.zeros(8, 3, 4, 5, dtype=torch.uint8)):
            federation = problem(clusters={"a": (given, [0, 1] * 4)}).federation()
            assert federation.input_shape == (3, 4, 5)
            assert federation.is_image

    def test_the_test_half_is_the_same_for_every_seed(self):
        many = torch.arange(200.0).view(100, 2), torch.arange(100) % 3
        scored = [set(problem(clusters={"a": many}).federation(seed).test(0)[0][:, 0].tolist()) for seed in range(3)]
        trained = [
            set(problem(clusters={"a": many}).federation(seed).pretraining(0)[0][:, 0].tolist()) for seed in (7, 8)
        ]
        assert not (scored[0] | scored[1] | scored[2]) & (trained[0] | trained[1])

    def test_numbers_or_classes(self):
        assert problem().federation().num_outputs == 3
        numbers = problem(clusters={"a": (INPUTS, INPUTS * 2)}).federation()
        assert (numbers.num_classes, numbers.num_outputs) == (None, 2)

    @pytest.mark.parametrize(
        ("clusters", "words"),
        [
            ({}, "there are no clusters; expected the data of one at least"),
            (3, r"clusters are of type int; expected for each cluster its data, by name: a pair \(inputs, targets\)"),
            ("folder", "clusters are of type str; expected for each cluster its data"),
            ({"a": INPUTS}, r"cluster 'a' is of type torch.Tensor; expected a pair \(inputs, targets\)"),
            ({"a": (INPUTS, TARGETS, 3)}, "cluster 'a' is a tuple of 3; expected a pair"),
            ({"a": (INPUTS, TARGETS[:5])}, "cluster 'a' has 12 inputs and 5 targets; expected as many"),
            (
                {"a": (INPUTS[:3], TARGETS[:3])},
                "cluster 'a' has 3 samples; expected at least 4 to divide: add some, join it with another",
            ),
            ({"a": (INPUTS[:0], TARGETS[:0])}, "cluster 'a' has 0 samples; expected at least 4"),
            (
                {"a": ([[1, 2], [3]] * 4, [0] * 8)},
                "cluster 'a': inputs: sample 1 has 1 values and sample 0 2",
            ),
            (
                {"a": ([torch.zeros(2), torch.zeros(3)], [0, 1])},
                r"sample 1 has shape \[3\] and sample 0 \[2\]; .* pad or cut",
            ),
            (
                {"a": (["cat", "horse"] * 4, [0] * 8)},
                r"cluster 'a': inputs hold words, such as 'cat'; expected numbers: numpy.unique\(words, return_inverse",
            ),
            ({"a": (INPUTS, ["no", "yes"] * 6)}, "cluster 'a': targets hold words, such as 'no'"),
            (
                {"a": (np.array(["2026-01-01"] * 8, "datetime64[D]"), [0] * 8)},
                "cluster 'a': inputs hold dates, such as '2026-01-01'; expected numbers, such as the days since",
            ),
            (
                {"a": ([[1.0, None]] * 4, [0] * 4)},
                r"cluster 'a': inputs\[0, 1\] is nan, and 4 of 4 samples",
            ),
            ({"a": ([[1.0, "x"]] * 4, [0] * 4)}, "cluster 'a': inputs hold words, such as 'x'; expected numbers"),
            (
                {"a": (np.array([[1.0, "x"]] * 4, object), [0] * 4)},
                "cluster 'a': inputs hold 'x'; expected numbers",
            ),
            ({"a": (torch.zeros(8, 2, dtype=torch.complex64), [0] * 8)}, "inputs are complex numbers; expected real"),
            ({"a": (torch.zeros(8, 3, dtype=torch.uint8), [0] * 8)}, r"inputs are uint8 \(6, 3\); expected floating-p"),
            (
                {"a": (INPUTS, TARGETS - 1)},
                "cluster 'a': label -1 of sample 0 is out of range; 2 classes are numbered 0..1",
            ),
            (
                {"a": (INPUTS, TARGETS), "b": (INPUTS[:, :1], TARGETS)},
                r"cluster 'b' has inputs \[1\] \(torch.float32\) and cluster 'a' \[2\] .* expected one shape and type",
            ),
            (
                {"a": (INPUTS, TARGETS), "b": (INPUTS, TARGETS.float())},
                r"cluster 'b' has targets \[\] \(torch.float32\) and cluster 'a' \[\] \(torch.int64\)",
            ),
        ],
    )
    def test_what_is_refused(self, clusters, words):
        with pytest.raises(DataError, match=words):
            problem(clusters=clusters).federation()

    @pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
    def test_missing_values_say_where(self, wrong):
        inputs = INPUTS.clone()
        inputs[7, 1] = wrong
        words = rf"cluster 'a': inputs\[7, 1\] is {wrong}, and 1 of 12 samples have such values; drop these samples"
        with pytest.raises(DataError, match=words):
            problem(clusters={"a": (inputs, TARGETS)})

    def test_a_dataset_of_pictures_needs_tensors(self):
        from PIL import Image

        class Pictures(torch.utils.data.Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, number):
                return Image.new("L", (4, 4)), 0

        with pytest.raises(DataError, match=r"cluster 'a': inputs are of type PIL.Image; .*PILToTensor"):
            problem(clusters={"a": Pictures()})

    def test_a_dataset_without_a_length_is_refused(self):
        class Endless(torch.utils.data.IterableDataset):
            def __iter__(self):
                yield INPUTS[0], 0

        with pytest.raises(DataError, match=r"cluster 'a' is a dataset without a length"):
            problem(clusters={"a": Endless()})


class TestFields:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"model": 3}, "`model` is of type int; expected a torch.nn.Module, or a function that returns one"),
            ({"model": nn.ReLU()}, "`model` has no parameters"),
            ({"model": "cnm"}, r"there is no model 'cnm'; there are cnn, .*; did you mean cnn\?"),
            (
                {"loss": nn.MSELoss},
                r"`loss` is the class MSELoss; expected a function of \(outputs, targets\): MSELoss\(\)",
            ),
            ({"loss": 3}, "`loss` is of type int; expected a function"),
            ({"settings": 3}, "`settings` is of type int; expected cdfl.Settings, or some by name"),
            ({"sizes": 3}, r"`sizes` is of type int; expected cdfl.Sizes\(...\)"),
            ({"stream": [1]}, "`stream` is a list of 1; expected a function: client_id -> iterable of fresh data"),
            ({"policy": 5}, r"`policy` is 5; expected an object with decide\(memory, observation\)"),
            ({"policy": LossRises}, "`policy` is the class LossRises; expected an object"),
            ({"drift": "sudden"}, r"`drift` is 'sudden'; expected an object with counts\(seed, client, update"),
            ({"metrics": ["acc"]}, "there is no metric 'acc'"),
            ({"name": "a/b"}, "a problem has the name 'a/b', but files and folders are named after it"),
        ],
    )
    def test_what_is_refused(self, changes, words):
        with pytest.raises(ValueError, match=words):
            problem(**changes)

    def test_a_client_needs_no_clusters(self):
        alone = problem(clusters=None)
        with pytest.raises(SetupError, match="there are no `clusters`; expected the data of each"):
            alone.federation()

    def test_defaults_follow_the_loss(self):
        assert [metric.name for metric in problem().metrics] == ["accuracy"]
        assert [metric.name for metric in problem(loss=F.mse_loss).metrics] == ["rmse"]

    def test_settings_whole_or_in_part(self):
        assert problem(settings={"base_rate": 0.2}).all_settings == Settings(base_rate=0.2)
        assert problem(settings=Settings(base_rate=0.2)).all_settings == Settings(base_rate=0.2)
        assert problem().with_settings(base_rate=0.3).all_settings == Settings(base_rate=0.3)

    def test_it_can_be_stored(self):
        stored = problem(model=NET).to_dict()
        assert json.loads(json.dumps(stored)) == stored
        assert stored["model"] == repr(NET)
        assert stored["clusters"]["datasets"][0]["name"] == "north"
        other = problem(clusters={"north": (INPUTS + 1, TARGETS), "south": TWO["south"]}).to_dict()
        assert other != stored  # other data are noticed
        assert problem().to_dict() == stored

    def test_a_repr_is_short(self):
        assert len(repr(problem())) < 900

    def test_a_scenario_is_a_problem_with_clients(self):
        scenario = Scenario.of(problem())
        assert (scenario.num_clients, scenario.num_uploads) == (20, 300)
        assert Scenario.of(problem(), num_clients=4).num_uploads == 60
        assert Scenario.of(scenario) is scenario
        assert Scenario.of(scenario, num_uploads=5).num_clients == 20
        assert replace(scenario, model="cnn").clusters is scenario.clusters


FILE = """
import torch
import cdfl
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)
    def forward(self, inputs):
        return self.linear(inputs)

clusters = {{"a": (torch.ones(8, 2), torch.ones(8, 1))}}
problem = cdfl.Problem(model={model}, loss=nn.functional.mse_loss, clusters=clusters)
"""


@pytest.fixture
def place(tmp_path):
    path = tmp_path / "my_setup.py"
    path.write_text(FILE.format(model="Net()"))
    return path


def said_by(attempt):
    with pytest.raises(SetupError) as caught:
        attempt()
    return str(caught.value)


class TestFiles:
    def test_a_file(self, place):
        found = load_problem(str(place))
        assert (found.num_clusters, found.name, found.place) == (1, "my_setup", str(place))

    def test_a_module(self, place, monkeypatch):
        monkeypatch.syspath_prepend(str(place.parent))
        assert load_problem("my_setup").num_clusters == 1

    def test_a_module_in_the_folder_it_is_started_in(self, place, monkeypatch):
        monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
        monkeypatch.delitem(sys.modules, "my_setup", raising=False)
        monkeypatch.chdir(place.parent)
        assert load_problem("my_setup").num_clusters == 1

    def test_a_file_that_imports_what_lies_beside_it(self, place, monkeypatch):
        monkeypatch.setattr(sys, "path", list(sys.path))
        (place.parent / "my_network.py").write_text(FILE.format(model="Net()"))
        place.write_text("from my_network import problem")
        assert load_problem(str(place)).num_clusters == 1

    def test_a_name(self):
        assert load_problem("digits-4") is load_scenario("digits-4")

    def test_nothing_there(self):
        assert "there is no file no/such/file.py; `cdfl init` writes an example" in said_by(
            lambda: load_problem("no/such/file.py")
        )
        with pytest.raises(DataError, match=r"there is no scenario 'digits-5'; .*; did you mean digits-4\?"):
            load_problem("digits-5")

    def test_a_file_without_a_problem(self, place):
        place.write_text("model = 1")
        said = said_by(lambda: load_problem(str(place)))
        assert (
            said
            == f"{place} does not set `problem`; expected problem = cdfl.Problem(...); `cdfl init` writes an example"
        )
        place.write_text("problem = 1")
        assert "sets `problem` to int; expected problem = cdfl.Problem(...)" in said_by(
            lambda: load_problem(str(place))
        )

    def test_a_module_that_itself_lacks_something(self, place):
        place.write_text("import no_such_library")
        said = said_by(lambda: load_problem(str(place)))
        assert said.endswith(
            "line 1: there is no module no_such_library; install it, or put no_such_library.py beside the file"
        )

    def test_no_python(self, place):
        place.write_text("model = 1\nloss = (\n")
        assert said_by(lambda: load_problem(str(place))) == f"{place}, line 2: invalid Python: '(' was never closed"

    def test_code_that_fails(self, place):
        place.write_text("import torch\n\nmodel = torch.nn.Linear(2)\n")
        said = said_by(lambda: load_problem(str(place)))
        assert said.startswith(
            f"{place}, line 3: reading it failed with TypeError: Linear.__init__() missing 1 required"
        )
        assert said.endswith("; expected a Python file that runs without an error")

    def test_code_beside_it_that_fails(self, place, monkeypatch):
        monkeypatch.setattr(sys, "path", list(sys.path))
        helper = place.parent / "my_broken_layers.py"
        helper.write_text("size = 3\nsize.shape\n")
        place.write_text("import my_broken_layers")
        said = said_by(lambda: load_problem(str(place)))
        assert said.startswith(f"{helper}, line 2: reading it failed with AttributeError: 'int' object has no")

    def test_a_path_is_shown_as_short_as_it_can_be(self, place, monkeypatch):
        monkeypatch.chdir(place.parent)
        place.write_text("1 / 0")
        assert said_by(lambda: load_problem("my_setup.py")).startswith(
            "my_setup.py, line 1: reading it failed with Zero"
        )

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ("model=Net()", "model=3", "`model` is of type int; expected a torch.nn.Module"),
            (
                "torch.ones(8, 2)",
                "torch.full((8, 2), torch.nan)",
                "cluster 'a': inputs[0, 0] is nan, and 8 of 8 samples have",
            ),
            ("torch.ones(8, 1))}", "torch.ones(7, 1))}", "cluster 'a' has 8 inputs and 7 targets; expected as many"),
        ],
    )
    def test_a_mistake_in_the_problem_names_the_line(self, place, old, new, words):
        place.write_text(place.read_text().replace(old, new))
        assert said_by(lambda: load_problem(str(place))).startswith(f"{place}, line 14: {words}")
