"""`cdfl paper`: the paper's tables and figures, run again in a checkout."""

import importlib
import sys
from pathlib import Path

import typer

from cdfl.cli.options import exit_on

# The experiments read their own options and print their own help.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def paper(context: typer.Context) -> None:
    """Run a table or figure of the paper; needs a checkout of the repository."""
    with exit_on(FileNotFoundError):
        sys.path.insert(0, str(_checkout()))
    experiments = importlib.import_module("experiments.__main__")
    experiments.app(context.args, prog_name="cdfl paper")


def _checkout() -> Path:
    """Return the checkout that holds this package or the current folder."""
    for root in (Path(__file__).resolve().parents[3], Path.cwd()):
        if (root / "experiments" / "published.json").is_file():
            return root
    raise FileNotFoundError("`cdfl paper` needs a checkout of the repository; clone it and run the command there")
