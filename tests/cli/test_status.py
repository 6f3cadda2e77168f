"""`cdfl status` and `cdfl clients`, on a server and on a store; and what `cdfl serve` prints."""

import io
import json

import pytest
from rich.console import Console

from cdfl.cli.server_console import ServerConsole, StartProgress, line_text
from cdfl.server.limits import Limits
from cdfl.server.listening_socket import take_port
from cdfl.server.metrics import Metrics
from cdfl.server.readiness import Starting
from cdfl.server.web_server import make_server

from ..made_up import events, write_run
from ..server.live import Live, near, wait_for
from .small import call

pytestmark = pytest.mark.slow

LONG = "a-client-with-a-name-of-sixty-four-characters-which-is-the-most"
OPERATOR = "an-operator"


@pytest.fixture
def server(tmp_path):
    with Live(tmp_path / "store") as server:
        server.model()
        server.update(near(server, 1))
        server.model(LONG)
        yield server


def test_a_server_and_its_store_say_the_same(server, tmp_path):
    code, remote = call("status", server.url, "--json", squeeze=False)
    assert code == 0
    code, local = call("status", tmp_path / "store", "--json", squeeze=False)
    assert code == 0
    remote, local = json.loads(remote), json.loads(local)
    for name in ("epoch", "num_clusters", "cluster_losses", "cluster_epochs", "clients", "uploads", "num_parameters"):
        assert remote[name] == local[name], name
    assert (remote["state"], local["state"], local["snapshots"]) == ("serving", "stored", [0])
    code, said = call("status", server.url)
    assert f"{server.url}: epoch 1, 1 upload, 2 clients" in said


def test_clients(server, tmp_path):
    for place in (server.url, tmp_path / "store"):
        code, said = call("clients", place, "--json", squeeze=False)
        assert code == 0
        found = {client["client_id"]: client for client in json.loads(said)["clients"]}
        assert set(found) == {"car-7", LONG}
        assert (found["car-7"]["uploads"], found["car-7"]["outcome"], found["car-7"]["epoch"]) == (1, "applied", 1)
        assert sum(found["car-7"]["mixture"]) == pytest.approx(1)
        assert (found[LONG]["uploads"], found[LONG]["mixture"]) == (0, None)


def test_tables_fit_eighty_columns_and_names_are_whole(server):
    for command in ("status", "clients"):
        code, said = call(command, server.url, squeeze=False, columns=80)
        assert code == 0
        assert all(len(line) <= 80 for line in said.splitlines())
        assert "…" not in said
    first_column = "".join(line[1:25].strip() for line in said.splitlines())
    assert LONG in first_column  # wrapped, not cut


def test_many_clients_come_in_pages(tmp_path, monkeypatch):
    monkeypatch.setattr("cdfl.server.watch_routes.MOST_CLIENTS", 2)
    with Live(tmp_path / "store") as server:
        for number in range(5):
            server.model(f"car-{number}")
        page = server.http.get("/v1/clients", params={"limit": 2}).json()
        assert ([client["client_id"] for client in page["clients"]], page["more"]) == (["car-0", "car-1"], True)
        code, said = call("clients", server.url)
        assert (code, "5 clients" in said) == (0, True)


def test_a_protected_server(tmp_path, monkeypatch):
    with Live(tmp_path / "store", is_open=False, operator_token=OPERATOR) as server:
        for command in ("status", "clients"):
            code, said = call(command, server.url)
            assert (code, said) == (
                2,
                f"cdfl: {server.url} is protected; give the operator's token with --token or CDFL_OPERATOR_TOKEN",
            )
            assert call(command, server.url, "--token", OPERATOR)[0] == 0
            monkeypatch.setenv("CDFL_OPERATOR_TOKEN", OPERATOR)
            assert call(command, server.url)[0] == 0
            monkeypatch.delenv("CDFL_OPERATOR_TOKEN")


def test_a_server_that_is_starting():
    starting = Starting()
    server = make_server(Limits(), Metrics(), starting)
    with take_port("127.0.0.1", 0) as taken, server.serving(taken):
        starting.say("pre-training, cluster 2 of 4")
        assert call("status", server.url) == (0, f"{server.url}: pre-training, cluster 2 of 4")
        code, said = call("status", server.url, "--json", squeeze=False)
        assert json.loads(said) == {"state": "starting", "detail": "pre-training, cluster 2 of 4"}
        code, said = call("clients", server.url)
        assert (code, said) == (2, f"cdfl: {server.url} is not open yet: pre-training, cluster 2 of 4")


