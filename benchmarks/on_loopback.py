"""Run a command where only loopback exists, if the system allows it: Ray listens on every address it finds.

python -m benchmarks.on_loopback COMMAND ...
"""

import os
import sys

from benchmarks.processes import loopback_only

if __name__ == "__main__":
    command = [*loopback_only(), *sys.argv[1:]]
    os.execvp(command[0], command)
