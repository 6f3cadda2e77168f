"""Measure how long frames of the page take, with 1,000 clients and 20,000 events.

Claim: after loading, no frame takes more than 100 ms while events come, the list is scrolled and the slider is moved.

A run folder with made-up events is served by `cdfl watch` and opened in Chromium (headless, without a GPU). After
loading, 50 events a second are appended. A frame is the time between two calls of requestAnimationFrame, which needs a
machine that does nothing else. CPU time does not: the browser's trace says how much its main thread used in a task, and
a frame is one task or a few.

Writes benchmarks/results/page.json. Takes about a minute. Needs Chromium.
"""

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from benchmarks.result_files import machine, read, write
from cdfl.run_events import Clusters, Started, to_json
from cdfl.watch import serve_runs

CLIENTS, UPLOADS, CLUSTERS = 1000, 20_000, 4
SECONDS, RATE = 20, 50  # of live events, and how many a second
LIMIT = 100.0  # ms
CHROMIUM = os.environ.get("CDFL_CHROMIUM") or shutil.which("chromium") or "chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
OBSERVE = """() => {
  window.frames_ms = []; window.tasks_ms = [];
  let last = performance.now();
  const frame = (now) => { window.frames_ms.push(now - last); last = now; requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
  new PerformanceObserver((list) => { for (const task of list.getEntries()) window.tasks_ms.push(task.duration); })
    .observe({ entryTypes: ["longtask"] });
}"""


def main() -> None:
    """Measure and store."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        run = Path(folder) / "run"
        run.mkdir()
        lines = [to_json(started()), to_json(clusters(0)), *(upload(epoch) for epoch in range(1, UPLOADS + 1))]
        (run / "events.jsonl").write_text("\n".join(lines) + "\n")
        url: list[str] = []
        thread = threading.Thread(target=serve_runs, args=([("run", run)], 0, url.append), daemon=True)
        thread.start()
        while not url:
            time.sleep(0.05)
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        found = measure(page, url[0], run)
        browser.close()
    write("page", {"machine": machine(), "load": os.getloadavg()[0], "clients": CLIENTS, "uploads": UPLOADS} | found)
    print(table())


def measure(page: Page, url: str, run: Path) -> dict[str, Any]:
    """Load the page, then use it while events come."""
    begun = time.perf_counter()
    page.goto(url)
    while not page.evaluate(f"window.cdfl?.runs[0]?.length === {UPLOADS} && window.cdfl.isSettled()"):
        page.wait_for_timeout(50)
    loaded = time.perf_counter() - begun
    page.wait_for_timeout(1500)
    parts: dict[str, Any] = {}
    trace = Trace(page)
    for name, use in (("events come", nothing), ("and the list is scrolled", scroll), ("and the slider moves", slide)):
        page.evaluate(OBSERVE) if not parts else page.evaluate("() => { frames_ms.length = 0; tasks_ms.length = 0; }")
        trace.start()
        live(page, run, use)
        cpu = trace.stop()
        frames = sorted(page.evaluate("() => frames_ms"))
        tasks = page.evaluate("() => tasks_ms")
        parts[name] = {
            "frames": len(frames),
            "p50_ms": round(frames[len(frames) // 2], 1),
            "p99_ms": round(frames[int(0.99 * len(frames))], 1),
            "longest_ms": round(frames[-1], 1),
            "above_limit": sum(frame > LIMIT for frame in frames),
            "longest_task_ms": round(max(tasks, default=0.0), 1),
            "longest_cpu_ms": round(cpu, 1),
        }
    nodes = page.evaluate("() => document.querySelectorAll('*').length")
    work = page.evaluate("() => window.cdfl.runs[0].work / window.cdfl.runs[0].length")
    heap = page.evaluate("() => performance.memory?.usedJSHeapSize ?? 0")
    return {
        "loaded_s": round(loaded, 2),
        "nodes": nodes,
        "steps_an_event": work,
        "heap_mb": round(heap / 1e6),
        "parts": parts,
    }


class Trace:
    """Chromium's own record of its tasks."""

    def __init__(self, page: Page) -> None:
        self._page, self._session = page, page.context.new_cdp_session(page)
        self._events: list[dict[str, Any]] = []
        self._is_over = False
        self._session.on("Tracing.dataCollected", lambda more: self._events.extend(more["value"]))
        self._session.on("Tracing.tracingComplete", lambda _: setattr(self, "_is_over", True))

    def start(self) -> None:
        """Record from now on."""
        self._events.clear()
        self._is_over = False
        config = {"includedCategories": ["toplevel", "__metadata"]}
        self._session.send("Tracing.start", {"transferMode": "ReportEvents", "traceConfig": config})

    def stop(self) -> float:
        """Return the most CPU time that the thread of a page took for one task, in milliseconds."""
        self._session.send("Tracing.end")
        while not self._is_over:
            self._page.wait_for_timeout(50)
        mains = {
            (event["pid"], event["tid"])
            for event in self._events
            if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
        }
        used = [event.get("tdur", 0) for event in self._events if (event["pid"], event["tid"]) in mains]
        return max(used, default=0) / 1000


