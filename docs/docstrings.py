"""Griffe extension for the reference: doctests become code blocks, a field's comment becomes its description."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


class PlainDocstrings(griffe.Extension):
    """Turns our docstrings into Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Put doctests into code blocks."""
        if obj.docstring and ">>> " in obj.docstring.value:
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Take the comment behind a field as its description."""
        if attr.docstring is None and attr.lineno is not None:
            _, mark, words = attr.lines_collection[attr.filepath][attr.lineno - 1].partition("  # ")
            if mark:
                attr.docstring = griffe.Docstring(words.strip(), parent=attr)
