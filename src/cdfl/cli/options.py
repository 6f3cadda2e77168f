"""What several commands do alike: reading settings, refusing with one clear sentence."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from cdfl.core.settings import LEAVES
from cdfl.policy import POLICIES
from cdfl.record import RunFolder
from cdfl.scenarios import SCENARIOS
from cdfl.sim.presets import PRESETS
from cdfl.sim.time_models import TIME_MODELS
from cdfl.userfile import is_missed_by_us


def flag(name: str, words: str) -> Any:
    """An option that takes no value; typer alone would show it with the type of one."""
    return typer.Option(name, help=words, metavar="")


ScenarioName = Annotated[str, typer.Argument(help="A name from `cdfl scenarios`, or a file of your own.")]
DeviceName = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Out = Annotated[Path | None, typer.Option(help="Where to keep everything; default: a new folder in runs/.")]
PresetName = Annotated[
    str, typer.Option(help="; ".join(f"{preset.name}: {preset.summary}" for preset in PRESETS.values()) + ".")
]
TimeModelName = Annotated[
    str | None,
    typer.Option(help=f"Who is there when: {', '.join(TIME_MODELS)}, or a trace file; if not given, the preset's."),
]
PolicyName = Annotated[str, typer.Option(help=f"When a client uploads: {', '.join(POLICIES)}.")]
PrecisionName = Annotated[str, typer.Option(help="auto, float32, tf32 (only on a GPU), bfloat16: faster, rougher.")]
Clients = Annotated[int | None, typer.Option(help="Another number of clients.")]
Uploads = Annotated[int | None, typer.Option(help="Stop after so many uploads.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="A setting, as name=value; may be repeated.")]
Resume = Annotated[bool, flag("--resume", "Go on with what was interrupted in --out.")]
DataDir = Annotated[
    Path | None, typer.Option(envvar="CDFL_DATA", help="Folder with the datasets; if not given, ~/.cache/cdfl.")
]


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Settings from `name=value` words.

    >>> parse_settings(["base_rate=0.1", "loss_bar=min", "max_staleness=none", "sharpness=[10, 10]"])
    {'base_rate': 0.1, 'loss_bar': 'min', 'max_staleness': None, 'sharpness': [10, 10]}
    """
    values: dict[str, Any] = {}
    known = LEAVES
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise ValueError(f"--set got {setting!r}; expected name=value, as in --set base_rate=0.1")
        if name not in known:
            raise ValueError(f"there is no setting {name!r}; there are {', '.join(known)}")
        try:
            values[name] = None if text.lower() == "none" else json.loads(text)
        except json.JSONDecodeError:
            values[name] = text
    return values


def counted(number: int, thing: str, things: str | None = None) -> str:
    """So many things in words.

    >>> counted(1, "upload"), counted(2, "upload"), counted(0, "entry", "entries")
    ('1 upload', '2 uploads', '0 entries')
    """
    return f"{number} {thing if number == 1 else things or f'{thing}s'}"


def open_folder(out: Path | None, name: str, config: Mapping[str, Any], *, resume: bool) -> RunFolder:
    """Open the folder of a run: a new one, or, to resume, one that holds the same run.

    Without `--out` that is runs/NAME, or the next free runs/NAME-2, ...; to resume, the last of them.
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
        raise ValueError(f"there is no run in {path} to resume; leave --resume away to begin one")
    if folder.config() != json.loads(json.dumps(config, default=str)):
        raise ValueError(f"{path} holds a run with other settings; give the same ones to resume it, or another --out")
    return folder


def _numbered(path: Path) -> Iterator[Path]:
    yield path
    for number in range(2, 1000):
        yield path.with_name(f"{path.name}-{number}")


def meant(message: str) -> str:
    """What to add to an error about a name that does not exist: of those that it lists the one most like it, if any is.

    >>> meant("there is no algorithm 'fedsofd'; there are cdfl, fedsoft, ...")
    '; did you mean fedsoft?'
    >>> meant("there is no algorithm 'sgd'; there are cdfl, fedsoft, ...")
    ''
    """
    said = re.match(r"there is no ([a-z ]+) '([^']*)'", message)
    if said is None:
        return ""
    listed = re.search(r"(?:there are|expected one of) ([^;]*)", message)
    names = re.findall(r"(?:^|, )([\w.-]+)(?=,|$)", listed[1]) if listed else SCENARIOS if said[1] == "scenario" else ()
    close = get_close_matches(said[2], names, n=1)
    return f"; did you mean {close[0]}?" if close else ""


@contextmanager
def refuse(*kinds: type[Exception], needs: str = "what simulations need", extra: str = "sim") -> Iterator[None]:
    """Turn errors that a user can mend into one line and exit code 2; Ctrl-C into exit code 130."""
    try:
        yield
    except ModuleNotFoundError as error:
        is_ours = error.name and is_missed_by_us(error)  # without a name it tells its own remedy
        remedy = f"; {needs} comes with: pip install 'cdfl[{extra}]'" if is_ours else ""
        typer.secho(f"cdfl: {error}{remedy}", err=True, fg="red")
        raise typer.Exit(2) from None
    except kinds as error:
        typer.secho(f"cdfl: {error}{meant(str(error))}", err=True, fg="red")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.secho("cdfl: stopped", err=True)
        raise typer.Exit(130) from None
