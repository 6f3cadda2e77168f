"""The same as `cdfl paper`, where only torch, numpy and safetensors are.

It exists for machines with a GPU that have these three and on which nothing can be installed.
"""

import argparse
import sys
from pathlib import Path

from cdfl.paper.command import HELP, Only, names, obey
from cdfl.paper.failure import UnfinishedError
from cdfl.paper.run import How
from cdfl.signals import sigterm_interrupts


def main(given: list[str] | None = None) -> None:
    """Read the command line and run an experiment; an error that a user can mend is one line and exit code 2."""
    parser = _parser()
    args = parser.parse_args(given)
    try:
        with sigterm_interrupts():
            _run(args)
    except KeyboardInterrupt:
        parser.exit(130, f"{parser.prog}: stopped\n")
    except (ValueError, OSError, ModuleNotFoundError, UnfinishedError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


def _run(args: argparse.Namespace) -> None:
    how = How(args.device, args.precision, args.data_dir, args.together, args.processes, args.smoke, args.commit)
    only = Only(args.rows, args.presets, args.algorithms)
    obey(args.name, how, args.out, args.trials, only, args.add, _tell)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cdfl.paper", description=__doc__)
    parser.add_argument("name", help=HELP["name"])
    for option in ("rows", "presets", "algorithms"):
        parser.add_argument(f"--{option}", type=names, default=[], help=HELP[option])
    parser.add_argument("--trials", type=_at_least_one, help=HELP["trials"])
    parser.add_argument("--out", type=Path, help=HELP["out"])
    parser.add_argument("--smoke", action="store_true", help=HELP["smoke"])
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--precision", default="auto", help="auto, float32, tf32 or bfloat16")
    parser.add_argument("--together", type=_at_least_one, help=HELP["together"])
    parser.add_argument("--processes", type=_at_least_one, default=1, help=HELP["processes"])
    where = "Folder with the datasets; default: $CDFL_DATA, or ~/.cache/cdfl."
    parser.add_argument("--data-dir", type=Path, help=where)
    parser.add_argument("--add", type=Path, action="append", default=[], help=HELP["add"])
    parser.add_argument("--commit", help="Of the code, where git cannot tell.")
    return parser


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a whole number, 1 or more")
    return int(text)


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
