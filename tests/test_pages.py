"""The pages: their examples run, their tables are those of the result files, their links lead somewhere.

Blocks of a page run in order, in one folder and one Python namespace:

- `python` is executed; with a `title="FILE"` it is written to that file instead
- `bash` is executed; a block with `cdfl serve` runs in the background until the page ends
- `text` right after one of these is what it must print; `...` stands for anything
- a block that cannot be run has the comment `<!-- not run: REASON -->` above it
"""

import contextlib
import importlib
import io
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from benchmarks import write_tables
from cdfl import wire
from cdfl.algorithms import ALGORITHMS
from cdfl.cli import app
from cdfl.cli.init import EXAMPLE
from cdfl.problems import ProblemInstance
from cdfl.scenarios import list_scenarios, load_problem
from cdfl.server.engine_startup import open_engine
from cdfl.server.store import Store

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?"
    r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
SECONDS = 120  # for one block
CDFL = Path(sys.executable).with_name("cdfl")


class Example(NamedTuple):
    """One block to run, and what it must print."""

    line: int
    language: str
    title: str | None
    code: str
    expected: str | None = None


def examples_of(page: Path) -> list[Example]:
    """Return the blocks of a page that are run."""
    text, found, end = page.read_text(encoding="utf-8"), list[Example](), 0
    for block in FENCE.finditer(text):
        language, code = block["language"], block["text"]
        assert language in ("python", "bash", "text", "toml"), f"{page.name}: a block in {language}"
        if language == "text" and found and not text[end : block.start()].strip():
            found[-1] = found[-1]._replace(expected=code)
        elif block["title"] or (language in ("python", "bash") and not block["reason"]):
            found.append(Example(text[: block.start()].count("\n") + 1, language, block["title"], code))
        end = block.end()
    return found


class Session:
    """Runs the examples of one page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, object] = {"__name__": "__main__"}
        self.background: list[subprocess.Popen[str]] = []
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        path = os.pathsep.join([str(CDFL.parent), os.environ["PATH"]])
        python_path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        self.environment = os.environ | {"PATH": path, "PYTHONPATH": python_path, "COLUMNS": "200", "LC_ALL": "C.UTF-8"}
        self.environment |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}

    def run(self, example: Example) -> str:
        """Run one example and return what it printed."""
        code = example.code.replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
        if example.title:
            (self.folder / example.title).write_text(code, encoding="utf-8")
            return ""
        if example.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as said:
                exec(compile(code, f"line {example.line}", "exec"), self.names)  # noqa: S102
            return said.getvalue()
        if "cdfl serve" in code:
            return self.serve(re.sub(r"(cdfl serve [^\n#]*)", rf"exec \1 --port {self.port}", code))
        if all(line.startswith("cdfl ") for line in code.splitlines()):
            return "".join(self.command(shlex.split(line, comments=True)[1:]) for line in code.splitlines())
        command = ["bash", "-ec", code]
        done = subprocess.run(  # noqa: S603
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, f"line {example.line}\n{code}\n{done.stdout}\n{done.stderr}"
        return done.stdout.replace("\r", "")

    def command(self, arguments: list[str]) -> str:
        """Run a command of cdfl in this process: importing torch again would take longer than most commands."""
        done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
        assert done.exit_code == 0, f"cdfl {' '.join(arguments)}\n{done.output}\n{done.exception!r}"
        return done.stdout

    def serve(self, code: str) -> str:
        """Start a server; wait until it serves."""
        command = ["bash", "-ec", code]
        server = subprocess.Popen(  # noqa: S603
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.background.append(server)
        said = []
        for line in server.stdout or ():
            said.append(line)
            if "serving on" in line:
                return "".join(said)
        raise AssertionError(f"the server did not start: {''.join(said)}")

    def close(self) -> None:
        """Stop the servers."""
        for server in self.background:
            server.terminate()
            server.communicate(timeout=60)
        assert not any(server.returncode for server in self.background)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of the example server, pre-trained."""
    folder = tmp_path_factory.mktemp("pretrained")
    with Store.open(folder) as store:
        open_engine(ProblemInstance.of(load_problem(str(EXAMPLE))), store).close()
    return folder


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("cdfl.algorithms.ALGORITHMS", dict(ALGORITHMS))  # what a page registers is gone afterwards
    imported = set(sys.modules)
    running = Session(tmp_path)
    yield running
    running.close()
    for name in set(sys.modules) - imported:  # files that the page wrote
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    importlib.invalidate_caches()


@pytest.mark.parametrize(
    "page", [page for page in WRITTEN if examples_of(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_examples_of_a_page_run(page: Path, session: Session, request: pytest.FixtureRequest) -> None:
    has_server = any("cdfl serve" in example.code for example in examples_of(page))
    if has_server and page.name != "quickstart.md":  # only the quickstart pre-trains; the other servers continue
        shutil.copytree(request.getfixturevalue("pretrained"), session.folder / "cdfl-store")
    for example in examples_of(page):
        said = session.run(example)
        if example.expected is not None:
            pattern = example.expected.strip().replace("[", "[[]").replace("...", "*")
            assert fnmatchcase(said.strip(), pattern), f"line {example.line} printed\n{said}\nexpected\n{pattern}"


@pytest.mark.parametrize("page", write_tables.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_tables_of_a_page_are_those_of_the_result_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert write_tables.rendered(text) == text, "run: python -m benchmarks.write_tables"


def test_every_table_is_on_a_page() -> None:
    shown = [
        name
        for page in write_tables.pages()
        for _, name, _ in write_tables.BLOCK.findall(page.read_text(encoding="utf-8"))
    ]
    assert set(shown) == set(write_tables.TABLES)


@pytest.mark.parametrize(
    "page", [*WRITTEN, ROOT / "experiments" / "README.md"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_first_example_of_the_readme_has_ten_lines_at_most() -> None:
    first = next(example for example in examples_of(ROOT / "README.md") if example.language == "python")
    assert len(first.code.strip().splitlines()) <= 10


def test_every_scenario_is_on_the_data_page() -> None:
    page = (ROOT / "docs" / "how-to" / "data.md").read_text(encoding="utf-8")
    for scenario in list_scenarios():
        parent, _, suffix = scenario.name.rpartition("-")
        family = [line for line in page.splitlines() if f"`{parent}`" in line and f"`-{suffix}`" in line]
        assert f"`{scenario.name}`" in page or family, scenario.name


def test_pictures_are_small_and_shown() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in WRITTEN)
    for picture in (ROOT / "docs" / "pictures").iterdir():
        assert picture.stat().st_size < 300_000
        assert f"pictures/{picture.name}" in text


def test_the_http_page_names_every_header_and_status() -> None:
    page = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
    for name in (
        "CLIENT",
        "BASE_EPOCH",
        "KEY",
        "REPORT",
        "EPOCH",
        "MIXTURE",
        "RATES",
        "STALENESS",
        "OUTCOME",
        "DETAIL",
    ):
        assert f"`{getattr(wire, name)}" in page
    for kind in wire.WireError.__subclasses__():
        assert re.search(rf"^\| [0-9, ]*{kind.status}", page, re.MULTILINE), kind
