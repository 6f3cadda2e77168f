"""`cdfl plot`: draw runs."""

from pathlib import Path
from typing import Annotated

import typer

from cdfl.cli.options import Json, exit_on
from cdfl.cli.runs import find_runs, read_runs
from cdfl.cli.tables import show

Client = Annotated[
    int | None, typer.Option("--client", help="The client whose mixtures are drawn; default: a telling one.")
]
Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or of `cdfl compare`.")]


def plot(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="File to write: .png, .svg, .pdf or another format of matplotlib.")] = Path(
        "run.png"
    ),
    client: Client = None,
    json_: Json = False,
) -> None:
    """Draw runs. Runs that differ in their seed only become one curve with a band.

    One algorithm: what happens to one client, and the scores of all. Several: what the replies of each reach; with
    --client, the picture of the first, and the others beside it.
    """
    with exit_on(ValueError, OSError):
        from cdfl.report import figures, style
        from cdfl.series import groups

        read = read_runs(find_runs(runs))
        is_story = client is not None or len(groups(read)) == 1
        style.save(figures.story(read, client) if is_story else figures.comparison(read), out)
    show({"file": str(out)}, None, as_json=json_, notes=[f"wrote {out}"])
