"""The page of runs, inside this process."""

import threading
from pathlib import Path

import uvicorn

from cdfl.watch import create_watch_app

from ..server.live import wait_for


class Watching:
    """`with Watching(folder, ...) as url:` serves the page of some runs until the block ends."""

    def __init__(self, *folders: Path) -> None:
        config = uvicorn.Config(
            create_watch_app([(folder.name, folder) for folder in folders]), port=0, log_level="error", lifespan="off"
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run)

    def __enter__(self) -> str:
        self.thread.start()
        wait_for(lambda: self.server.started)
        return f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}/"

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = self.server.force_exit = True
        self.thread.join()
