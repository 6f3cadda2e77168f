"""Files and objects of a user's own, and mistakes in them."""

import sys

import pytest

from cdfl.own import SetupError, check_method, load_python

from .cli.small import call


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "mine.py"


def said_of(path):
    with pytest.raises(SetupError) as caught:
        load_python(str(path), "write one")
    return str(caught.value)


def test_a_file_may_import_what_lies_beside_it_then_and_later(own):
    (own.parent / "my_numbers.py").write_text("one = 1")
    (own.parent / "my_later_numbers.py").write_text("two = 2")
    own.write_text(
        "import my_numbers\none = my_numbers.one\ndef later():\n    import my_later_numbers as m; return m.two"
    )
    module = load_python(str(own), "")
    assert (module.one, module.later()) == (1, 2)


def test_a_file_is_read_as_it_is_now(own):
    for number in (1, 2):  # the same length, within one second
        own.write_text(f"number = {number}")
        assert load_python(str(own), "").number == number
    assert [path.name for path in own.parent.iterdir()] == ["mine.py"]  # and nothing is left beside it


def test_modules_that_are_not_there(own):
    own.write_text("\nimport no_such.thing\n")
    assert said_of(own) == f"{own}, line 2: there is no module no_such; install it, or put no_such.py beside the file"
    (own.parent / "my_neighbour.py").write_text("import no_such_either")
    own.write_text("import my_neighbour")
    assert said_of(own).startswith(f"{own.parent / 'my_neighbour.py'}, line 1: there is no module no_such_either;")
    assert said_of(own.parent / "other.py") == f"there is no file {own.parent / 'other.py'}; write one"
    assert said_of("no.such.module") == "there is no file or module no.such.module; write one"


def test_packages_that_cdfl_misses_are_no_mistake_in_the_file(own, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    own.write_text("from cdfl.data import load_source\nload_source('digits')")
    with pytest.raises(ModuleNotFoundError, match=r"sklearn.datasets") as caught:
        load_python(str(own), "")
    assert caught.value.name == "sklearn.datasets"


def test_packages_that_know_their_remedy_are_no_mistake_in_the_file(own, monkeypatch):
    monkeypatch.setitem(sys.modules, "river", None)
    own.write_text("from cdfl.policy import DriftDetected\npolicy = DriftDetected('NoDrift')")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'cdfl\[client\]'"):
        load_python(str(own), "")


def test_objects_with_a_method():
    check_method("clock", "a word", "split", 2, "an object with split(a, b)")
    with pytest.raises(ValueError, match=r"clock is 3; expected an object with tick"):
        check_method("clock", 3, "tick", 0, "an object with tick()")


SCENARIO = "from dataclasses import replace\nfrom cdfl.scenarios import load_scenario\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "scenario = 1/0",
            "line 3: reading it failed with ZeroDivisionError: division by zero; expected a Python file",
        ),
        ("import no_such", "line 3: there is no module no_such; install it, or put no_such.py beside the file"),
        ("scenario = (", "line 3: no valid Python: '(' was never closed"),
        (
            "scenario = replace(load_scenario('digits-4'), model='net')",
            "line 3: reading it failed with ValueError: digits-4: there is no model 'net'; expected one of cnn",
        ),
    ],
)
def test_mistakes_in_a_scenario_file_are_one_line(own, text, words):
    own.write_text(SCENARIO + text)
    code, said = call("run", own)
    assert (code, "pip install" in said) == (2, False)
    assert said.startswith(f"cdfl: {own}, {words}")


def test_an_extra_is_not_blamed_for_what_a_file_imports_later(own):
    later = "def net(input_shape, num_classes):\n    import no_such\n"
    own.write_text(SCENARIO + later + "scenario = replace(load_scenario('digits-4'), model=net)")
    assert call("run", own, "--out", own.parent / "run") == (2, "cdfl: No module named 'no_such'")


def test_a_scenario_file_may_import_what_lies_beside_it(own):
    (own.parent / "my_scenario_parts.py").write_text("uploads = 3")
    text = "import my_scenario_parts as mine\nscenario = replace(load_scenario('digits-4'), num_uploads=mine.uploads)\n"
    own.write_text(SCENARIO + text)
    settings = ("--set", "local_epochs=1", "--set", "shared_epochs=1", "--set", "separate_epochs=1")
    code, said = call("run", own, "--clients", 3, "--out", own.parent / "run", *settings)
    assert (code, "seed 0: 3 uploads" in said) == (0, True)
