"""Hooks of the documentation site: the command-line reference, and links to files that are not on the site."""

import re
from pathlib import Path, PurePosixPath
from typing import Any

import typer

from cdfl.cli import app

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = re.compile(r"\[(?P<words>[^\]]+)\]\((?P<target>(?:\.\./)+[^)#]+)[^)]*\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Write the command-line reference; turn links to files outside docs/ into their names."""
    folder = PurePosixPath("docs", page.file.src_uri).parent

    def named(found: re.Match[str]) -> str:
        target = (ROOT / folder / found["target"]).resolve().relative_to(ROOT)
        if target.parts[0] == "docs":
            return found[0]
        name = f"`{target}` in the repository"
        return name if found["words"] == str(target) else f"{found['words']} ({name})"

    markdown = OUTSIDE.sub(named, markdown)
    return markdown.replace("<!-- commands -->", commands(typer.main.get_command(app).load(), "cdfl"))


def commands(command: Any, name: str) -> str:
    """Return the help of a command and of the commands below it."""
    parts = [f"## {name}\n\n{command.help or ''}\n"] if name != "cdfl" else []
    rows = []
    for parameter in command.params:
        if parameter.name == "help":
            continue
        words = getattr(parameter, "help", None) or ""
        is_option = parameter.param_type_name == "option"
        names = ", ".join(f"`{flag}`" for flag in parameter.opts) if is_option else f"`{parameter.name.upper()}`"
        default = parameter.default if is_option else None
        has_default = isinstance(default, str | int | float) and default is not False
        shown = f" Default: `{default}`." if has_default else ""
        variable = f" Environment: `{parameter.envvar}`." if getattr(parameter, "envvar", None) else ""
        rows.append(f"| {names} | {words}{shown}{variable} |".replace("\n", " "))
    if rows and name != "cdfl":
        parts.append("| | |\n|---|---|\n" + "\n".join(rows) + "\n")
    for below in getattr(command, "commands", {}).values():
        parts.append(commands(below, f"{name} {below.name}"))
    return "\n".join(parts)
