"""The page of simulations, in a real browser."""

import json
import re

import pytest
from axe_playwright_python.sync_playwright import Axe

from cdfl.run_events import to_json
from cdfl.run_folder import RunFolder

from ..made_up import clusters, events, finished, started, uploaded, write_run
from .serving import Watching

pytestmark = [pytest.mark.slow, pytest.mark.browser]

HTML = "<img src=x onerror=window.hacked=1>"


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", events())


def shown(tab, number):
    """Wait until so many uploads are shown, in every panel."""
    tab.wait(f"document.querySelector('.tiles dd span')?.textContent === '{number}' && window.cdfl.isSettled()")


def shares(tab, client, bar="estimated"):
    """What a client's bar shows."""
    scales = tab.value(
        f"""[...document.querySelectorAll('.row:not([hidden])')].filter((row) =>
            row.querySelector('.who').textContent === '{client}').map((row) =>
            [...row.querySelectorAll('.bar.{bar} i')].map((part) => part.style.transform))[0]"""
    )
    return [round(float(scale.split("scaleX(")[1].rstrip(")")), 3) for scale in scales]


def test_a_finished_run_and_its_slider(tab, run):
    with Watching(run) as url:
        tab.page.goto(url)
        shown(tab, 12)
        assert tab.page.locator("#state").text_content() == "finished"
        assert tab.page.locator(".row:visible").count() == 3
        assert shares(tab, "client 0") == [0.2, 0.8]
        assert shares(tab, "client 0", "true") == [0.1, 0.9]
        clients = tab.page.locator(".tiles > div", has=tab.page.get_by_text("clients", exact=True)).locator("dd")
        assert clients.text_content() == "3of 3 have uploaded"
        slider = tab.page.locator("#slider")
        slider.focus()
        tab.page.keyboard.press("Home")
        for _ in range(4):
            tab.page.keyboard.press("ArrowRight")
        shown(tab, 4)
        assert shares(tab, "client 0") == [0.8, 0.2]
        assert "upload 4 of 12" in tab.page.locator("#moment").text_content()
        assert tab.page.locator(".lines li").count() == 4
        slider.fill("2")
        shown(tab, 2)
        assert clients.text_content() == "2of 3 have uploaded"  # as in the list
        assert tab.page.locator(".shown").text_content() == "2 of 3 clients so far"
        tab.page.locator("#latest").click()
        shown(tab, 12)
        first = tab.page.locator(".lines li", has_text="client 0 moved").first
        assert (
            "moved from upright to turned (80 %); its new model is 20.0 points better than the old one"
            in first.text_content()
        )


def test_it_can_be_played(tab, run):
    with Watching(run) as url:
        tab.page.goto(url)
        shown(tab, 12)
        tab.page.locator("#play").click()
        tab.wait("window.cdfl.page.shown !== null && window.cdfl.page.shown < 6")
        tab.wait("window.cdfl.page.shown > 0")
        assert tab.page.locator("#play").text_content() == "Pause"
        tab.page.locator("#play").click()


def test_everything_is_drawn(tab, run):
    """Charts are not blank, and their numbers are in a table, too."""
    with Watching(run) as url:
        tab.page.goto(url)
        shown(tab, 12)
        tab.wait("document.querySelectorAll('.matrices table').length === 2")
        assert tab.page.locator(".matrices td.low").count() == 2
        assert "clearly better on its own samples" in tab.page.locator(".apart .explain").text_content()
        for panel in ("replies", "fleet", "losses", "uploads", "staleness"):
            colors = tab.value(
                f"""(() => {{ const canvas = document.querySelector('.{panel} canvas');
                const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
                return new Set(new Uint32Array(data.buffer)).size }})()"""
            )
            assert colors > 10, panel
            tab.page.locator(f".{panel} summary").click()
            tab.page.locator(f".{panel} details tbody tr").nth(2).wait_for()
        labels = tab.page.locator(".replies .side li").all_text_contents()
        assert [re.sub(r"[\d.]+$", "", label) for label in labels] == [
            "old model",
            "own training",
            "new model",
        ]


