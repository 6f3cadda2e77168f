"""The Grafana dashboard: every query of it is answered by a real Prometheus that reads a real server."""

import json
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from .live import Live, near, wait_for

DASHBOARD = json.loads((Path(__file__).parents[2] / "docs" / "reference" / "grafana.json").read_text())
QUERIES = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
PROMETHEUS = shutil.which("prometheus")


def test_the_panels_do_not_overlap():
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.slow
def test_every_metric_is_shown(tmp_path):
    with Live(tmp_path) as server:
        page = server.http.get("/metrics").text
    there = {name.removesuffix("_total") for name in re.findall(r"^# TYPE (\w+)", page, re.MULTILINE)}
    there = {name for name in there if not name.endswith("_created")}
    named = {
        re.sub(r"_(total|bucket|sum|count)$", "", name)
        for _, query in QUERIES
        for name in re.findall(r"cdfl_\w+", query)
    }
    assert named == there


@pytest.mark.slow
@pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed: apt-get install prometheus")
def test_prometheus_answers_every_query(tmp_path):
    with Live(tmp_path / "store") as server, prometheus(tmp_path, server.port) as ask:
        server.model()
        for epoch in range(8):
            server.update(near(server, 0), base_epoch=epoch, key=f"k{epoch}")
            server.update(b"", base_epoch=epoch, key="again")  # refused
            time.sleep(0.3)
        wait_for(lambda: ask("cdfl_epoch") and ask("rate(cdfl_uploads_total[5s])"), seconds=30)
        for title, query in QUERIES:
            filled = query.replace("$__rate_interval", "20s").replace("$instance", ".*")
            found = ask(filled)
            assert found, title
        assert float(ask("max(cdfl_epoch)")[0]["value"][1]) == 8


class prometheus:  # noqa: N801  used as a function
    """A Prometheus on loopback that reads a server every half second; yields a function that asks it."""

    def __init__(self, folder: Path, port: int) -> None:
        config = f"""
global: {{scrape_interval: 500ms, scrape_timeout: 400ms}}
scrape_configs: [{{job_name: cdfl, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}]
"""
        (folder / "prometheus.yml").write_text(config)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.command = [
            str(PROMETHEUS),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address={self.address}",
            "--log.level=error",
        ]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
        wait_for(self.is_ready, seconds=30)
        return self.ask

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"http://{self.address}/-/ready").is_success
        except httpx.TransportError:
            return False

    def ask(self, query: str) -> list[dict]:
        answer = httpx.get(f"http://{self.address}/api/v1/query", params={"query": query}).json()
        assert answer["status"] == "success", answer
        return answer["data"]["result"]
