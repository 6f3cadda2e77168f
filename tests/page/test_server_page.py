"""The page of a server, in a real browser."""

import logging
import threading
from contextlib import contextmanager

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe

import cdfl
from cdfl import wire
from cdfl.core.defence import NoDefence
from cdfl.core.state import ACCEPTED, Verdict
from cdfl.server.auth import Tokens
from cdfl.server.limits import Limits
from cdfl.server.listening_socket import take_port
from cdfl.server.metrics import Metrics
from cdfl.server.readiness import Starting
from cdfl.server.web_server import make_server

from ..server.live import Live, data, near, tiny_instance
from .test_runs import shares

pytestmark = [pytest.mark.slow, pytest.mark.browser]

OPERATOR = "an-operators-secret"
HTML = "<img/src=x/onerror=window.hacked=1>"


@contextmanager
def drifting_client(server, name="car-7"):
    """A real client; its data come from the cluster that is asked for."""
    setup = tiny_instance()
    settings = setup.settings.replace(local_epochs=40, learning_rate=0.05)
    with cdfl.Client(server.url, setup.model, name, settings=settings) as client:
        client.join()

        def see(cluster, times=1):
            torch.manual_seed(cluster)
            for _ in range(times):
                client.update(data(cluster, 200))

        yield see


def main_of(tab, client):
    found = shares(tab, client)
    return max(range(len(found)), key=found.__getitem__)


def live_again(folder, port):
    """A server of the same store at the port of one that has gone."""
    again = Live(folder)
    again._taken.close()
    again._taken = take_port("127.0.0.1", port)
    again._thread = threading.Thread(target=again.server.run, args=([again._taken],))
    return again


def test_bars_move_while_clients_drift(tab, tmp_path):
    with Live(tmp_path) as server:
        tab.page.goto(server.url)
        tab.wait("document.getElementById('state').textContent === 'live'")
        with drifting_client(server) as see:
            tab.wait("document.querySelector('.lines')?.textContent.includes('car-7 joined')")
            see(0)
            tab.wait("document.querySelectorAll('.row:not([hidden])').length === 1")
            tab.wait("document.querySelector('.tiles dd span').textContent === '1'")
            before = main_of(tab, "car-7")
            tab.value(
                """window.seen = []; setInterval(() => { const bar = document.querySelector('.bar.estimated i');
                window.seen.push(getComputedStyle(bar).transform); }, 30)"""
            )
            see(1, times=4)
        tab.wait("document.querySelector('.tiles dd span').textContent === '5'")
        tab.wait("document.querySelector('.lines').textContent.includes('moved from')")
        assert main_of(tab, "car-7") != before
        tab.wait("new Set(window.seen).size > 4")  # it glides, frame by frame, perhaps after the last upload
        assert tab.value("window.cdfl.runs[0].state") == "live"
        tab.wait("document.querySelectorAll('.matrices table').length === 2")


def test_what_was_there_before_the_page(tab, tmp_path):
    with Live(tmp_path) as server:
        for number in range(3):
            server.model(f"car-{number}")
            server.update(near(server, number), f"car-{number}", base_epoch=number, key=str(number))
        server.model("car-9")  # has not uploaded
        tab.page.goto(server.url)
        tab.wait("document.querySelectorAll('.row:not([hidden])').length === 4 && window.cdfl.isSettled()")
        assert tab.page.locator(".row", has_text="car-9").locator(".old").text_content() == "no upload"
        assert tab.page.locator(".lines li").count() == 3


class Refusing(NoDefence):
    """Refuses one client."""

    def admit(self, state, upload, client):
        is_bad = upload.client_id == "bad"
        return upload, Verdict(False, client=client.defence, reason=REFUSED) if is_bad else ACCEPTED


REFUSED = "you do harm; check your data"


def tile(tab, name):
    found = tab.page.locator(".tiles > div", has=tab.page.get_by_text(name, exact=True))
    return found.locator("dd span").text_content(), found.locator("small").text_content()


def test_rejected_uploads_are_counted_once_and_explained(tab, tmp_path, monkeypatch):
    """Also after the page has lost the server, and on a page that comes later: the server keeps the last one only."""
    for module in ("engine", "stepper"):
        monkeypatch.setattr(f"cdfl.server.{module}.defence_of", lambda *_: Refusing())

    def settled(number):
        tab.wait(f"document.querySelector('.tiles dd span')?.textContent === '{number}' && window.cdfl.isSettled()")
        assert tile(tab, "uploads") == (str(number), "all so far")
        assert tile(tab, "clients")[0] == "2"
        assert tile(tab, "uploads applied") == ("3", f"0 too stale, {number - 3} rejected")
        assert tab.page.locator("#moment").text_content() == f"upload {number} of {number}"
        assert tab.page.locator(".shown").text_content() == "2 clients"
        said = tab.page.locator(".banner").text_content()
        assert f"{number - 3} of the last {number} uploads were rejected" in said
        assert "most often their clients were told “you do harm”" in said
        sides = tab.page.locator(".uploads .side li").all_text_contents()
        assert sides == ["applied3", "too stale0", f"rejected{number - 3}"]

    with Live(tmp_path) as server:
        tab.page.goto(server.url)
        tab.wait("document.getElementById('state').textContent === 'live'")
        for name in ("good", "bad"):
            server.model(name)
        for number in range(3):
            server.update(near(server, number), "good", base_epoch=number, key=f"good-{number}")
        assert tab.page.locator(".banner").is_hidden()
        for number in range(12):
            server.update(near(server, 0), "bad", key=f"bad-{number}")
        settled(15)
        port = server.port
    tab.wait("document.getElementById('state').textContent === 'waiting'")
    with live_again(tmp_path, port) as server:
        tab.wait("document.getElementById('state').textContent === 'live'", seconds=40)
        server.update(near(server, 0), "bad", key="again")
        settled(16)
        assert server.http.get("/v1/status").json()["uploads"] == 16
        tab.page.goto(server.url)
        settled(16)
        assert "11 rejected before" in tab.page.locator(".reasons").text_content()


