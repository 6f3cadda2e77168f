"""Every table fits 80 columns, and no name is cut; every command has --json."""

import json

import pytest
from rich.console import Console
from typer.main import get_command

from cdfl.algorithms import ALGORITHMS
from cdfl.cli import app
from cdfl.cli.tables import make_table
from cdfl.data import SOURCES
from cdfl.scenarios import SCENARIOS

from .small import call, scenario_file

WITHOUT_JSON = {"init", "paper", "watch"}  # they print an address or a file, or pass everything on


def whole(said, names):
    """No line is longer than 80 characters, and every name is there in full."""
    assert all(len(line) <= 80 for line in said.splitlines()), said
    assert "…" not in said
    for name in names:
        assert name in said


def test_scenarios():
    code, said = call("scenarios", squeeze=False, columns=80)
    assert code == 0
    whole(said, SCENARIOS)
    code, said = call("scenarios", "--json", squeeze=False)
    assert {scenario["name"] for scenario in json.loads(said)} == set(SCENARIOS)


def test_datasets():
    code, said = call("data", "list", squeeze=False, columns=80)
    assert code == 0
    whole(said, SOURCES)
    code, said = call("data", "list", "--json", squeeze=False)
    assert {source["name"] for source in json.loads(said)["datasets"]} == set(SOURCES)
    code, said = call("data", "check", "digits", "--json", squeeze=False)
    assert json.loads(said)["verdict"] == "ok"


@pytest.mark.slow
def test_a_run_and_a_comparison(tmp_path):
    small = scenario_file(tmp_path, uploads=4)
    code, said = call("run", small, "--out", tmp_path / "run", squeeze=False, columns=80)
    assert code == 0
    whole(said.rpartition("results in")[0], ["clients, own training", "clusters, at the end"])
    names = ",".join(ALGORITHMS)
    code, said = call("compare", small, "--algorithms", names, "--seeds", 2, "--out", tmp_path / "many",
                      squeeze=False, columns=80)  # fmt: skip
    assert code == 0
    whole(said.rpartition("results in")[0], ALGORITHMS)
    code, said = call("run", small, "--out", tmp_path / "again", "--json", squeeze=False)
    found = json.loads(said)
    assert (found["folder"], found["uploads"]) == (str(tmp_path / "again"), 4)
    code, said = call("compare", small, "--algorithms", "local", "--seeds", 1, "--out", tmp_path / "one", "--json",
                      squeeze=False)  # fmt: skip
    assert list(json.loads(said)["scores"]) == ["local"]


def test_every_command_has_json():
    def commands(group, prefix=""):
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from commands(command, f"{prefix}{name} ")
            else:
                yield f"{prefix}{name}", {flag for parameter in command.params for flag in parameter.opts}

    missing = {name for name, flags in commands(get_command(app).load()) if "--json" not in flags}
    assert missing == WITHOUT_JSON


def test_long_names_are_wrapped():
    table = make_table("name", "a number", "words...")
    table.add_row("x" * 100, "12.345 ± 0.001", "several words that may be wrapped as well, if they must be")
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(table)
    said = console.export_text()
    assert said.count("x") == 100
    assert "12.345 ± 0.001" in said
    console.file.close()