def live(page: Page, run: Path, use: Any) -> None:
    """Append events for a while, and use the page meanwhile."""
    begun, sent = time.monotonic(), sum(1 for _ in (run / "events.jsonl").open()) - 2
    end = begun + SECONDS
    count = sent
    with (run / "events.jsonl").open("a") as file:
        while time.monotonic() < end:
            due = sent + int(RATE * (time.monotonic() - begun))
            file.writelines(upload(epoch) + "\n" for epoch in range(count + 1, due + 1))
            file.flush()
            count = max(count, due)
            use(page, (time.monotonic() - begun) / SECONDS)
            page.wait_for_timeout(100)


def nothing(page: Page, share: float) -> None:
    """Look."""


def scroll(page: Page, share: float) -> None:
    """Scroll through the list of clients."""
    page.locator(".rows").evaluate("(box, share) => { box.scrollTop = share * box.scrollHeight; }", share)


def slide(page: Page, share: float) -> None:
    """Move through time."""
    page.evaluate("(share) => window.cdfl.setMoment(Math.floor(share * window.cdfl.runs[0].length))", share)


def started() -> Started:
    """Return the first event."""
    return Started(
        scenario="made up", algorithm="cdfl", seed=0, num_clients=CLIENTS, num_clusters=CLUSTERS, num_uploads=10**6,
        model_bytes=10**6, metrics=[{"name": "accuracy", "higher_is_better": True}],
        clusters=[f"kind {k}" for k in range(CLUSTERS)],
    )  # fmt: skip


def clusters(epoch: int) -> Clusters:
    """Return the scores of the clusters."""
    losses: Any = [[0.2 if k == j else 1.5 for j in range(CLUSTERS)] for k in range(CLUSTERS)]
    return Clusters(epoch, [0.8] * CLUSTERS, losses=losses, distances=losses)


def upload(epoch: int) -> str:
    """Return the line of one upload; clients drift slowly."""
    client, update = (epoch * 7919) % CLIENTS, epoch // CLIENTS
    main = (client + update // 3) % CLUSTERS
    mixture = [0.7 if k == main else 0.1 for k in range(CLUSTERS)]
    event = {
        "event": "uploaded", "epoch": epoch, "time": epoch / RATE, "client": client, "update": update, "samples": 100,
        "staleness": epoch % 90, "outcome": "applied" if epoch % 50 else "rejected", "held": 0.7, "before": 0.75,
        "after": 0.8 + 0.1 * (epoch % 7) / 7, "true_mixture": mixture, "mixture": mixture, "divergence": 0.1,
        "rates": mixture, "bytes_up": 1, "bytes_down": 1, "client_flops": 1, "server_flops": 1, "trained": 1,
    }  # fmt: skip
    return json.dumps(event)


def table() -> str:
    """Return the frame times."""
    found = read("page")
    on = found["machine"]
    lines = [
        f"{found['clients']:,} clients, {found['uploads']:,} events loaded in {found['loaded_s']:.1f} s, then {RATE} a "
        f"second; {found['nodes']:,} nodes in the document, {found['heap_mb']} MB; headless Chromium without a GPU on "
        f"{on['cpu']}, {on['cores']} cores, load {found['load']:.1f} when it ended:\n",
        "| while | frames | half below | 99 % below | longest | above 100 ms | most CPU time of a task |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {part['frames']} | {part['p50_ms']:.0f} ms | {part['p99_ms']:.0f} ms "
        f"| {part['longest_ms']:.0f} ms | {part['above_limit']} | {part['longest_cpu_ms']:.0f} ms |"
        for name, part in found["parts"].items()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
