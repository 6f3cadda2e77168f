import json
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from cdfl.json_values import jsonable
from cdfl.upload_policies import Sometimes, Unless

ROOT = Path(__file__).parents[1]


class Own:
    def __init__(self, **attributes):
        self.__dict__ |= attributes


@dataclass(frozen=True)
class Inner:
    own: Own
    shares: tuple[float, ...] = (0.5, 0.5)


def test_objects():
    held = Inner(Own(hour=3, names={"b", "a"}, array=np.arange(2), tensor=torch.ones(1), folder=Path("data")))
    own = {"kind": "Own", "hour": 3, "names": ["a", "b"], "array": [0, 1], "tensor": [1.0]}
    assert jsonable(held)["shares"] == [0.5, 0.5]
    assert {**jsonable(held)["own"], "folder": None} == {**own, "folder": None}
    assert jsonable(Own(hour=3)) != jsonable(Own(hour=4))


def test_functions_and_classes():
    assert jsonable(nn.Linear) == "torch.nn.modules.linear.Linear"
    assert jsonable(Unless(Sometimes(), jsonable))["veto"] == "cdfl.json_values.jsonable"
    assert jsonable(partial(jsonable, inside=(1,))) == ["cdfl.json_values.jsonable", [], {"inside": [1]}]


def test_cycles_stop():
    own = Own()
    own.me = own
    assert jsonable(own) == {"kind": "Own", "me": {"kind": "Own"}}


class Varies:
    """Its repr and the order of its set differ from process to process."""

    def __init__(self):
        self.rng, self.words, self.key = np.random.default_rng(0), set("abc"), object()


def test_values_are_equal_in_every_process():
    program = (
        "import json\nfrom cdfl.json_values import jsonable\nfrom tests.test_json_values import Varies\n"
        "print(json.dumps(jsonable(Varies())))"
    )
    elsewhere = subprocess.check_output([sys.executable, "-c", program], text=True, cwd=ROOT)  # noqa: S603
    assert json.loads(elsewhere) == jsonable(Varies())
    assert jsonable(Varies())["words"] == ["a", "b", "c"]
