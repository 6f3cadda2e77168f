"""A server before it is open: it listens, and says what it does and how long that takes."""

import httpx

from cdfl.server.limits import Limits
from cdfl.server.listening_socket import take_port
from cdfl.server.metrics import Metrics
from cdfl.server.readiness import Starting
from cdfl.server.web_server import make_server

from .live import Live


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_time_that_is_left():
    clock = Clock()
    starting = Starting(clock)
    starting.say("pre-training, cluster 2 of 4")
    assert starting.words == "pre-training, cluster 2 of 4"
    starting.step(1, 1000)
    assert starting.words == "pre-training, cluster 2 of 4"  # too early to say
    clock.now += 10
    starting.step(200, 1000)
    assert starting.words == "pre-training, cluster 2 of 4, about 40 s left"
    starting.say("replaying the journal")
    starting.step(1, 50)  # other work: its time is counted anew
    clock.now += 2
    starting.step(5, 50)
    assert starting.seconds_left == 18


def test_it_answers_503_until_it_is_open(tmp_path):
    clock = Clock()
    starting = Starting(clock)
    server = make_server(Limits(), Metrics(), starting)
    with take_port("127.0.0.1", 0) as taken, server.serving(taken), httpx.Client(base_url=server.url) as http:
        starting.say("pre-training, cluster 2 of 4")
        starting.step(0, 100)
        clock.now += 10
        starting.step(20, 100)
        for method, path in (("GET", "/v1/model"), ("POST", "/v1/updates"), ("GET", "/readyz"), ("GET", "/docs")):
            answer = http.request(method, path)
            assert (answer.status_code, answer.json()) == (
                503,
                {"detail": "pre-training, cluster 2 of 4, about 40 s left"},
            )
            assert answer.headers["Retry-After"] == "10"
        assert http.get("/healthz").json() == {"status": "alive"}
        assert http.get("/").status_code == 200  # the page shows the same sentence
        with Live(tmp_path / "store") as other:
            server.open(other.engine, other.access)
            assert http.get("/readyz").json() == {"status": "ready"}
            assert http.get("/v1/status").json()["epoch"] == 0


def test_connections_wait_before_it_runs():
    """From the first moment a client's connection is accepted; it is answered when the server runs."""
    server = make_server(Limits(), Metrics(), Starting())
    with take_port("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(httpx.get, f"http://127.0.0.1:{port}/healthz", timeout=20)
            with server.serving(taken):
                assert asked.result().status_code == 200
