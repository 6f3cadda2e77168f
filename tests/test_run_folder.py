import json

import pytest

from cdfl.run_events import to_json
from cdfl.run_folder import RunFolder, versions

from .test_run_events import EVENTS


def test_a_folder_stores_config_versions_and_events(tmp_path):
    folder = RunFolder.create(tmp_path / "deep" / "run", {"seed": 3, "sharpness": (1.0,)})
    assert folder.events() == []
    with folder.writer() as write:
        for number, event in enumerate(EVENTS, start=1):
            write(event)
            assert folder.events() == EVENTS[:number]  # a reader sees each at once
    assert folder.config() == {"seed": 3, "sharpness": [1.0]}
    assert set(json.loads((folder.path / "versions.json").read_text())) == set(versions())
    assert sorted(path.name for path in folder.path.iterdir()) == ["config.json", "events.jsonl", "versions.json"]


def test_writing_after_earlier_events(tmp_path):
    folder = RunFolder.create(tmp_path, {})
    with folder.writer() as write:
        for event in EVENTS[:4]:
            write(event)
    whole = (tmp_path / "events.jsonl").read_bytes()
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "fini')  # cut off
    assert folder.events() == EVENTS[:4]
    with folder.writer(folder.events()[:2]) as write:
        assert folder.events() == EVENTS[:2]
        write(EVENTS[2])
        write(EVENTS[3])
    assert (tmp_path / "events.jsonl").read_bytes() == whole


def test_a_broken_line_in_the_middle_is_an_error(tmp_path):
    folder = RunFolder.create(tmp_path, {})
    (tmp_path / "events.jsonl").write_text(f"{to_json(EVENTS[0])}\n{{oops\n{to_json(EVENTS[1])}\n")
    with pytest.raises(ValueError, match=r"not an event of this version of cdfl: '{oops'"):
        folder.events()


def test_a_folder_with_a_run_is_refused(tmp_path):
    folder = RunFolder.create(tmp_path / "run", {"seed": 0})
    RunFolder.create(tmp_path / "run", {"seed": 1})  # nothing has happened in it yet
    with folder.writer() as write:
        write(EVENTS[0])
    for path in (tmp_path / "run", tmp_path):  # the run, and the folder that holds it
        with pytest.raises(FileExistsError, match="already holds a run; name another folder with --out, or delete it"):
            RunFolder.create(path, {"seed": 2})
    assert folder.config() == {"seed": 1}


def test_versions_contain_no_names_or_paths():
    found = versions()
    assert set(found) == {"python", "machine", "system", "threads", "cdfl", "torch", "numpy", "scikit-learn"}
    assert not any("/" in value for value in found.values())
