"""`cdfl watch`: the page for runs of the simulator, finished or running."""

from cdfl.watch.app import create_watch_app
from cdfl.watch.serve import serve_runs

__all__ = ["create_watch_app", "serve_runs"]
