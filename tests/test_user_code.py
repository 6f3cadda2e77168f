import sys
from pathlib import Path

import pytest

from cdfl.user_code import SetupError, load_python

pytestmark = pytest.mark.slow


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "mine.py"


def said_of(path):
    with pytest.raises(SetupError) as caught:
        load_python(str(path), "write one")
    return str(caught.value)


def test_a_file_may_import_its_neighbours_at_once_or_later(file):
    (file.parent / "my_numbers.py").write_text("one = 1")
    (file.parent / "my_later_numbers.py").write_text("two = 2")
    file.write_text(
        "import my_numbers\none = my_numbers.one\ndef later():\n    import my_later_numbers as m; return m.two"
    )
    module = load_python(str(file), "")
    assert (module.one, module.later()) == (1, 2)


def test_a_changed_file_is_read_again(file):
    for number in (1, 2):  # the same length, within one second
        file.write_text(f"number = {number}")
        assert load_python(str(file), "").number == number
    assert [path.name for path in file.parent.iterdir()] == ["mine.py"]  # and nothing is left beside it


def test_each_file_has_its_own_neighbours(file):
    """Two folders with files of the same names, loaded in turn; and a neighbour that was edited."""
    for name in ("a", "b"):
        folder = file.parent / name
        (folder / "my_parts").mkdir(parents=True)
        (folder / "my_helper.py").write_text(f"name = {name!r}")
        (folder / "my_parts" / "one.py").write_text(f"name = {name!r}")
        (folder / "mine.py").write_text("import my_helper, my_parts.one\nnames = my_helper.name + my_parts.one.name")
    for name in ("a", "b", "a"):
        assert load_python(str(file.parent / name / "mine.py"), "").names == name + name
    (file.parent / "a" / "my_helper.py").write_text("name = 'edited '")
    assert load_python(str(file.parent / "a" / "mine.py"), "").names == "edited a"


def test_modules_loaded_before_are_not_loaded_again(file, monkeypatch):
    """A package of which the folder happens to hold the file: cdfl, say, in a clone of it."""
    monkeypatch.syspath_prepend(file.parent)
    (file.parent / "my_package.py").write_text("class Thing: pass")
    package = __import__("my_package")
    sys.path.remove(str(file.parent))
    file.write_text("from my_package import Thing\nimport wave")  # and one of Python's own
    for _ in range(2):
        assert load_python(str(file), "").Thing is package.Thing
    wave = sys.modules["wave"]
    assert load_python(str(file), "").wave is wave


def test_the_module_name_is_stable(file):
    """Names in it stand in the settings of a run, which a resumed one must share."""
    file.write_text("def net(): pass")
    assert load_python(str(file), "").net.__module__ == "<run_path>"


def test_dunder_file_is_absolute(file, monkeypatch):
    file.write_text("place = __file__")
    monkeypatch.chdir(file.parent)
    assert load_python("mine.py", "").place == str(file)


@pytest.mark.parametrize("place", ["../t2/nothere", "a", "a/b", ".", "", "no-such", "a."])
def test_names_that_are_not_modules(file, monkeypatch, place):
    monkeypatch.chdir(file.parent)
    Path("a", "b").mkdir(parents=True)
    assert said_of(place) == f"there is no file or module {place}; write one"


def test_a_package_is_a_module(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    Path("my_package_of_set_ups").mkdir()
    Path("my_package_of_set_ups", "__init__.py").write_text("one = 1")
    assert load_python("my_package_of_set_ups", "").one == 1


def test_missing_modules(file):
    file.write_text("\nimport no_such.thing\n")
    assert said_of(file) == f"{file}, line 2: there is no module no_such; install it, or put no_such.py beside the file"
    file.write_text("import cv2.no_such\n")
    assert said_of(file).endswith("there is no module cv2; pip install opencv-python, or put cv2.py beside the file")
    (file.parent / "my_neighbour.py").write_text("import no_such_either")
    file.write_text("import my_neighbour")
    assert said_of(file).startswith(f"{file.parent / 'my_neighbour.py'}, line 1: there is no module no_such_either;")
    assert said_of(file.parent / "other.py") == f"there is no file {file.parent / 'other.py'}; write one"
    assert said_of("no.such.module") == "there is no file or module no.such.module; write one"


def test_a_package_that_cdfl_misses_is_no_error_of_the_file(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    file.write_text("from cdfl.data import load_source\nload_source('digits')")
    with pytest.raises(ModuleNotFoundError, match=r"sklearn.datasets") as caught:
        load_python(str(file), "")
    assert caught.value.name == "sklearn.datasets"


def test_a_package_error_with_a_remedy_passes_through(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "river", None)
    file.write_text("from cdfl.upload_policies import DriftDetected\npolicy = DriftDetected('NoDrift')")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'cdfl\[client\]'"):
        load_python(str(file), "")


def test_a_module_error_without_a_name(file):
    file.write_text("raise ModuleNotFoundError('needs the driver')")
    assert said_of(file).startswith(f"{file}, line 1: reading it failed with ModuleNotFoundError: needs the driver;")


@pytest.mark.parametrize("name", ["rows.csv", "text.txt"])
def test_data_are_neither_run_nor_imported(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.py").write_text("raise AssertionError('imported')")
    for _ in range(2):
        with pytest.raises(SetupError, match=rf"^{name} is no Python file; load your data in one, .* cdfl.Table"):
            load_python(name, "write it")
        (tmp_path / name).write_text("size,town\n1,2\n")
