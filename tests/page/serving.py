"""The page of runs, inside this process: with sockets, and without."""

import asyncio
import threading
from pathlib import Path

import httpx
import uvicorn

from cdfl.watch import create_watch_app

from ..server.live import wait_for


class Site:
    """Asks an application without a socket."""

    def __init__(self, app, host: str = "127.0.0.1:8001") -> None:
        self.app, self.host = app, host

    def get(self, path: str, **options: object) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{self.host}") as client:
                return await client.get(path, **options)

        return asyncio.run(ask())


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
