"""What several commands do alike: reading settings, refusing with one clear sentence."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Hyperparameters from `name=value` words.

    >>> parse_settings(["base_rate=0.1", "loss_bar=min", "max_staleness=none", "sharpness=[10, 10]"])
    {'base_rate': 0.1, 'loss_bar': 'min', 'max_staleness': None, 'sharpness': [10, 10]}
    """
    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise ValueError(f"--set got {setting!r}; expected name=value, as in --set base_rate=0.1")
        try:
            values[name] = None if text.lower() == "none" else json.loads(text)
        except json.JSONDecodeError:
            values[name] = text
    return values


@contextmanager
def refuse(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors that a user can mend into one line and exit code 2; Ctrl-C into exit code 130."""
    try:
        yield
    except kinds as error:
        typer.secho(f"cdfl: {error}", err=True, fg="red")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.secho("cdfl: stopped", err=True)
        raise typer.Exit(130) from None
