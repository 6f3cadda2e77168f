"""The process that gives a server's orders to the workers of a Ray cluster: `python -m cdfl.server.on_ray.driver FD`.

It is not the server's own process because Ray ends a process that has lost the head of its cluster.

The server sends the engine, the proxy sets, and the seconds after which an idle worker ends. It gets True once the
cluster is there. Then it sends lists of orders. For each it gets pairs of a number and losses, and None at the end;
orders without a pair are left to the server. A string says why this process ends.
"""

import logging
import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

from cdfl.on_ray.connection import connected
from cdfl.on_ray.pool import Pool, first_line
from cdfl.server.on_ray.worker import EvaluationWorker

SECONDS_BETWEEN_SHRINKS = 1.0

log = logging.getLogger("cdfl")


def main() -> None:
    """Serve one server, until it closes the connection."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the server still answers requests, and then closes the connection
    _say_only_warnings()
    server = Connection(int(sys.argv[1]))
    try:
        engine, proxies, idle_seconds = server.recv()
        with connected(engine) as ray:
            pool = Pool(ray, engine, EvaluationWorker, proxies, elastic=True)
            server.send(True)
            while True:
                if server.poll(SECONDS_BETWEEN_SHRINKS):
                    _work(server, pool)
                pool.shrink(idle_seconds)
    except (EOFError, BrokenPipeError):
        pass
    except Exception as error:
        with suppress(OSError):
            server.send(first_line(error))


def _say_only_warnings() -> None:
    """Drop what Ray itself writes: that this program will terminate, for example, while the server does not."""
    stderr = os.fdopen(os.dup(2), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    logging.basicConfig(stream=stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def _work(server: "Connection", pool: Pool) -> None:
    """Do the orders of one list, unless all workers are still starting: the server is faster then."""
    orders = server.recv()
    if pool.has_idle(len(orders)):
        try:
            pool.work(len(orders), orders.__getitem__, lambda number, losses: server.send((number, losses)))
        except RuntimeError as error:  # workers are lost again and again
            log.warning("%s", error)
    server.send(None)


if __name__ == "__main__":
    main()
