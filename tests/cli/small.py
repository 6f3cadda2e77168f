"""A scenario file that runs in no time, and the command line around it."""

from pathlib import Path

from typer.testing import CliRunner

from cdfl.cli import app

TOML = """
name = "small"
model = "small-cnn"
num_clients = 5
num_uploads = {uploads}

[clusters]
kind = "rotations"
source = "digits"
num_clusters = 2

[sizes]
low = 5
high = 20
test = 10
pretraining = 20
proxy = 20

[settings]
batch_size = 8
local_epochs = 1
shared_epochs = 1
separate_epochs = 1
"""


def scenario_file(folder: Path, uploads: int = 12) -> Path:
    path = folder / "small.toml"
    path.write_text(TOML.format(uploads=uploads))
    return path


def call(*args: object, squeeze: bool = True, columns: int = 200) -> tuple[int, str]:
    """The exit code and all output, with spaces made one; or only stdout, as it is, in so many columns."""
    result = CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": str(columns)})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.output.split()) if squeeze else result.stdout