def test_what_is_served_is_drawn_where_it_is_more_than_the_reply(tab, tmp_path):
    made = events(upload={"served": 0.99, "served_held": 0.89})
    with Watching(write_run(tmp_path / "run", made)) as url:
        tab.page.goto(url)
        shown(tab, 12)
        assert "new model, with experts0.990" in tab.page.locator(".replies .side li").all_text_contents()
        assert tab.page.locator(".tiles dt", has_text="accuracy of new models").count() == 1
        assert "0.990" in tab.page.locator(".tiles").text_content()
        assert "10.0 points better than the old one" in tab.page.locator(".lines li").first.text_content()


def test_numbers_and_curves_agree(tab, run):
    """Tiles, the legend and the ends of curves show the same means."""
    with Watching(run) as url:
        tab.page.goto(url)
        shown(tab, 12)
        tile = tab.page.locator(".tiles div", has_text="accuracy of new models")
        number = tile.locator("span").text_content()
        assert f"new model{number}" in tab.page.locator(".replies .side li").all_text_contents()
        ends = tab.value("window.cdfl.views.values().next().value.replies.curves.map(({ points }) => points.at(-1).y)")
        assert f"{ends[2]:.3f}" == number
        assert f"old models {ends[0]:.3f}, own training {ends[1]:.3f}" == tile.locator("small").text_content()


def test_tiles_say_how_good_estimates_are(tab, run):
    with Watching(run) as url:
        tab.page.goto(url)
        shown(tab, 12)
        tile = tab.page.locator(".tiles div", has_text="largest share right")
        assert tile.locator("span").text_content() == "100 %"
        assert tile.locator("small").text_content() == "of the last 12 estimates; mixture error (KL) 0.05, 0 is exact"
        answer = "Yes: new models are 20.0 points better than old ones, 10.0 points better than own training."
        assert tab.page.locator(".answer").text_content() == answer


@pytest.mark.parametrize(
    ("outcome", "said"),
    [("rejected", "12 of the last 12 uploads were rejected"), ("deprecated", "raise max_staleness")],
)
def test_many_uploads_without_effect_are_at_the_top(tab, tmp_path, outcome, said):
    with Watching(write_run(tmp_path / "run", events(upload={"outcome": outcome}))) as url:
        tab.page.goto(url)
        shown(tab, 12)
        assert said in tab.page.locator(".banner").text_content()
        tab.page.locator("#slider").fill("4")
        shown(tab, 4)
        assert tab.page.locator(".banner").is_hidden()  # too few to say


def test_clusters_lie_in_the_order_of_the_legend(tab, run):
    """The first one is on top of the area and of a client's bars, as it is in the legend."""
    with Watching(run) as url:
        tab.page.goto(url)
        shown(tab, 12)
        assert tab.page.locator(".fleet .side .label").all_text_contents() == ["upright", "turned"]
        top = tab.value(
            """(() => { const { chart } = window.cdfl.views.values().next().value.fleet;
            return chart.data.datasets.at(-1).label; })()"""
        )
        assert top == "upright"
        tab.page.locator(".row").first.click()
        assert tab.page.locator("#client-mixtures .side .label").all_text_contents() == ["upright", "turned"]
        assert tab.page.locator("#client-mixtures .side .value").all_text_contents() == ["20 %", "80 %"]
        assert tab.page.locator("#client-truth .side .value").all_text_contents() == ["10 %", "90 %"]


def test_the_truth_is_thin_and_above_the_estimate(tab, run):
    with Watching(run) as url:
        tab.page.goto(url)
        shown(tab, 12)
        assert "thin: true" in tab.page.locator(".legend.clusters").text_content()
        row = tab.page.locator(".row").first
        truth, estimate = (row.locator(f".bar.{kind}").bounding_box() for kind in ("true", "estimated"))
        assert truth["y"] + truth["height"] <= estimate["y"]
        assert truth["height"] < 0.5 * estimate["height"]
        row.click()
        truth, estimate = (tab.page.locator(f"#client-{kind} canvas").bounding_box() for kind in ("truth", "mixtures"))
        assert truth["y"] + truth["height"] <= estimate["y"]
        assert truth["height"] < estimate["height"]


