"""What a server learns, and how it starts, with and without a past."""

import sys

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cdfl.core import Settings
from cdfl.server.run import in_service, open_engine
from cdfl.server.setup import Setup, load_setup
from cdfl.server.store import Store
from cdfl.userfile import SetupError

from .live import data, tiny_setup
from .toy import same_state

pytestmark = pytest.mark.slow

FILE = """
import torch
from torch import nn
from torch.nn.functional import mse_loss as loss

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)
    def forward(self, inputs):
        return self.linear(inputs)

model = {model}
proxy_sets = [(torch.ones(4, 2), torch.zeros(4, 1)), (torch.ones(4, 2), torch.ones(4, 1))]
"""


@pytest.fixture
def place(tmp_path):
    path = tmp_path / "my_setup.py"
    path.write_text(FILE.format(model="Net()"))
    return path


class TestLoading:
    def test_a_file(self, place):
        setup = load_setup(str(place))
        assert (setup.num_clusters, setup.pretraining_sets, setup.settings) == (2, None, Settings())
        assert setup.layout.names == ("linear.weight", "linear.bias")

    def test_a_module(self, place, monkeypatch):
        monkeypatch.syspath_prepend(str(place.parent))
        assert load_setup("my_setup").num_clusters == 2

    def test_a_module_in_the_folder_it_is_started_in(self, place, monkeypatch):
        monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
        monkeypatch.delitem(sys.modules, "my_setup", raising=False)
        monkeypatch.chdir(place.parent)
        assert load_setup("my_setup").num_clusters == 2

    def test_a_file_that_imports_what_lies_beside_it(self, place, monkeypatch):
        monkeypatch.setattr(sys, "path", list(sys.path))
        (place.parent / "my_network.py").write_text(FILE.format(model="Net()"))
        place.write_text("from my_network import loss, model, proxy_sets")
        assert load_setup(str(place)).num_clusters == 2

    def test_a_model_may_be_made_by_a_function(self, place):
        place.write_text(FILE.format(model="Net"))
        assert isinstance(load_setup(str(place)).model, nn.Module)

    @pytest.mark.parametrize("name", ["no/such/file.py", "no_such_module", "no.such.module"])
    def test_nothing_there(self, name):
        with pytest.raises(SetupError, match=r"there is no file .*cdfl init"):
            load_setup(name)

    def test_names_that_are_missing(self, place):
        place.write_text("model = 1")
        with pytest.raises(SetupError, match="does not name loss, proxy_sets"):
            load_setup(str(place))

    def test_a_module_that_itself_lacks_something(self, place):
        place.write_text("import no_such_library")
        words = r"my_setup.py, line 1: there is no module no_such_library; install it, or put no_such_library.py beside"
        with pytest.raises(SetupError, match=words):
            load_setup(str(place))

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"model": "net"}, "`model` is of type str"),
            ({"model": nn.ReLU()}, "`model` has no parameters"),
            ({"loss": 3}, "`loss` is of type int; expected a function"),
            ({"settings": {}}, "`settings` is of type dict"),
            ({"proxy_sets": []}, "`proxy_sets` has sets of"),
            ({"proxy_sets": 3}, "`proxy_sets` is of type int; expected a list"),
            (
                {"proxy_sets": [data(0, 4), (*data(0, 4), "car-7")]},
                r"`proxy_sets\[1\]` is a tuple of 3; expected a pair",
            ),
            (
                {"proxy_sets": [torch.ones(2, 3)]},
                r"`proxy_sets\[0\]` is a tensor of shape \[2, 3\] \(float32\); expected",
            ),
            ({"proxy_sets": [(3, 4)]}, r"`proxy_sets\[0\]` is \(of type int, of type int\); expected two tensors"),
            ({"proxy_sets": [(torch.ones(3), torch.ones(4))]}, "equal numbers of both"),
            ({"proxy_sets": [(torch.ones(0), torch.ones(0))]}, "at least one"),
            ({"pretraining_sets": [data(0, 4)]}, "1 pretraining_sets and 3 proxy_sets"),
        ],
    )
    def test_what_cannot_be_served(self, changes, words):
        with pytest.raises(SetupError, match=words):
            tiny_setup(**changes)


