import shutil
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from typer.testing import CliRunner

import cdfl
from cdfl.cli import app
from cdfl.record import RunFolder, Uploaded, only
from cdfl.report import plot_run


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


def drawn(run: Path, out: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> Axes:
    """The left panel of what `cdfl plot` draws."""
    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **named: kept.append(self.axes[0]))
    said = CliRunner().invoke(app, ["plot", str(run), "--out", str(out), *options])
    assert said.exit_code == 0, said.output
    return kept[0]


def test_curves_of_a_short_run_are_lines_and_say_what_they_are_the_mean_of(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = drawn(folder, tmp_path / "run.png", monkeypatch, "--against", str(folder))
    uploads = only(RunFolder(folder).events(), Uploaded)
    assert [len(line.get_xdata()) for line in axes.get_lines()] == [10, 10, 10]  # 12 uploads, means of 3
    last = axes.get_lines()[0].get_ydata()[-1]  # type: ignore[index]
    assert last == pytest.approx(sum(upload.after for upload in uploads[-3:]) / 3)
    assert axes.get_xlabel() == "upload (each point: mean of the last 3)"


def test_all_runs_of_a_comparison(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        shutil.copytree(folder, tmp_path / "all" / f"cdfl-{number}")
    axes = drawn(tmp_path / "all", tmp_path / "run.png", monkeypatch)
    names = [line.get_label() for line in axes.get_lines()]
    assert names == ["cdfl: after the reply", "cdfl: before it", *(f"cdfl-{number}" for number in range(1, 6))]
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.get_lines()}
    assert len(looks) == len(names)
    axes = drawn(
        folder, tmp_path / "run.png", monkeypatch, "--against", str(tmp_path / "all"), "--against", str(folder)
    )
    assert len(axes.get_lines()) == 2 + 6 + 1


def test_one_upload_is_a_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cdfl.run("digits-4", num_clients=2, num_uploads=1, local_epochs=1, shared_epochs=1, out=tmp_path / "one")
    axes = drawn(tmp_path / "one", tmp_path / "run.png", monkeypatch)
    assert axes.get_lines()[0].get_marker() == "o"
    assert axes.get_xlabel() == "upload"


def test_a_rival_without_uploads_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "young").mkdir()
    (tmp_path / "young" / "events.jsonl").touch()
    said = CliRunner().invoke(app, ["plot", str(folder), "--against", str(tmp_path / "young")])
    assert said.exit_code == 2
    assert "no uploads to plot in young" in said.output


def test_a_run_without_uploads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no uploads to plot"):
        plot_run([], tmp_path / "run.png")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["plot", str(tmp_path)])
    assert said.exit_code == 2
    assert "holds no run" in said.output
