"""Make the pictures of the pages again: runs, then a server with clients, drawn and photographed.

Run it with `make pictures`. It takes some minutes on two cores and needs Chromium. The files are docs/pictures/*.png.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

PICTURES = Path(__file__).parent / "pictures"
CDFL = str(Path(sys.executable).with_name("cdfl"))
CHROMIUM = os.environ.get("CDFL_CHROMIUM") or shutil.which("chromium") or "chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
SCENARIO = "digits-4-sudden"
CARS = 6
UPLOADS, SECONDS = 60, 300  # of the clients of the server before it is photographed, and how long they have


def main() -> None:
    """Make everything, or reuse the runs of --runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, help="folder of the runs; kept, and reused if it is there")
    asked = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as scratch:
        runs = asked or Path(scratch) / "runs"
        if not runs.exists():
            call(
                "compare",
                SCENARIO,
                "--algorithms",
                "cdfl,fedsoft,fedasync,local-keep",
                "--seeds",
                "3",
                "--out",
                str(runs),
            )
        draw(runs, Path(scratch))
        photograph_runs(runs)
        photograph_server(Path(scratch) / "server")


def draw(runs: Path, scratch: Path) -> None:
    """Draw the picture of the README, a comparison, and a report."""
    chosen = [str(runs / f"{name}-{seed}") for name in ("cdfl", "local-keep") for seed in range(3)]
    call("plot", *chosen, "--client", "14", "--samples", "--out", str(PICTURES / "story.png"))
    call("plot", str(runs), "--out", str(PICTURES / "comparison.png"))
    call("report", str(runs), "--out", str(scratch / "report"))
    for name in ("mixtures", "adaptation", "clusters"):
        shutil.copy(scratch / "report" / f"{name}.png", PICTURES / f"report-{name}.png")
    with browser() as open_page:
        page = open_page(1000, 1100)
        page.goto((scratch / "report" / "report.html").as_uri())
        shoot(page, "report")
    for name in ("story", "comparison", "report-mixtures", "report-adaptation", "report-clusters"):
        shrink(PICTURES / f"{name}.png")


def photograph_runs(runs: Path) -> None:
    """Photograph the page of one run, of one client in it, of several runs, and on a phone."""
    with watching(str(runs / "cdfl-0")) as url, browser() as open_page:
        page = open_page(1280, 900)
        visit(page, url)
        shoot(page, "page-run", whole=True)
        page.locator(".row", has_text="client 14").first.click()
        page.wait_for_timeout(800)
        shoot(page, "page-client")
        phone = open_page(390, 844, color_scheme="dark")
        visit(phone, url)
        shoot(phone, "page-phone")
    with watching(*(str(runs / name) for name in ("cdfl-0", "fedsoft-0", "fedasync-0"))) as url, browser() as open_page:
        page = open_page(1500, 1000, color_scheme="dark")
        visit(page, url)
        shoot(page, "page-side-by-side")


def photograph_server(folder: Path) -> None:
    """Photograph the page of a server while clients drift."""
    folder.mkdir()
    call("init", "setup_cdfl.py", folder=folder)
    with process("serve", "setup_cdfl.py", "--open", "--port", "0", folder=folder) as said:
        url = wait_for(r"serving on (\S+), epoch", said)
        cars = [
            start("join", url, "--client-id", f"car-{number}", "--setup", "setup_cdfl.py", "--watch",
                  "--policy", "always", folder=folder)
            for number in range(CARS)
        ]  # fmt: skip
        try:
            with browser() as open_page:
                page = open_page(1280, 900)
                page.goto(url)
                end = time.monotonic() + SECONDS
                while page.evaluate("window.cdfl?.runs[0]?.length ?? 0") < UPLOADS:
                    if time.monotonic() > end:
                        raise RuntimeError(f"fewer than {UPLOADS} uploads in {SECONDS} s; is the machine busy?")
                    page.wait_for_timeout(500)
                page.wait_for_timeout(1500)
                while not page.evaluate("window.cdfl.isSettled()"):
                    page.wait_for_timeout(20)
                shoot(page, "page-server", whole=True)
        finally:
            for car in cars:
                car.kill()
                car.wait()


# -- helpers


def visit(page: Page, url: str) -> None:
    """Open a page and wait until everything is drawn."""
    page.goto(url)
    for _ in range(200):
        page.wait_for_timeout(100)
        if page.evaluate("window.cdfl?.runs.length > 0 && window.cdfl.runs.every((run) => run.state === 'finished')"):
            break
    page.wait_for_timeout(2500)


def shoot(page: Page, name: str, *, whole: bool = False) -> None:
    """Photograph a page."""
    path = PICTURES / f"{name}.png"
    page.screenshot(path=path, full_page=whole)
    shrink(path)


def shrink(path: Path) -> None:
    """Keep 256 colours: enough for these pictures, and a quarter of the bytes."""
    with Image.open(path) as image:
        image.convert("RGB").quantize(256, kmeans=1, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path.name, path.stat().st_size // 1000, "kB")  # noqa: T201


@contextmanager
def browser() -> Iterator[Any]:
    """Yield a function that opens a page of a size."""
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)

        def open_page(width: int, height: int, **options: Any) -> Page:
            return opened.new_page(viewport={"width": width, "height": height}, **options)

        yield open_page
        opened.close()


@contextmanager
def watching(*runs: str) -> Iterator[str]:
    """Serve the page of some runs."""
    with process("watch", *runs, "--no-browser", "--port", "0") as said:
        yield wait_for(r"watch on (\S+)", said)


def call(*words: str, folder: Path | None = None) -> None:
    """Run a command of cdfl."""
    subprocess.run([CDFL, *words], cwd=folder, check=True)  # noqa: S603


def start(*words: str, folder: Path | None = None, **options: Any) -> "subprocess.Popen[str]":
    """Start a command of cdfl."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [CDFL, *words]
    given = {"stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT} | options
    return subprocess.Popen(command, cwd=folder, text=True, env=environment, **given)  # noqa: S603


@contextmanager
def process(*words: str, folder: Path | None = None) -> Iterator[Iterator[str]]:
    """Run a command while the block runs; yield the lines it prints."""
    running = start(*words, folder=folder, stdout=subprocess.PIPE)
    try:
        yield iter(running.stdout or ())
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(60)


def wait_for(pattern: str, lines: Iterator[str]) -> str:
    """Return what the first line that fits says."""
    for line in lines:
        if found := re.search(pattern, line):
            return found[1]
    raise RuntimeError(f"no line with {pattern}")


if __name__ == "__main__":
    main()
