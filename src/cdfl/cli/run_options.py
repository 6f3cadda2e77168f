"""Options of the commands that run scenarios or problems, and the folders of runs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cdfl.argument_checks import did_you_mean
from cdfl.cli.options import flag
from cdfl.core.settings import LEAVES
from cdfl.run_folder import RunFolder
from cdfl.sim.presets import PRESETS
from cdfl.sim.time_models import TIME_MODELS
from cdfl.upload_policies import POLICIES

ScenarioName = Annotated[
    str, typer.Argument(metavar="PROBLEM", help="A name from `cdfl scenarios`, or your own .toml or .py file.")
]
Out = Annotated[Path | None, typer.Option(help="Folder for the results; default: a new folder in runs/.")]
EngineName = Annotated[
    str, typer.Option(help="local: this process trains; ray: the workers of a Ray cluster (cdfl[ray]).")
]
Address = Annotated[
    str | None,
    typer.Option(
        help="HOST:PORT of Ray's head, or local: a new cluster here; default: $RAY_ADDRESS, one that runs here, local."
    ),
]
NumWorkers = Annotated[
    int | None, typer.Option("--workers", help="Workers of Ray; default: as the cluster has cores or GPUs for.")
]
Cores = Annotated[int | None, typer.Option(help="CPU cores of each worker of Ray; default: 1.")]
PresetName = Annotated[
    str, typer.Option(help="; ".join(f"{preset.name}: {preset.summary}" for preset in PRESETS.values()) + ".")
]
TimeModelName = Annotated[
    str | None,
    typer.Option(help=f"When clients are online: {', '.join(TIME_MODELS)}, or a trace file; default: the preset's."),
]
PolicyName = Annotated[
    str | None, typer.Option(help=f"When a client uploads: {', '.join(POLICIES)}; default: the problem's, or always.")
]
PrecisionName = Annotated[
    str, typer.Option(help="auto, float32, tf32 (GPU only) or bfloat16. The last two are faster and less exact.")
]
NumClients = Annotated[int | None, typer.Option(help="Number of clients; default: the scenario's.")]
NumUploads = Annotated[int | None, typer.Option(help="Number of uploads; default: the scenario's.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="A setting, as name=value; repeatable.")]
Validation = Annotated[bool, flag("--validation", "Score on samples that no table is scored on, to make choices with.")]
Resume = Annotated[bool, flag("--resume", "Continue the interrupted run in --out.")]


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Return the settings in `name=value` arguments.

    >>> parse_settings(["base_rate=0.1", "loss_bar=min", "max_staleness=none", "sharpness=[10, 10]"])
    {'base_rate': 0.1, 'loss_bar': 'min', 'max_staleness': None, 'sharpness': [10, 10]}
    """
    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise ValueError(f"--set got {setting!r}; expected name=value, as in --set base_rate=0.1")
        if name not in LEAVES:
            raise ValueError(f"there is no setting {name!r}; there are {', '.join(LEAVES)}{did_you_mean(name, LEAVES)}")
        try:
            values[name] = None if text.lower() == "none" else json.loads(text)
        except json.JSONDecodeError:
            values[name] = text
    return values


def open_folder(out: Path | None, name: str, config: Mapping[str, Any], *, resume: bool) -> RunFolder:
    """Open a new run folder or, to resume, the folder of the same run.

    Without `--out`, a new folder is runs/NAME or the next free runs/NAME-2, ...; resuming opens the last of them.
    """
    taken = [path for path in _numbered(Path("runs") / name) if path.exists()]
    if out is not None:
        path = out
    elif resume:
        path = taken[-1] if taken else Path("runs") / name
    else:
        path = next(path for path in _numbered(Path("runs") / name) if not path.exists())
    if not resume:
        return RunFolder.create(path, config)
    folder = RunFolder(path)
    if not (path / "config.json").exists():
        raise ValueError(f"there is no run in {path} to resume; omit --resume to start a new run")
    if folder.config() != json.loads(json.dumps(config, default=str)):
        raise ValueError(
            f"{path} holds a run with other settings; use the same settings to resume it, or another --out"
        )
    return folder


def _numbered(path: Path) -> Iterator[Path]:
    yield path
    for number in range(2, 1000):
        yield path.with_name(f"{path.name}-{number}")
