from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

import cdfl
from cdfl.record import Event, Started, Uploaded, only
from cdfl.report import plot_run


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return list(cdfl.run("digits-4", num_clients=4, num_uploads=12, local_epochs=1, shared_epochs=1).events)


def test_a_file_is_written(events: list[Event], tmp_path: Path) -> None:
    plot_run(events, tmp_path / "run.png", {"again": events})
    with Image.open(tmp_path / "run.png") as image:
        assert image.size == (1500, 540)
        assert len(image.convert("RGB").getcolors(10**6) or []) > 20


def curves(events: list[Event], monkeypatch: pytest.MonkeyPatch) -> Axes:
    """The left panel of a plot."""
    panels = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **named: panels.append(self.axes[0]))
    plot_run(events, Path("run.png"), {"again": events})
    return panels[0]


def test_points_are_means_of_recent_uploads(events: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    axes = curves(events, monkeypatch)
    uploads = only(events, Uploaded)
    assert [len(line.get_xdata()) for line in axes.get_lines()] == [10, 10, 10]  # 12 uploads, means of 3
    for line, accuracies in zip(axes.get_lines(), (after(uploads), before(uploads), after(uploads)), strict=True):
        assert line.get_ydata()[-1] == pytest.approx(sum(accuracies[-3:]) / 3)  # type: ignore[index]
    assert axes.get_xlabel() == "upload (each point: mean of the last 3)"


def after(uploads: list[Uploaded]) -> list[float]:
    return [upload.after for upload in uploads]


def before(uploads: list[Uploaded]) -> list[float]:
    return [upload.before for upload in uploads]


def test_one_upload_is_a_point(events: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    one = [*only(events, Started), only(events, Uploaded)[0]]
    axes = curves(one, monkeypatch)
    assert axes.get_lines()[0].get_marker() == "o"
    assert axes.get_xlabel() == "upload"


def test_runs_without_uploads_are_refused(events: list[Event], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no uploads to plot; let the run"):
        plot_run([], tmp_path / "run.png")
    with pytest.raises(ValueError, match="there are no uploads to plot in young; leave"):
        plot_run(events, tmp_path / "run.png", {"young": []})
