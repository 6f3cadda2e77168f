"""What docs/data.md shows is what the code and the result files say."""

import json
from pathlib import Path

from cdfl.scenarios import list_scenarios

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "data.md").read_text("utf-8")


def test_the_table_of_times_is_the_result_file(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    import draw

    assert draw.table(json.loads(draw.RESULTS.read_text())) in PAGE


def test_every_picture_is_there_and_every_family_of_scenarios_is_named():
    for picture in (REPOSITORY / "docs" / "pictures").glob("*.png"):
        assert picture.stat().st_size < 300_000
    for scenario in list_scenarios():
        sheet = REPOSITORY / "docs" / "pictures" / f"{scenario.name}.png"
        shown = f"pictures/{scenario.name}.png" in PAGE
        assert shown == sheet.is_file()
        parent, _, suffix = scenario.name.rpartition("-")
        rows = [line for line in PAGE.splitlines() if f"`{parent}`" in line and f"`-{suffix}`" in line]
        assert shown or len(rows) == 1


def test_no_row_of_the_table_has_a_range_of_scenarios():
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert not [row for row in rows if "` to `" in row]  # some numbers between are of no scenario
