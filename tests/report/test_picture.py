from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

import cdfl
from cdfl.cli import app
from cdfl.report import picture


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    cdfl.run("digits-4", num_clients=4, num_uploads=12, local_epochs=1, shared_epochs=1, out=path)
    return path


def test_a_run_becomes_a_picture(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.png"
    said = CliRunner().invoke(app, ["plot", str(folder), "--out", str(out), "--against", str(folder)])
    assert said.exit_code == 0, said.output
    with Image.open(out) as image:
        assert image.size == (1500, 540)
        assert len(image.convert("RGB").getcolors(10**6) or []) > 20


def test_a_run_without_uploads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no uploads to draw"):
        picture([], tmp_path / "run.png")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["plot", str(tmp_path)])
    assert said.exit_code == 2
    assert "holds no run" in said.output
