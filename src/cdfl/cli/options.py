"""Options and helpers that several commands share."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cdfl.argument_checks import did_you_mean
from cdfl.core.settings import LEAVES
from cdfl.run_folder import RunFolder
from cdfl.sim.presets import PRESETS
from cdfl.sim.time_models import TIME_MODELS
from cdfl.upload_policies import POLICIES
from cdfl.user_code import is_missed_by_cdfl


def flag(name: str, words: str) -> Any:
    """Return an option without a value. Typer alone would show a type for it."""
    return typer.Option(name, help=words, metavar="")


ScenarioName = Annotated[
    str, typer.Argument(metavar="PROBLEM", help="A name from `cdfl scenarios`, or your own .toml or .py file.")
]
DeviceName = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
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
Json = Annotated[bool, flag("--json", "Print JSON for programs, and nothing else on stdout.")]
Validation = Annotated[bool, flag("--validation", "Score on samples that no table is scored on, to make choices with.")]
Resume = Annotated[bool, flag("--resume", "Continue the interrupted run in --out.")]
DataDir = Annotated[
    Path | None, typer.Option(envvar="CDFL_DATA", help="Folder with the datasets; default: ~/.cache/cdfl.")
]


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


def note(line: str) -> None:
    """Write a line to stderr."""
    typer.echo(line, err=True)


def counted(number: int, thing: str, things: str | None = None) -> str:
    """Return a number with its noun in singular or plural.

    >>> counted(1, "upload"), counted(2, "upload"), counted(0, "entry", "entries")
    ('1 upload', '2 uploads', '0 entries')
    """
    return f"{number} {thing if number == 1 else things or f'{thing}s'}"


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


@contextmanager
def exit_on(*kinds: type[Exception], needs: str = "a simulation", extra: str = "sim") -> Iterator[None]:
    """Turn errors of these kinds into one line and exit code 2, and Ctrl-C into exit code 130."""
    try:
        yield
    except ModuleNotFoundError as error:
        is_extra = error.name and is_missed_by_cdfl(error)  # without a name, the message already says what to install
        remedy = f"; {needs} needs: pip install 'cdfl[{extra}]'" if is_extra else ""
        typer.secho(f"cdfl: {error}{remedy}", err=True, fg="red")
        raise typer.Exit(2) from None
    except kinds as error:
        typer.secho(f"cdfl: {error}", err=True, fg="red")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.secho("cdfl: stopped", err=True)
        raise typer.Exit(130) from None
