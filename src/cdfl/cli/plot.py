"""`cdfl plot`: draw runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdfl.cli.options import Json, exit_on
from cdfl.cli.run_folders import find_runs, read_runs
from cdfl.cli.tables import show

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    samples: Annotated[
        bool,
        typer.Option("--samples", help="Show an image of each cluster beside its name; loads the scenario's data."),
    ] = False,
    metric: Annotated[str | None, typer.Option(help="The score to draw; default: the main metric.")] = None,
    json_: Json = False,
) -> None:
    """Draw runs. Runs that differ in their seed only become one curve with a band.

    One algorithm: what happens to one client, and the scores of all. Several: what the replies of each reach; with
    --client, the picture of the first, and what the replies of the others reach.
    """
    with exit_on(ValueError, OSError):
        from cdfl.report import figures, style
        from cdfl.run_series import groups

        read = [run.by(metric) for run in read_runs(find_runs(runs))]
        is_story = client is not None or samples or len(groups(read)) == 1
        images = sample_images(read[0].started.scenario) if samples else None
        style.save(figures.story(read, client, images) if is_story else figures.comparison(read), out)
    show({"file": str(out)}, None, as_json=json_, notes=[f"wrote {out}"])


def sample_images(name: str) -> "list[NDArray[Any]]":
    """Return one proxy image of each cluster of a scenario, the same where clusters show the same images."""
    from cdfl.data.contact_sheet import one_image
    from cdfl.scenarios import load_scenario

    federation = load_scenario(name).federation()
    if not federation.is_image:
        raise ValueError(f"{name} has no images to show; omit --samples")
    return [one_image(federation, cluster) for cluster in range(federation.num_clusters)]
