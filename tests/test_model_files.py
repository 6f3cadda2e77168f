"""Cluster models as programs that run without cdfl: the same outputs, for any number of samples."""

import pytest
import torch
from torch import nn

from cdfl.model_files import write_program
from cdfl.models import build

pytestmark = pytest.mark.slow

NETWORKS = {
    "small-cnn": lambda: (build("small-cnn", (1, 8, 8), 10), torch.rand(5, 1, 8, 8)),
    "gru": lambda: (build("gru", (4,), 30), torch.randint(0, 30, (5, 4))),
}


@pytest.fixture(params=NETWORKS)
def case(request):
    torch.manual_seed(0)
    network, inputs = NETWORKS[request.param]()
    return network.eval(), inputs


def test_torch(case, tmp_path):
    network, inputs = case
    place = write_program(tmp_path / "model", network, inputs[:2], "torch")
    program = torch.export.load(place).module()
    for number in (2, 5):
        assert torch.allclose(program(inputs[:number]), network(inputs[:number]), atol=1e-5)


def test_onnx(case, tmp_path):
    pytest.importorskip("onnxscript", reason="onnx needs packages: pip install 'cdfl[onnx]'")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    network, inputs = case
    place = write_program(tmp_path / "model", network, inputs[:2], "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]  # with the weights
    program = runtime.InferenceSession(place)
    (given,) = program.get_inputs()
    for number in (1, 5):
        (found,) = program.run(None, {given.name: inputs[:number].numpy()})
        assert torch.allclose(torch.from_numpy(found), network(inputs[:number]), atol=1e-5)


def test_onnx_without_its_packages(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(ValueError, match=r"the format onnx needs two more packages: pip install 'cdfl\[onnx\]'"):
        write_program(tmp_path / "model", nn.Linear(2, 1), torch.rand(2, 2), "onnx")
