"""The same as `cdfl paper`, where only torch and numpy are: `python -m cdfl.paper NAME --help`."""

import argparse
import sys
from pathlib import Path

from cdfl.paper.command import Only, overview, perform
from cdfl.paper.run import How
from cdfl.stop import stoppable


def main(given: list[str] | None = None) -> None:
    """Read the command line and run an experiment."""
    parser = argparse.ArgumentParser(prog="python -m cdfl.paper", description=__doc__)
    parser.add_argument("name", help="an experiment, or list")
    parser.add_argument("--rows", type=_names, default=[], help="scenarios, with commas between them; all if not given")
    parser.add_argument("--presets", type=_names, default=[], help="default, paper, paper-reading")
    parser.add_argument("--algorithms", type=_names, default=[])
    parser.add_argument("--trials", type=int, help="seeds 0, 1, 2, ...; the experiment's own number if not given")
    parser.add_argument("--out", type=Path, help="a folder; what is in it already is not run again")
    parser.add_argument("--smoke", action="store_true", help="seconds instead of hours, on 8x8 digits")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--together", type=int, help="cells in common stacks; 10, and 1 for a ResNet, if not given")
    parser.add_argument("--processes", type=int, default=1, help="groups of cells that are run side by side")
    parser.add_argument("--commit", help="of the code, where git cannot tell")
    args = parser.parse_args(given)
    if args.name == "list":
        sys.stdout.write(overview() + "\n")
        return
    how = How(args.device, args.precision, args.data_dir, args.together, args.processes, args.smoke, args.commit)
    only = Only(args.rows, args.presets, args.algorithms)
    try:
        with stoppable():
            perform(args.name, how, args.out, args.trials, only, lambda line: print(line, flush=True))  # noqa: T201
    except KeyboardInterrupt:
        sys.exit(130)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


if __name__ == "__main__":
    main()
