import gzip
import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def write_idx() -> Callable[[Path, np.ndarray], None]:
    """Write a gzipped IDX file of unsigned bytes."""

    def write(path: Path, array: np.ndarray) -> None:
        header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4) for size in array.shape)
        path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))

    return write


@pytest.fixture
def write_tar() -> Callable[[Path, dict[str, bytes]], None]:
    """Write a gzipped tar archive."""

    def write(path: Path, files: dict[str, bytes]) -> None:
        with tarfile.open(path, "w:gz") as archive:
            for name, raw in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(raw)
                archive.addfile(member, io.BytesIO(raw))

    return write


@pytest.fixture
def web(monkeypatch) -> Iterator[tuple[str, dict[str, bytes], set[str]]]:
    """A web server on this machine: its address, what it serves, and which files it breaks off half-way."""
    files: dict[str, bytes] = {}
    broken: set[str] = set()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.strip("/")
            if name not in files:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(files[name])))
            self.end_headers()
            body = files[name]
            self.wfile.write(body[: len(body) // 2] if name in broken else body)

        def log_message(self, *args):
            pass

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", files, broken
        server.shutdown()
        thread.join()
