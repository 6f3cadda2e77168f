"""Every example runs, in a folder of its own."""

import json
import re
import runpy
from pathlib import Path

import matplotlib as mpl
import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).resolve().parent.parent / "examples"
SCRIPTS = sorted(FOLDER.glob("*.py"))
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cdfl.algorithms.ALGORITHMS", dict(__import__("cdfl.algorithms").algorithms.ALGORITHMS))
    mpl.use("Agg")
    yield
    from matplotlib import pyplot

    pyplot.close("all")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script(script, capsys):
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []  # stored without results, which would go stale
            exec(compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec"), names)  # noqa: S102


def test_the_page_lists_every_example():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\((\w+\.\w+)\)", page)) == {path.name for path in (*SCRIPTS, *NOTEBOOKS)}
    assert all(len(path.read_text(encoding="utf-8").splitlines()) <= 45 for path in SCRIPTS)