def said_by(attempt):
    with pytest.raises(SetupError) as caught:
        attempt()
    return str(caught.value)


class TestMistakes:
    """One line: the file, its line where it has one, what came, what was expected."""

    def test_no_python(self, place):
        place.write_text("model = 1\nloss = (\n")
        assert said_by(lambda: load_setup(str(place))) == f"{place}, line 2: invalid Python: '(' was never closed"

    def test_code_that_fails(self, place):
        place.write_text("import torch\n\nmodel = torch.nn.Linear(2)\n")
        said = said_by(lambda: load_setup(str(place)))
        assert said.startswith(
            f"{place}, line 3: reading it failed with TypeError: Linear.__init__() missing 1 required"
        )
        assert said.endswith("; expected a Python file that runs without an error")

    def test_code_beside_it_that_fails(self, place, monkeypatch):
        monkeypatch.setattr(sys, "path", list(sys.path))
        helper = place.parent / "my_broken_layers.py"
        helper.write_text("size = 3\nsize.shape\n")
        place.write_text("import my_broken_layers")
        said = said_by(lambda: load_setup(str(place)))
        assert said.startswith(f"{helper}, line 2: reading it failed with AttributeError: 'int' object has no")

    def test_a_path_is_shown_as_short_as_it_can_be(self, place, monkeypatch):
        monkeypatch.chdir(place.parent)
        place.write_text("1 / 0")
        assert said_by(lambda: load_setup("my_setup.py")).startswith("my_setup.py, line 1: reading it failed with Zero")

    def test_a_function_that_makes_no_model(self, place):
        place.write_text(FILE.format(model="lambda: Net(3)"))
        said = said_by(lambda: load_setup(str(place)))
        assert said.startswith(f"{place}, line 13: `model()` failed with TypeError: Net.__init__() takes 1 positional")
        assert said.endswith("; expected a torch.nn.Module")

    def test_a_model_that_cannot_look_at_a_proxy_set(self, place):
        place.write_text(FILE.format(model="Net()").replace("4, 2", "4, 3"))
        said = said_by(load_setup(str(place)).try_out)
        assert (
            f"{place}, line 11: `model(inputs)` on proxy_sets[0] with a tensor of shape [4, 3] (float32) failed" in said
        )

    @pytest.mark.parametrize(
        ("loss", "words"),
        [
            ("no_such_name(outputs)", "failed with NameError: name 'no_such_name' is not defined; expected one number"),
            ("(outputs - targets) ** 2", "is a tensor of shape [4, 1] (float32); expected one number, a tensor of"),
            ("float((outputs - targets).mean())", "is of type float; expected one number, a tensor of shape []"),
        ],
    )
    def test_a_loss_that_is_none(self, place, loss, words):
        place.write_text(FILE.format(model="Net()") + f"def loss(outputs, targets):\n    return {loss}\n")
        said = said_by(load_setup(str(place)).try_out)
        came = "`loss(outputs, targets)` on proxy_sets[0] with a tensor of shape [4, 1] (float32) and a tensor"
        assert came in said
        assert words in said
        assert said.startswith(f"{place}, line 16: " if "failed" in words else f"{place}: ")

    @pytest.mark.parametrize("came", ["nan", "inf"])
    def test_a_loss_that_is_no_number(self, place, came):
        lines = f"def loss(outputs, targets):\n    return outputs.mean() + float('{came}')\n"
        place.write_text(FILE.format(model="Net()") + lines)
        said = said_by(load_setup(str(place)).try_out)
        assert said.startswith(f"{place}: `loss(outputs, targets)` on proxy_sets[0] with a tensor of shape [4, 1] ")
        assert f"is {came}; expected a finite number: check inputs" in said

    def test_pretraining_that_fails(self):
        setup = tiny_setup(pretraining_sets=[(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))] * 3)
        said = said_by(setup.start)
        assert said.startswith("the set-up: pre-training failed with RuntimeError: mat1 and mat2 shapes cannot be")

    def test_a_set_up_that_is_fine(self, place):
        tiny_setup().try_out()
        load_setup(str(place)).try_out()