def test_one_client(tab, run):
    with Watching(run) as url:
        tab.page.goto(url)
        shown(tab, 12)
        tab.page.locator(".row", has_text="client 1").click()
        dialog = tab.page.locator("#client")
        assert dialog.locator("h2").text_content() == "client 1"
        assert dialog.locator("tbody tr").count() >= 4
        assert "4 uploads" in dialog.locator("#client-now").text_content()
        tab.page.keyboard.press("Escape")
        assert not dialog.is_visible()


def test_with_the_keyboard_alone(tab, run):
    with Watching(run) as url:
        tab.page.goto(url)
        shown(tab, 12)
        for _ in range(40):
            tab.page.keyboard.press("Tab")
            if tab.value("document.activeElement.classList.contains('rows')"):
                break
        else:
            raise AssertionError("the list of clients cannot be reached")
        tab.page.keyboard.press("ArrowDown")
        tab.page.keyboard.press("ArrowDown")
        chosen = tab.page.locator(".row[aria-selected=true]")
        assert chosen.locator(".who").text_content() == "client 1"
        active = tab.page.locator(".rows").get_attribute("aria-activedescendant")
        assert chosen.get_attribute("id") == active
        tab.page.keyboard.press("Enter")
        assert tab.page.locator("#client-title").text_content() == "client 1"


def test_a_run_that_goes_on(tab, tmp_path):
    made = events(uploads=24)
    folder = RunFolder.create(tmp_path / "run", {})
    with folder.writer() as write, Watching(folder.path) as url:
        for event in made[:10]:
            write(event)
        tab.page.goto(url)
        shown(tab, 6)
        assert tab.page.locator("#state").text_content() == "running"
        before = shares(tab, "client 0")
        for event in made[10:]:
            write(event)
        shown(tab, 24)
        tab.wait("document.getElementById('state').textContent === 'finished'")
        assert shares(tab, "client 0") != before


def test_a_run_that_is_begun_again(tab, tmp_path):
    folder = RunFolder.create(tmp_path / "run", {})
    with Watching(folder.path) as url:
        with folder.writer() as write:
            for event in events()[:8]:
                write(event)
        tab.page.goto(url)
        shown(tab, 5)
        with folder.writer(events()[:4]):  # a resumed run begins with what is kept
            shown(tab, 2)


def test_a_cut_line_is_waited_for(tab, run):
    with (run / "events.jsonl").open("a") as file:
        file.write('{"event": "uploa')
    with Watching(run) as url:
        tab.page.goto(url)
        shown(tab, 12)


def test_numbers_that_are_not_finite(tab, tmp_path):
    made = events(upload={"after": float("nan"), "held": float("inf")})
    with Watching(write_run(tmp_path / "run", made)) as url:
        tab.page.goto(url)
        shown(tab, 12)


def test_several_runs_side_by_side(tab, tmp_path):
    folders = [
        write_run(tmp_path / name, events(start={"algorithm": name}, upload=upload))
        for name, upload in (("cdfl", {}), ("fedasync", {"mixture": None, "divergence": None}), ("local", {}))
    ]
    with Watching(*folders) as url:
        tab.page.goto(url)
        tab.wait("document.querySelectorAll('.run .tiles dd').length >= 15")
        places = tab.value("[...document.querySelectorAll('.run')].map((run) => run.getBoundingClientRect().left)")
        assert len(set(places)) == 3
        tab.wait("window.cdfl.isSettled()")
        assert tab.page.locator("#together .side li").all_text_contents()[0].startswith("cdfl")
        tab.page.locator("#picker input").nth(1).uncheck()
        assert tab.page.locator(".run").count() == 2
        tab.page.locator("#slider").fill("3")
        tab.wait(
            "[...document.querySelectorAll('.tiles dd:first-of-type span')].every((tile) => tile.textContent !== '12')"
        )


def test_words_of_users_are_text(tab, tmp_path):
    made = events(start={"scenario": HTML, "clusters": [HTML, "turned"], "algorithm": HTML})
    with Watching(write_run(tmp_path / "run", made)) as url:
        tab.page.goto(url)
        shown(tab, 12)
        tab.page.locator(".row").first.click()
        assert HTML in tab.page.locator(".run-title").text_content()
        assert HTML in tab.page.locator("#client-mixtures .side").text_content()
        assert tab.page.locator("img").count() == 0
        assert tab.value("window.hacked") is None


