"""Following run folders, and the application around them."""

import json

import httpx
import pytest

from cdfl.run_folder import RunFolder
from cdfl.watch import create_watch_app
from cdfl.watch.follow import Follower

from ..cli.small import call
from ..made_up import events, write_run
from ..page.serving import Site, Watching
from ..server.live import Live


def test_following_a_file(tmp_path):
    folder = RunFolder.create(tmp_path / "run", {})
    follower = Follower(folder.path)
    assert follower.read() == (False, [])  # it has not begun
    made = events()
    with folder.writer() as write:
        write(made[0])
        assert [len(lines) for _, lines in (follower.read(), follower.read())] == [1, 0]
        for event in made[1:4]:
            write(event)
        assert len(follower.read()[1]) == 3
    with (folder.path / "events.jsonl").open("a") as file:
        file.write('{"event": "cut')
        file.flush()
        assert follower.read() == (False, [])
        file.write('"}\n')
    assert follower.read() == (False, [b'{"event": "cut"}'])
    with folder.writer(made[:2]):
        is_new, lines = follower.read()
    assert (is_new, len(lines), follower.is_finished) == (True, 2, False)
    with folder.writer(made):
        assert len(follower.read()[1]) == len(made)
    assert follower.is_finished


def test_the_stream_of_several_runs(tmp_path):
    made = events()
    runs = [(name, write_run(tmp_path / name, made)) for name in ("one", "two")]
    site = Site(create_watch_app(runs))
    assert site.get("/page/config.json").json() == {"kind": "runs", "runs": [{"name": "one"}, {"name": "two"}]}
    lines = [line.split("\t") for line in site.get("/runs/events").text.splitlines()]
    for number in ("0", "1"):
        own = [json.loads(text) for which, text in lines if which == number]
        assert [event["event"] for event in own] == [type(event).__name__.lower() for event in made]


def test_other_names_of_this_machine_are_refused(tmp_path):
    """Otherwise a web site could lead its own name here, and read the runs."""
    app = create_watch_app([("run", write_run(tmp_path / "run", events()))])
    assert Site(app, "evil.example").get("/runs/events").status_code == 400


@pytest.mark.slow
def test_a_server_is_opened_in_the_browser(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with Live(tmp_path) as server:
        assert call("watch", server.url) == (0, f"watch on {server.url}/")
        assert opened == [f"{server.url}/"]
        assert call("watch", server.url, "--no-browser") == (0, f"watch on {server.url}/")
        assert len(opened) == 1
        url = server.url
    code, said = call("watch", url)
    assert (code, said.startswith(f"cdfl: {url} does not answer")) == (2, True)
    code, said = call("watch", url, url)
    assert (code, said) == (
        2,
        "cdfl: expected folders of runs, or one URL of a server; not both, and not several servers",
    )


@pytest.mark.slow
def test_a_site_that_is_no_server(tmp_path):
    runs = [("run", write_run(tmp_path / "run", events()))]
    with Watching(runs[0][1]) as url:
        assert httpx.get(url).status_code == 200
        code, said = call("watch", url)
        assert (code, "is no cdfl server; expected the address that `cdfl serve` prints" in said) == (2, True)
