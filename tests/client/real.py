"""Run `cdfl serve` in a separate process, on a free port."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx

SETUP = """
import cdfl
from cdfl.data import Dataset, Datasets
from tests.client.toy import make_data, make_model


def of_server(turned):
    halves = make_data(turned, count=40, seed=8), make_data(turned, count=40, seed=7)
    return Dataset(f"turned {turned}", *halves[0], *halves[1], num_classes=2)


problem = cdfl.Problem(
    model=make_model,
    clusters=Datasets((of_server(False), of_server(True))),
    sizes=cdfl.Sizes(pretraining=40, proxy=40),
    settings=cdfl.Settings(batch_size=8, learning_rate=0.01, shared_epochs=1, separate_epochs=5, reply="model"),
)
"""
ROOT = Path(__file__).resolve().parent.parent.parent
CDFL = Path(sys.executable).with_name("cdfl")


def environment() -> dict[str, str]:
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}


class RealServer:
    """A server that can be started, stopped, killed and started again with the same store."""

    def __init__(self, folder: Path, *options: str, scheme: str = "http") -> None:
        self.folder, self.options, self.port, self.scheme = folder, options, 0, scheme
        (folder / "setup.py").write_text(SETUP)
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [CDFL, "serve", "setup.py", "--port", str(self.port), "--max-rate", "1000", *self.options]
        self.process = subprocess.Popen(  # noqa: S603
            command, cwd=self.folder, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        said = []
        for line in self.process.stderr:
            said.append(line)
            if "serving on " in line:
                break
        else:
            raise AssertionError(f"cdfl serve ended with {self.process.wait()}: {''.join(said)}")
        self.port = int(line.split("serving on ")[1].split(",")[0].rsplit(":", 1)[1])
        self.reader = threading.Thread(target=self.process.stderr.read, daemon=True)
        self.reader.start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def status(self) -> dict:
        return httpx.get(f"{self.url}/v1/status", headers={"CDFL-Client": "observer"}).json()

    def end(self, how: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            try:
                self.process.wait(30)
            finally:
                self.process.kill()
                self.process.wait()
                self.reader.join()
                self.process.stderr.close()
        self.process = None
