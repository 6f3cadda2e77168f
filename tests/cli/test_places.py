"""Folders that are not what a command expects: every command says the same one sentence about them."""

import sqlite3

import pytest

from cdfl.cli.stores import progress_bar
from cdfl.server.store import Store

from ..made_up import events, write_run
from .small import call

FOR_RUNS = [
    ("report", "PLACE"),
    ("plot", "PLACE"),
    ("watch", "PLACE"),
    ("track", "PLACE", "--tensorboard"),
    ("export", "PLACE"),
]
FOR_STORES = [
    ("status", "PLACE"),
    ("clients", "PLACE"),
    ("verify", "--store", "PLACE"),
    ("backup", "OUT", "--store", "PLACE"),
    ("rollback", "--store", "PLACE"),
    ("forget", "car-7", "--store", "PLACE"),
    ("export", "--store", "PLACE"),
    ("token", "list", "--store", "PLACE"),
]


def say(command, place):
    words = [str(place) if word == "PLACE" else word.replace("OUT", f"{place}-out") for word in command]
    code, said = call(*words)
    assert code == 2, words
    return said


@pytest.mark.parametrize("command", [*FOR_RUNS, *FOR_STORES], ids=" ".join)
def test_a_store_of_another_project(tmp_path, command):
    with sqlite3.connect(tmp_path / "store.db") as other:
        other.execute("CREATE TABLE clients (id INTEGER PRIMARY KEY)")
    other.close()
    assert say(command, tmp_path) == (
        "cdfl: the database holds tables of another program or of an unknown version; "
        "expected those of 'cdfl 3': name another folder or database"
    )


@pytest.mark.parametrize("command", [*FOR_RUNS, *FOR_STORES], ids=" ".join)
def test_a_database_that_is_none(tmp_path, command):
    (tmp_path / "store.db").write_text("some other file " * 50)
    assert say(command, tmp_path) == "cdfl: the database cannot be read: file is not a database; restore a backup"


@pytest.mark.parametrize("command", FOR_RUNS, ids=" ".join)
def test_a_store_is_no_run(tmp_path, command):
    Store.open(tmp_path).close()
    hint = (
        f"`cdfl export --store {tmp_path}` takes it" if command[0] == "export" else f"`cdfl status {tmp_path}` shows it"
    )
    assert say(command, tmp_path) == f"cdfl: {tmp_path} is the store of a server, not a run; {hint}"


@pytest.mark.parametrize("command", FOR_STORES, ids=" ".join)
def test_a_run_is_no_store(tmp_path, command):
    run = write_run(tmp_path / "runs" / "run", events())
    hint = "`cdfl watch {0}` and `cdfl report {0}` show it"
    assert say(command, run) == f"cdfl: {run} is a run, not a store; {hint.format(run)}"
    runs = tmp_path / "runs"
    assert say(command, runs) == f"cdfl: {runs} is a folder of runs, not a store; {hint.format(runs)}"


@pytest.mark.parametrize("command", FOR_RUNS, ids=" ".join)
def test_a_file_of_events_that_holds_other_lines(tmp_path, command):
    (tmp_path / "events.jsonl").write_text('{"some": "log"}\n')
    assert say(command, tmp_path) == (
        f"cdfl: {tmp_path}/events.jsonl, line 1: this line is not an event of this version of cdfl: "
        '\'{"some": "log"}\''
    )


@pytest.mark.parametrize(
    "command", [command for command in FOR_RUNS if command[0] not in ("watch", "export")], ids=" ".join
)
def test_a_run_without_uploads(tmp_path, command):
    run = write_run(tmp_path / "run", events()[:2])
    assert say(command, run) == "cdfl: run has no uploads yet; let the run make some first"


def test_the_models_of_an_unfinished_run(tmp_path):
    run = write_run(tmp_path / "one" / "run", events()[:-1])
    assert say(("export", "PLACE"), run) == f"cdfl: {run} has no models: the run is not finished"
    write_run(tmp_path / "one" / "two", events())
    assert say(("export", "PLACE"), tmp_path / "one") == (
        f"cdfl: {tmp_path}/one holds 2 runs; name one of them, such as {run}"
    )


def test_no_bar_without_a_terminal(capsys):
    with progress_bar("replaying") as progress:
        progress(1, 2)
    assert capsys.readouterr() == ("", "")