class TestStart:
    def test_clusters_are_pretrained_from_one_shared_model(self):
        said = []
        state = tiny_setup().start(said.append)
        assert said[0] == "pre-training, shared model"
        assert said[1:] == [f"pre-training, cluster {number} of 3" for number in (1, 2, 3)]
        assert state.epoch == 0
        assert state.num_parameters == 10
        again = tiny_setup().start()
        assert same_state(state, again)

    def test_without_data_they_are_the_model(self):
        setup = tiny_setup(pretraining_sets=None)
        models = setup.start().cluster_models
        assert torch.equal(models[0], models[2])
        assert torch.equal(models[0][:4].view(2, 2), next(setup.model.parameters()))

    def test_each_thread_has_a_look_of_its_own(self):
        setup = tiny_setup()
        one, other = setup.evaluator(), setup.evaluator()
        assert one.model is not other.model
        models = setup.start().cluster_models
        assert torch.equal(one(models, torch.arange(3)), other(models, torch.arange(3)))
        assert torch.equal(one.of_each([models[1]])[0].float(), one(models[1].expand(3, -1), torch.arange(3)))


class TestTakingUp:
    def test_a_restart_does_not_pretrain_again(self, tmp_path):
        with Store.open(tmp_path) as store:
            first = open_engine(tiny_setup(), store)
            first.close()

        def never(message):
            raise AssertionError(message)

        with Store.open(tmp_path) as store:
            second = open_engine(tiny_setup(), store, progress=never)
            second.close()
        assert same_state(first.state, second.state)

    @pytest.mark.parametrize("pretrained", [True, False])
    def test_clusters_that_begin_equal_are_warned_of_while_it_helps(self, tmp_path, caplog, pretrained):
        setup = tiny_setup() if pretrained else tiny_setup(pretraining_sets=None)
        for told in (not pretrained, False):
            caplog.clear()
            with Store.open(tmp_path) as store:
                open_engine(setup, store).close()
            assert ("all 3 clusters begin with the same weights" in caplog.text) == told
            assert ("name pretraining_sets, and use a new --store" in caplog.text) == told

    def test_one_cluster_needs_no_warning(self, tmp_path, caplog):
        with Store.open(tmp_path) as store:
            open_engine(tiny_setup(proxy_sets=[data(0, 4)], pretraining_sets=None), store).close()
        assert caplog.text == ""

    def test_new_settings_are_kept(self, tmp_path):
        for rate in (0.1, 0.2):
            with Store.open(tmp_path) as store:
                open_engine(tiny_setup().with_settings(base_rate=rate), store).close()
                assert store.snapshots()[-1].settings.rates.base_rate == rate

    def test_another_model_is_refused(self, tmp_path):
        with Store.open(tmp_path) as store:
            open_engine(tiny_setup(), store).close()
            other = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
            with pytest.raises(
                SetupError, match=r"not the stored one: 0.bias, 0.weight, 1.bias differ; serve the stored model"
            ):
                open_engine(tiny_setup(model=other), store)

    def test_another_number_of_clusters_is_refused(self, tmp_path):
        with Store.open(tmp_path) as store:
            open_engine(tiny_setup(), store).close()
            fewer = Setup(tiny_setup().model, cross_entropy, [data(0, 4)])
            with pytest.raises(SetupError, match="1 proxy sets, the store 3 clusters"):
                open_engine(fewer, store)


def test_uploads_are_tested_for_harm_unless_that_is_asked_away():
    assert in_service(Settings(), accept_all=False).guard
    assert not in_service(Settings(guard=True), accept_all=True).guard
