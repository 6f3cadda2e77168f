"""Processes that start at once: forked from one that has already imported torch, which takes seconds.

They run `cdfl serve` with its arguments, or a client with its state.
"""

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
IMPORTED_AHEAD = (
    "benchmarks.crash.problem",
    "cdfl.cli.forget",
    "cdfl.cli.serve",
    "cdfl.cli.verify",
    "cdfl.client",
    "cdfl.server.engine_startup",
    "cdfl.server.web_server",
    "cdfl.server.verify",
    "psycopg",
    "pydantic.v1",  # which FastAPI imports late
    "sqlalchemy.dialects.postgresql.psycopg",
    "torch._dynamo",  # which the first training would import
)
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Process:
    """A child process. A file descriptor identifies it, so a signal never reaches a process that reused its id."""

    def __init__(self, fork_server: "ForkServer", pid: int, log: Path) -> None:
        self.pid, self.log = pid, log
        self._fork_server = fork_server
        self._handle = os.pidfd_open(pid)
        self._code: int | None = None

    @property
    def is_alive(self) -> bool:
        """Is it running?"""
        return self._code is None and not self._has_ended(0)

    def send(self, number: signal.Signals) -> None:
        """Send a signal; one that has ended gets none."""
        if self._code is None:
            signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> int:
        """SIGKILL."""
        self.send(signal.SIGKILL)
        return self.wait(30)

    def wait(self, seconds: float) -> int:
        """Its exit code, once it has ended: minus the signal that ended it."""
        if self._code is None:
            if not self._has_ended(seconds):
                raise TimeoutError(f"process {self.pid} still runs after {seconds} s; its log is {self.log}")
            self._code = self._fork_server.order({"reap": self.pid})
            os.close(self._handle)
        return self._code

    def _has_ended(self, seconds: float) -> bool:
        return bool(select.select([self._handle], [], [], seconds)[0])


class ForkServer:
    """Forks processes from one that has imported torch. They end with its `with` block."""

    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": str(ROOT)}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = [sys.executable, "-m", "benchmarks.crash.fork_server"]
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)
        self._children: list[Process] = []
        self.order({})  # wait for the imports

    def start(self, function: str, *arguments: Any, log: Path) -> Process:
        """Call `module:name` with some arguments in a new process; what it prints goes to the end of `log`."""
        pid = self.order({"call": function, "arguments": arguments, "log": str(log)})
        self._children.append(Process(self, pid, log))
        return self._children[-1]

    def end_all(self) -> None:
        """Kill what is left of a campaign."""
        for process in self._children:
            process.kill()
        self._children.clear()

    def order(self, order: dict[str, Any]) -> int:
        """Ask for something; the answer is a number."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def cdfl(*arguments: str) -> None:
    """The command line, as `cdfl` in a shell."""
    from cdfl.cli import app

    app(arguments, prog_name="cdfl")


def main() -> None:
    """Execute orders until the input ends; then kill all children."""
    for name in IMPORTED_AHEAD:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot be forked safely"  # noqa: PTH208
    gc.freeze()  # all children share these pages
    for line in sys.stdin:
        order = json.loads(line)
        answer = 0
        if "reap" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["reap"], 0)[1])
        elif "call" in order:
            answer = os.fork() or _run(**order)
        print(answer, flush=True)
    os._exit(0)  # tidying up takes seconds


def _run(call: str, arguments: list[Any], log: str) -> int:
    """Run a call in a child; never return."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        module, _, name = call.partition(":")
        getattr(importlib.import_module(module), name)(*arguments)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
