"""What is drawn: curves, bands, names, shapes."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cdfl.report import figures, save, style
from cdfl.series import RunSeries

from ..made_up import RMSE, events


def runs(*algorithms, seeds=1, **changes):
    return [
        RunSeries.of(f"{name}-{seed}", events(start={"algorithm": name, "seed": seed}, **changes))
        for name in algorithms
        for seed in range(seeds)
    ]


def words(figure):
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def curves(axes):
    return [line for line in axes.get_lines() if len(line.get_xdata()) > 2]


def test_the_story_of_one_run():
    figure = figures.story(runs("cdfl"))
    truth, estimated, scores = figure.axes if len(figure.axes) == 3 else figure.get_axes()
    assert len(truth.patches) == len(estimated.patches) == 4 * 2  # 4 uploads of a client, 2 clusters
    assert truth.patches[0].get_width() > 1.5 * estimated.patches[0].get_width()  # told apart by their shape, too
    said = words(figure)
    assert {"upright", "turned", "kind of data"} <= set(said)
    assert {"last reply (held)", "own training (before)", "new reply (after)"} <= set(said)
    assert [line.get_linestyle() for line in curves(scores)] == [":", "--", "-"]


def test_points_are_means_of_recent_uploads():
    first = runs("cdfl")[0]
    axes = figures.story([first]).get_axes()[-1]
    held = curves(axes)[0]
    assert held.get_xdata().tolist() == list(range(3, 13))  # 12 uploads, means of 3
    assert held.get_ydata()[0] == pytest.approx(first.scores["held"][:3].mean())


def test_seeds_become_a_mean_and_a_band():
    pair = runs("cdfl", seeds=2)
    pair[1].scores["after"] += 0.1
    axes = figures.story(pair).get_axes()[-1]
    assert len(axes.collections) == 3  # a band a score
    after = curves(axes)[-1]
    assert after.get_ydata()[0] == pytest.approx(0.72 + 0.05)
    assert "band: deviation over 2 seeds" in axes.get_xlabel()


def test_a_comparison_has_one_curve_an_algorithm():
    figure = figures.comparison(runs("cdfl", "local", "fedasync", seeds=3))
    over_time, at_end = figure.get_axes()
    assert len(curves(over_time)) == len(over_time.collections) == 3
    assert [label.get_text() for label in at_end.get_yticklabels()] == ["cdfl", "local", "fedasync"]
    colors = {line.get_color() for line in curves(over_time)}
    assert len(colors) == 3


def test_the_names_of_curves_do_not_overlap():
    figure = figures.comparison(runs("cdfl", "fedsoft", "fedasync", "fedbuff", "oracle"))  # the same curve five times
    from matplotlib.text import Annotation

    heights = sorted(text.xyann[1] for text in figure.get_axes()[0].findobj(Annotation))
    assert min(np.diff(heights)) > 0.07


def test_one_client_is_chosen():
    figure = figures.story(runs("cdfl"), client=2)
    assert any("client 2" in text for text in words(figure))
    with pytest.raises(ValueError, match="client 9 made no upload in cdfl-0; there are clients 0 to 2"):
        figures.story(runs("cdfl"), client=9)


def test_without_estimates_there_is_no_panel_for_them():
    figure = figures.story(runs("fedasync", upload={"mixture": None, "divergence": None}))
    assert len(figure.get_axes()) == 2


def test_the_direction_is_on_the_axis():
    run = RunSeries.of("run", events(start={"metrics": [RMSE]}))
    assert figures.story([run]).get_axes()[-1].get_ylabel() == "rmse (lower is better), held-out data"


def test_every_picture_and_how_it_is_written(tmp_path: Path):
    drawn = figures.all_figures(runs("cdfl", "local", seeds=2))
    assert list(drawn) == ["story", "comparison", "mixtures", "adaptation", "clusters", "uploads"]
    for name, figure in drawn.items():
        save(figure, tmp_path / f"{name}.png")
        with Image.open(tmp_path / f"{name}.png") as image:
            assert image.width > 900
            assert len(image.convert("RGB").getcolors(10**6) or []) > 20


def test_the_same_picture_is_the_same_file(tmp_path: Path):
    for name in ("one.svg", "two.svg"):
        save(figures.story(runs("cdfl")), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_the_page_has_the_same_colours():
    css = (Path(figures.__file__).parents[1] / "page" / "static" / "style.css").read_text()
    found = re.findall(r"--c\d: (#[0-9a-f]{6})", css)
    assert tuple(found) == style.CLUSTERS


def test_colours_can_be_told_apart_by_colour_blind_people():
    """In the three common kinds of colour blindness any two of the first six colours stay apart."""
    simulated = {
        "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    }
    colors = [np.array([int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]) for text in style.CLUSTERS[:6]]
    linear = [np.where(color <= 0.04045, color / 12.92, ((color + 0.055) / 1.055) ** 2.4) for color in colors]
    for kind, matrix in simulated.items():
        seen = [np.array(matrix) @ color for color in linear]
        apart = min(np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i])
        assert apart > 0.12, kind
