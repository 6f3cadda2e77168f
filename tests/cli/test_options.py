import json
import re
import sys
from collections import defaultdict

import pytest
import typer

from cdfl.cli import app
from cdfl.cli.options import exit_on
from cdfl.cli.run_options import open_folder, parse_settings
from cdfl.run_folder import RunFolder

from .small import call


def test_settings_are_parsed_as_json():
    given = ["base_rate=0.1", "local_epochs=3", "loss_bar=min", "max_staleness=None", "sharpness=[5, 2.5]"]
    assert parse_settings(given) == {
        "base_rate": 0.1,
        "local_epochs": 3,
        "loss_bar": "min",
        "max_staleness": None,
        "sharpness": [5, 2.5],
    }
    assert parse_settings(["base_rate=0.1", "base_rate=0.2"]) == {"base_rate": 0.2}
    assert parse_settings([]) == {}


@pytest.mark.parametrize("setting", ["base_rate", "=3", ""])
def test_a_setting_without_a_value(setting):
    with pytest.raises(ValueError, match=rf"--set got '{setting}'; expected name=value, as in --set base_rate=0.1"):
        parse_settings([setting])


@pytest.mark.parametrize("name", ["speed", "seed", "scenario", "algorithm"])
def test_unknown_settings_are_refused(name):
    with pytest.raises(ValueError, match=f"there is no setting '{name}'; there are loss_weight, "):
        parse_settings([f"{name}=3"])


def test_folders_are_numbered_and_the_last_is_resumed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [open_folder(None, "a-0", {"seed": 0}, resume=False).path.as_posix() for _ in range(3)]
    assert paths == ["runs/a-0", "runs/a-0-2", "runs/a-0-3"]
    assert open_folder(None, "a-0", {"seed": 0}, resume=True).path.as_posix() == "runs/a-0-3"


def test_only_the_same_run_can_be_resumed(tmp_path):
    with pytest.raises(ValueError, match=r"there is no run in .*x to resume; omit --resume to start a new run"):
        open_folder(tmp_path / "x", "a", {"seed": 0}, resume=True)
    assert not (tmp_path / "x").exists()
    config = {"seed": 0, "sharpness": (1.0,)}
    RunFolder.create(tmp_path / "x", config)
    assert open_folder(tmp_path / "x", "a", config, resume=True).config() == json.loads(json.dumps(config))
    with pytest.raises(ValueError, match="holds a run with other settings; use the same settings to resume it"):
        open_folder(tmp_path / "x", "a", {**config, "seed": 1}, resume=True)


def test_errors_become_one_line_and_an_exit_code(capsys):
    with pytest.raises(typer.Exit) as error, exit_on(ValueError):
        raise ValueError("no such thing")
    assert error.value.exit_code == 2
    assert capsys.readouterr().err == "cdfl: no such thing\n"
    with pytest.raises(typer.Exit) as error, exit_on(ValueError):
        raise KeyboardInterrupt
    assert error.value.exit_code == 130
    with pytest.raises(TypeError, match="ours"), exit_on(ValueError):
        raise TypeError("ours")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["run", "digits4"], "digits-4"),
        (["run", "digits-4", "--algorithm", "fedsft"], "fedsoft"),
        (["compare", "digits-4", "--algorithms", "cdfl,localkeep"], "local-keep"),
        (["run", "digits-4", "--policy", "pagehinkley"], "page-hinkley"),
        (["run", "digits-4", "--time-model", "session"], "sessions"),
        (["run", "digits-4", "--preset", "papers"], "paper"),
        (["run", "digits-4", "--set", "baserate=0.1"], "base_rate"),
        (["run", "digits-4", "--set", "lr=0.1"], "learning_rate"),
        (["data", "fetch", "fashion_mnist"], "fashion-mnist"),
    ],
)
def test_a_similar_name_is_suggested(words, meant):
    code, output = call(*words)
    assert code == 2
    assert output.endswith(f"; did you mean {meant}?")


def test_a_missing_package_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    code, said = call("run", "digits-4", "--out", tmp_path / "run")
    assert (code, said) == (2, "cdfl: the dataset digits comes with scikit-learn: pip install 'cdfl[sim]'")


@pytest.mark.parametrize("command", ["", "run", "compare", "paper", "serve", "join", "rollback"])
def test_flags_are_shown_without_a_value(command):
    code, page = call(*command.split(), "--help")
    assert code == 0
    assert [word for word in re.findall(r"(--[a-z-]+) <bool>", page) if word != "--help"] == []  # that one is typer's


def test_shared_options_have_one_help_text():
    def commands(group):
        for command in group.commands.values():
            yield from commands(command) if hasattr(command, "commands") else [command]

    told = defaultdict(set)
    for command in commands(typer.main.get_command(app).load()):
        for option in command.params:
            if option.name in ("data_dir", "device", "precision", "store", "blobs"):
                told[option.name].add((*option.opts, option.envvar, option.help))
    assert [name for name, words in told.items() if len(words) > 1] == []
    assert [words[:2] for words in told["data_dir"]] == [("--data-dir", "CDFL_DATA")]
