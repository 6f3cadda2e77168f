"""Files and objects of a user's own, and mistakes in them."""

import sys
from pathlib import Path

import pytest

from cdfl.checks import check_method, check_number
from cdfl.userfile import SetupError, load_python

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


def test_each_file_has_its_own_neighbours(own):
    """Two folders with files of the same names, loaded in turn; and a neighbour that was edited."""
    for name in ("a", "b"):
        folder = own.parent / name
        (folder / "my_parts").mkdir(parents=True)
        (folder / "my_helper.py").write_text(f"name = {name!r}")
        (folder / "my_parts" / "one.py").write_text(f"name = {name!r}")
        (folder / "mine.py").write_text("import my_helper, my_parts.one\nnames = my_helper.name + my_parts.one.name")
    for name in ("a", "b", "a"):
        assert load_python(str(own.parent / name / "mine.py"), "").names == name + name
    (own.parent / "a" / "my_helper.py").write_text("name = 'edited '")
    assert load_python(str(own.parent / "a" / "mine.py"), "").names == "edited a"


def test_what_was_imported_before_a_file_is_not_imported_again(own, monkeypatch):
    """A package of which the folder happens to hold the file: cdfl, say, in a clone of it."""
    monkeypatch.syspath_prepend(own.parent)
    (own.parent / "my_package.py").write_text("class Thing: pass")
    package = __import__("my_package")
    sys.path.remove(str(own.parent))
    own.write_text("from my_package import Thing\nimport wave")  # and one of Python's own
    for _ in range(2):
        assert load_python(str(own), "").Thing is package.Thing
    wave = sys.modules["wave"]
    assert load_python(str(own), "").wave is wave


def test_a_file_is_called_as_in_the_runs_there_are(own):
    """Names in it stand in the settings of a run, which a resumed one must share."""
    own.write_text("def net(): pass")
    assert load_python(str(own), "").net.__module__ == "<run_path>"


def test_a_file_knows_where_it_lies_wherever_one_goes(own, monkeypatch):
    own.write_text("place = __file__")
    monkeypatch.chdir(own.parent)
    assert load_python("mine.py", "").place == str(own)


@pytest.mark.parametrize("place", ["../t2/nothere", "a", "a/b", ".", "", "no-such", "a."])
def test_what_can_be_no_module(own, monkeypatch, place):
    monkeypatch.chdir(own.parent)
    Path("a", "b").mkdir(parents=True)
    assert said_of(place) == f"there is no file or module {place}; write one"


def test_a_package_is_a_module(own, monkeypatch):
    monkeypatch.chdir(own.parent)
    Path("my_package_of_set_ups").mkdir()
    Path("my_package_of_set_ups", "__init__.py").write_text("one = 1")
    assert load_python("my_package_of_set_ups", "").one == 1


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


def test_a_missing_module_without_a_name_is_told_in_its_words(own):
    own.write_text("raise ModuleNotFoundError('needs the driver')")
    assert said_of(own).startswith(f"{own}, line 1: reading it failed with ModuleNotFoundError: needs the driver;")


def test_numbers_may_be_of_any_size():
    check_number("seed", 10**400, 0, whole=True)
    check_number("seconds", float("inf"), 0)
    with pytest.raises(ValueError, match="tolerance is inf; expected a finite number, 0 or more"):
        check_number("tolerance", float("inf"), 0, finite=True)


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