def test_under_the_slider_nothing_is_known_before_it_happened(tab, tmp_path):
    with Live(tmp_path) as server:
        for number in range(2):
            server.model(f"car-{number}")
            server.update(near(server, number), f"car-{number}", base_epoch=number, key=str(number))
        tab.page.goto(server.url)
        tab.wait("document.querySelector('.tiles dd span')?.textContent === '2' && window.cdfl.isSettled()")
        tab.page.locator("#slider").fill("1")
        tab.wait("document.querySelector('.tiles dd span')?.textContent === '1' && window.cdfl.isSettled()")
        second = tab.page.locator(".row", has_text="car-1")
        assert second.locator(".old").text_content() == "no upload"
        assert second.locator(".bar.estimated").is_hidden()
        assert tab.page.locator(".row", has_text="car-0").locator(".bar.estimated").is_visible()


def test_a_client_id_full_of_html_is_text(tab, tmp_path, monkeypatch):
    monkeypatch.setattr("cdfl.server.auth.check_client_id", lambda name: name)  # the server would refuse it
    with Live(tmp_path) as server:
        tab.page.goto(server.url)
        tab.wait("document.getElementById('state').textContent === 'live'")
        server.model(HTML)
        server.update(near(server, 0), HTML)
        tab.wait("document.querySelectorAll('.row:not([hidden])').length === 1")
        assert tab.page.locator(".who").first.text_content() == HTML
        tab.wait("document.querySelectorAll('.lines li').length >= 1")
        tab.page.locator(".lines button").first.click()
        assert tab.page.locator("#client-title").text_content() == HTML
        assert tab.page.locator("img").count() == 0
        assert tab.value("window.hacked") is None


def test_a_protected_server_asks_for_a_token(tab, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    with Live(tmp_path, is_open=False, operator_token=OPERATOR) as server:
        token = Tokens(server.store.database).create("car-7")
        own = {"Authorization": f"Bearer {token}"}
        server.model(headers=own)
        server.update(near(server, 0), headers=own)
        tab.page.goto(server.url)
        dialog = tab.page.locator("#sign-in")
        dialog.wait_for()
        assert "car-7" not in tab.page.content()
        assert Axe().run(tab.page).response["violations"] == []
        for wrong in ("not-it", token):  # a client's token shows it nothing of others
            tab.page.locator("#token").fill(wrong)
            tab.page.keyboard.press("Enter")
            tab.wait("document.getElementById('sign-in-refused').textContent.includes('not accepted')")
            assert "car-7" not in tab.page.content()
            dialog.wait_for()
        tab.page.locator("#token").fill(OPERATOR)
        tab.page.keyboard.press("Enter")
        tab.wait("document.querySelectorAll('.row:not([hidden])').length === 1")
        assert tab.page.locator(".who").first.text_content() == "car-7"
        assert not any(OPERATOR in url for url in [*tab.requests, tab.page.url])
        assert OPERATOR not in tab.page.content()
        stored = tab.value("JSON.stringify([localStorage, sessionStorage, document.cookie])")
        assert OPERATOR not in stored
        assert tab.context.cookies() == []
    assert OPERATOR not in caplog.text


def test_a_server_that_pretrains(tab):
    starting = Starting()
    server = make_server(Limits(), Metrics(), starting)
    with take_port("127.0.0.1", 0) as taken, server.serving(taken):
        starting.say("pre-training, cluster 2 of 4")
        tab.page.goto(server.url)
        tab.wait("document.getElementById('message').textContent.includes('Pre-training, cluster 2 of 4')")
        tab.wait("document.getElementById('state').textContent === 'waiting'")


def test_a_server_that_goes_away_and_comes_back(tab, tmp_path):
    with Live(tmp_path) as server:
        port = server.port
        server.model()
        server.update(near(server, 0))
        tab.page.goto(server.url)
        tab.wait("document.querySelector('.tiles dd span')?.textContent === '1'")
    tab.wait("document.getElementById('state').textContent === 'waiting'")
    with live_again(tmp_path, port) as server:
        tab.wait("document.getElementById('state').textContent === 'live'", seconds=40)
        server.update(near(server, 1), base_epoch=1, key="two")
        tab.wait("document.querySelector('.tiles dd span').textContent === '2'")
        assert tab.page.locator("#message").is_hidden()


def test_the_description_of_the_interface_needs_no_internet(tab, tmp_path):
    with Live(tmp_path) as server:
        tab.page.goto(f"{server.url}/docs")
        tab.page.get_by_text("/v1/updates", exact=True).first.wait_for()
        assert tab.page.locator(".opblock").count() >= 9


def test_it_shows_nothing_that_the_events_do_not(tmp_path):
    """Without a browser: a client's token does not open what the page reads."""
    with Live(tmp_path, is_open=False, operator_token=OPERATOR) as server:
        own = {"Authorization": f"Bearer {Tokens(server.store.database).create('car-7')}"}
        for path in ("/v1/clients", "/v1/clusters"):
            assert server.http.get(path, headers=own).status_code == 401
            assert server.http.get(path).status_code == 401
            assert server.http.get(path, headers={"Authorization": f"Bearer {OPERATOR}"}).status_code == 200
        assert wire.CLIENT == "CDFL-Client"
