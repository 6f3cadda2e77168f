"""What is drawn: curves, bands, names, shapes."""

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from cdfl.report import figures, save, style
from cdfl.run_series import RunSeries

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
    named = {axes.get_ylabel(): axes for axes in figure.get_axes()}
    truth, estimated, scores = named["true"], named["estimate"], named["accuracy, held-out data"]
    assert len(truth.patches) == len(estimated.patches) == 4 * 2  # 4 uploads of a client, 2 clusters
    assert truth.get_position().y0 > estimated.get_position().y1  # above it,
    assert truth.get_position().height < estimated.get_position().height  # and thinner, as on the page
    assert truth.patches[0].get_width() > 1.5 * estimated.patches[0].get_width()  # without gaps
    for axes in (truth, estimated):  # the first cluster is on top, as in the legend and on the page
        on_top = [bar for bar in axes.patches if bar.get_y() + bar.get_height() == pytest.approx(1)]
        assert {to_hex(bar.get_facecolor()) for bar in on_top} == {style.CLUSTERS[0]}
    said = words(figure)
    assert [word for word in said if word in ("upright", "turned", "kinds of data")] == [
        "kinds of data",
        "upright",
        "turned",
    ]
    assert {"old model", "own training", "new model"} <= set(said)
    assert [line.get_linestyle() for line in curves(scores)] == [":", "--", "-"]


def test_the_story_beside_another_algorithm():
    said = words(figures.story(runs("cdfl", "local-keep"), client=0, samples=[np.eye(8), np.eye(8)]))
    assert {"CDFL", "training\nalone"} <= set(said)
    assert "new model" not in said


def test_the_mixtures_say_how_often_they_are_right():
    made = runs("cdfl")[0]
    figure = figures.mixture_figure(made)
    mains, shares, _ = figure.get_axes()
    assert mains.get_title(loc="left") == "Largest share right: 100 % of uploads"
    assert {"100 %", "0 %"} <= set(words(mains))
    assert "no estimate is above 80 %" in words(shares)  # the truth goes to 90 %


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
    assert "band: ± 1 SD, 2 seeds" in axes.get_xlabel()


def test_a_comparison_has_one_curve_an_algorithm():
    figure = figures.comparison(runs("cdfl", "local", "fedasync", seeds=3))
    over_time, at_end = figure.get_axes()
    assert len(curves(over_time)) == len(over_time.collections) == 3
    assert [label.get_text() for label in at_end.get_yticklabels()] == ["cdfl", "local", "fedasync"]
    colors = {line.get_color() for line in curves(over_time)}
    assert len(colors) == 3


def test_titles_say_what_is_found():
    made = [*runs("cdfl", "fedsoft"), *runs("local", upload={"after": 0.95})]
    over_time, at_end = figures.comparison(made).get_axes()
    assert over_time.get_title("left") == "New models: local ends best (0.950)"
    assert [label.get_text() for label in at_end.get_yticklabels()] == ["local", "cdfl", "fedsoft"]  # best first
    titles = {name: figures.story(shown).get_axes()[-1].get_title("left") for name, shown in (
        ("best", runs("cdfl")), ("alone", [*runs("cdfl"), *runs("local", upload={"after": 0.1})]), ("rivals", made),
        ("worse", runs("cdfl", upload={"after": 0.1})), ("old", runs("cdfl", upload={"held": 0.99})),
    )}  # fmt: skip
    assert titles == {
        "best": "3  New models are best",
        "alone": "3  CDFL beats training alone",
        "rivals": "3  New models of all clients",
        "worse": "3  Own training is as good",
        "old": "3  Old models are as good",
    }


def test_the_names_of_curves_do_not_overlap():
    figure = figures.comparison(runs("cdfl", "fedsoft", "fedasync", "fedbuff", "oracle"))  # the same curve five times
    from matplotlib.text import Annotation

    heights = sorted(text.xyann[1] for text in figure.get_axes()[0].findobj(Annotation))
    assert min(np.diff(heights)) > 0.07
    assert max(heights) <= 1  # and do not run into the title


def test_one_client_is_chosen():
    figure = figures.story(runs("cdfl"), client=2)
    assert any("Client 2's data" in text for text in words(figure))
    with pytest.raises(ValueError, match="client 9 made no upload in cdfl-0; there are clients 0 to 2"):
        figures.story(runs("cdfl"), client=9)


def test_without_estimates_there_is_no_panel_for_them():
    figure = figures.story(runs("fedasync", upload={"mixture": None, "divergence": None}))
    assert {axes.get_ylabel() for axes in figure.get_axes()} == {"true", "", "accuracy, held-out data"}


def test_the_direction_is_on_the_axis():
    run = RunSeries.of("run", events(start={"metrics": [RMSE]}))
    assert figures.story([run]).get_axes()[-1].get_ylabel() == "rmse (lower is better), held-out data"


def test_runs_with_different_metrics_are_not_drawn_together():
    one, other = RunSeries.of("one", events()), RunSeries.of("two", events(start={"metrics": [RMSE], "seed": 1}))
    for draw in (figures.story, figures.comparison):
        with pytest.raises(ValueError, match=r"two is scored by rmse \(lower is better\), one by accuracy; expected"):
            draw([one, other])


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


STATIC = Path(figures.__file__).parents[1] / "page" / "static"


def test_the_page_has_the_same_colours_and_words():
    css, words = (STATIC / "style.css").read_text(), (STATIC / "words.js").read_text()
    assert tuple(re.findall(r"--c\d: (?:light-dark\()?(#[0-9a-f]{6})", css)) == style.CLUSTERS
    assert re.findall(r"--a\d: (?:light-dark\()?(#[0-9a-f]{6})", css) == [*style.ALGORITHMS.values()]
    for name, color in (style.SCORES | style.OUTCOMES).items():
        assert re.search(rf"--{name}: (?:light-dark\()?{color}", css), name
    for name, said in style.SCORE_WORDS.items():
        assert f'{name}: "{said}"' in words


def test_a_colour_means_one_thing():
    every = [*style.CLUSTERS, *style.ALGORITHMS.values(), style.SCORES["served"], style.SCORES["held"]]
    assert len(set(every)) == len(every)


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
