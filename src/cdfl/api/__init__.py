"""What Python users call: `cdfl.run`, `cdfl.compare`, `cdfl.load` and `cdfl.serve`."""

from cdfl.api.comparison import Comparison, compare
from cdfl.api.runs import Run, load, run
from cdfl.api.serving import Server, serve

__all__ = ["Comparison", "Run", "Server", "compare", "load", "run", "serve"]