def test_places_that_are_neither(tmp_path):
    code, said = call("status", "http://127.0.0.1:1")
    assert (code, said.startswith("cdfl: http://127.0.0.1:1 does not answer: ")) == (2, True)
    code, said = call("status", tmp_path / "none")
    assert (code, f"there is no store in {tmp_path}/none" in said) == (2, True)
    run = write_run(tmp_path / "run", events())
    code, said = call("status", run)
    assert (code, said) == (
        2,
        f"cdfl: {run} is a run, not a store; `cdfl watch {run}` and `cdfl report {run}` show it",
    )


# -- what `cdfl serve` prints


class Screen:
    """A terminal of 80 columns."""

    def __init__(self, *, is_terminal=True):
        self.text = io.StringIO()
        self.console = Console(file=self.text, force_terminal=is_terminal, width=80, highlight=False, color_system=None)

    @property
    def lines(self):
        return [line.strip() for line in self.text.getvalue().replace("\r", "\n").split("\n") if line.strip()]


def serve_a_little(server, screen, capsys=None, as_json=False):
    printed = ServerConsole(screen.console, server.engine, as_json=as_json)
    server.engine.listeners.append(printed)
    import threading

    shown = threading.Thread(target=printed._paint, args=(server.server,))
    shown.start()
    server.model("car-9")
    server.update(near(server, 0), "car-9", base_epoch=server.engine.state.epoch, key="nine")
    wait_for(lambda: printed._outcomes["applied"] == 1)
    printed._over.wait(0.6)
    printed._over.set()
    shown.join()


def test_a_line_for_each_join_and_upload_and_a_status_line(server):
    screen = Screen()
    serve_a_little(server, screen)
    said = "\n".join(screen.lines)
    assert "car-9 joined" in said
    assert "car-9 uploaded: epoch 2, applied" in said
    assert "epoch 2 · 3 clients · 0.1 uploads/s · 1 applied" in said
    assert all(len(line) <= 80 for line in screen.lines if "uploads/s" in line)


def test_json_lines(server, capsys):
    serve_a_little(server, Screen(is_terminal=False), as_json=True)
    joined, uploaded = map(json.loads, capsys.readouterr().out.splitlines())
    assert (joined["event"], joined["client_id"]) == ("joined", "car-9")
    assert (uploaded["event"], uploaded["epoch"], uploaded["outcome"]) == ("uploaded", 2, "applied")


def test_quiet_without_a_terminal(server):
    screen = Screen(is_terminal=False)
    printed = ServerConsole(screen.console, server.engine, as_json=False)
    printed.joined("car-9")
    assert printed._is_quiet
    assert not printed._lines
    assert screen.lines == []


def test_a_busy_server_does_not_flood_the_screen(server):
    screen = Screen()
    printed = ServerConsole(screen.console, server.engine, as_json=False)
    for number in range(100):
        printed.joined(f"car-{number}")
    printed._print_lines()
    assert len(screen.lines) == 9
    assert screen.lines[-1] == "and 92 more lines"


def test_a_rejected_upload_says_why():
    line = {"event": "uploaded", "time": 0.0, "client_id": "car-7", "epoch": 3, "outcome": "rejected", "staleness": 1}
    assert line_text(line | {"mixture": [1.0], "reason": "too far"}, ["a"]).endswith("rejected: too far")


def test_progress_before_it_is_open():
    screen, starting = Screen(is_terminal=False), Starting()
    with StartProgress(screen.console, starting, "http://127.0.0.1:8000") as shown:
        shown.stage("pre-training, shared model")
        shown.step(3, 10)
        shown.stage("pre-training, cluster 1 of 2")
    assert screen.lines == [
        "listening on http://127.0.0.1:8000; clients wait until it serves",
        "pre-training, shared model",
        "pre-training, cluster 1 of 2",
    ]
    assert (starting.stage, starting.done, starting.total) == ("pre-training, cluster 1 of 2", 3, 10)
