"""An FTP server on this machine: a file system of fsspec that lies behind sockets."""

import threading
import warnings
from pathlib import Path

import pytest

USER, WORD = "cdfl", "secret"


class FTP:
    """`with FTP(folder) as server:` serves a folder; it may be stopped and started again on its port."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the modules it is made of
            pytest.importorskip("pyftpdlib", reason="pyftpdlib, an FTP server, is not installed")
            from pyftpdlib.authorizers import DummyAuthorizer
            from pyftpdlib.handlers import FTPHandler
            from pyftpdlib.servers import FTPServer
        authorizer = DummyAuthorizer()
        authorizer.add_user(USER, WORD, str(folder), perm="elradfmwMT")
        handler = type("Handler", (FTPHandler,), {"authorizer": authorizer, "auth_failed_timeout": 0})
        self._listen = lambda: FTPServer(("127.0.0.1", self.port), handler)
        self.port = 0

    @property
    def url(self) -> str:
        return f"ftp://{USER}:{WORD}@127.0.0.1:{self.port}"

    def start(self) -> None:
        self._server = self._listen()
        self.port = self._server.address[1]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def stop(self) -> None:
        """All connections end."""
        self._ended.set()
        self._thread.join()

    def _serve(self) -> None:
        while not self._ended.is_set():
            self._server.serve_forever(timeout=0.02, blocking=False, handle_exit=False)
        self._server.close_all()

    def __enter__(self) -> "FTP":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended.is_set():
            self.stop()
