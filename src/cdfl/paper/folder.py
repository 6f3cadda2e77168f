"""Where the experiments are: they belong to the repository, not to the installed package."""

from pathlib import Path


def experiments_folder() -> Path:
    """The folder `experiments` of the checkout that this package, or the current folder, is in."""
    for root in (Path(__file__).resolve().parents[2], Path.cwd()):
        if (root / "experiments" / "published.json").is_file():
            return root / "experiments"
    raise FileNotFoundError(
        "there is no folder experiments/ here; the paper's results are run in a checkout of the repository"
    )