def problems(tab, name):
    found = Axe().run(tab.page)
    return [
        f"{name}: {each['id']} {[node['html'][:120] for node in each['nodes'][:3]]}"
        for each in found.response["violations"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(tab, run, scheme):
    tab.page.emulate_media(color_scheme=scheme)
    with Watching(run) as url:
        tab.page.goto(url)
        shown(tab, 12)
        tab.wait("document.querySelectorAll('.matrices table').length === 2")
        tab.page.locator(".replies summary").click()
        assert problems(tab, "page") == []
        tab.page.locator(".row").first.click()
        assert problems(tab, "client") == []


def test_axe_finds_nothing_in_several_runs(tab, run, tmp_path):
    with Watching(run, write_run(tmp_path / "other", events())) as url:
        tab.page.goto(url)
        tab.wait("document.querySelectorAll('.run .tiles dd').length >= 10 && window.cdfl.isSettled()")
        assert problems(tab, "several") == []


def test_on_a_phone(phone, run):
    with Watching(run) as url:
        phone.page.goto(url)
        shown(phone, 12)
        phone.wait("document.querySelectorAll('.matrices table').length === 2")
        assert phone.value("document.documentElement.scrollWidth <= window.innerWidth")
        assert problems(phone, "phone") == []
        phone.page.locator(".row").first.tap()
        assert phone.page.locator("#client").is_visible()


def test_light_and_dark(tab, run):
    with Watching(run) as url:
        tab.page.goto(url)
        shown(tab, 12)
        background = "getComputedStyle(document.body).backgroundColor"
        tab.page.emulate_media(color_scheme="light")
        light = tab.value(background)
        tab.page.emulate_media(color_scheme="dark")
        dark = tab.value(background)
        assert light != dark
        tab.page.locator("#theme").select_option("light")
        assert tab.value(background) == light


def big_run(folder, num_clients=1000, num_uploads=20_000):
    """Events of many clients, as fast as they can be written."""
    lines = [to_json(started(num_clients=num_clients, num_uploads=num_uploads)), to_json(clusters(0))]
    pattern = json.loads(to_json(uploaded(1)))
    for epoch in range(1, num_uploads + 1):
        client, update = (epoch * 7919) % num_clients, epoch // num_clients
        share = 0.1 + 0.8 * ((client + update) % 10) / 10
        mixture = [share, 1 - share]
        named = {"epoch": epoch, "time": epoch / 50, "client": client, "update": update}
        lines.append(json.dumps(pattern | named | {"true_mixture": mixture, "mixture": mixture}))
        if epoch % num_clients == 0:
            lines.append(to_json(clusters(epoch // 1000)))
    folder.mkdir()
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_a_thousand_clients_and_twenty_thousand_events(tab, tmp_path):
    folder = big_run(tmp_path / "big")
    with Watching(folder) as url:
        tab.page.goto(url)
        tab.wait("document.querySelector('.tiles dd span')?.textContent === '20,000'", seconds=60)
        nodes = tab.value("document.querySelectorAll('*').length")
        assert nodes < 2500
        work = "window.cdfl.runs[0].work"
        before, count = tab.value(work), tab.value("window.cdfl.runs[0].length")
        assert before / count < 40  # steps an event
        tab.value(
            """window.changes = 0; new MutationObserver((list) => { window.changes += list.length; })
            .observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true })"""
        )
        with (folder / "events.jsonl").open("a") as file:
            for epoch in range(20_001, 20_201):
                file.write(to_json(uploaded(epoch, client=epoch % 1000)) + "\n")
        tab.wait("window.cdfl.runs[0].length === 20200")
        tab.wait("document.querySelector('.tiles dd span')?.textContent === '20,200'")
        assert (tab.value(work) - before) / 200 < 40  # as many as at the start
        assert tab.value("window.changes") < 200 * 15  # for 200 events: rows and lines that are visible
        assert tab.value("document.querySelectorAll('*').length") < 2500
        tab.page.locator(".rows").evaluate("(box) => { box.scrollTop = box.scrollHeight; }")
        tab.wait("[...document.querySelectorAll('.who')].some((name) => name.textContent === 'client 999')")
        assert finished().uploads == 12
