"""Numbers on the pages are those of the result files."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _benchmarks_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def test_the_table_of_the_readme_is_that_of_its_result_file() -> None:
    import digits

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = text.split(digits.BEGIN)[1].split(digits.END)[0]
    assert shown == digits.table(json.loads(digits.RESULTS.read_text()))


def test_the_reply_beats_what_a_client_reaches_alone() -> None:
    import digits

    scores = json.loads(digits.RESULTS.read_text())["scores"]
    gains = [after - alone for after, alone in zip(scores["cdfl"]["after"], scores["local"]["after"], strict=True)]
    assert len(gains) == digits.SEEDS
    assert min(gains) > 0.03


def test_the_tables_of_the_simulator_page_are_those_of_their_result_files() -> None:
    import speed_table

    text = speed_table.DOCS.read_text(encoding="utf-8")
    assert speed_table.rendered(text) == text


def test_the_tables_of_the_server_page_are_those_of_their_result_file() -> None:
    import load_table

    text = load_table.DOCS.read_text(encoding="utf-8")
    assert load_table.rendered(text) == text


def test_result_files_name_their_machine() -> None:
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        stored = json.loads(path.read_text())
        for case in stored if isinstance(stored, list) else [stored]:
            assert case["machine"]["torch"], path.name


def test_pages_link_to_files_that_are_there() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"):
        for part in page.read_text(encoding="utf-8").split("](")[1:]:
            target = part.split(")")[0].split("#")[0]
            if target and "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_ten_lines_of_the_readme_run(capsys: pytest.CaptureFixture[str]) -> None:
    code = (ROOT / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    assert len(code.strip().splitlines()) <= 10
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102
    assert "after the reply" in capsys.readouterr().out
