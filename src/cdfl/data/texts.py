"""Texts: predict the next character or word; one cluster for each file or folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from cdfl.argument_checks import did_you_mean
from cdfl.data.clusters import Cluster, Load
from cdfl.data.errors import DataError
from cdfl.data.user_data import halved

UNKNOWN = 0  # the token of everything that is too rare
WORDS = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Texts:
    """A recipe for clusters: the files `NAME.txt` of a folder, or the .txt files in each of its folders.

    A sample is `length` tokens and, as its target, the tokens that follow each. Paragraphs, separated by empty lines,
    or else lines, are never divided between two sets, so no sentence is trained on and tested.

    Args:
        source: The path of a folder, or the name of a dataset of texts.
        names: Which files or folders, without .txt; they are the names of the clusters. Default: all.
        length: Tokens in a sample.
        unit: What a token is: "characters" or "words".
        num_tokens: The number of different tokens; the rarest are one token together.

    """

    source: str | Path
    names: tuple[str, ...] = ()
    length: int = 64
    unit: Literal["characters", "words"] = "characters"
    num_tokens: int = 110

    def __post_init__(self) -> None:
        if self.unit not in ("characters", "words"):
            raise ValueError(f'unit is {self.unit!r}; expected "characters" or "words"')
        for name, least in (("length", 1), ("num_tokens", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least {least}")

    @property
    def num_clusters(self) -> int:
        """One for each name; looks into the folder if none are given."""
        if self.names:
            return len(self.names)
        from cdfl.data.sources import load_source

        return len(_files(_folder(load_source(str(self.source))), self.names))

    def build(self, load: Load) -> list[Cluster]:
        """Read the files, number their tokens, and cut them into samples."""
        files = _files(_folder(load(str(self.source))), self.names)
        split = {
            name: [self._tokens(part) for path in paths for part in _paragraphs(_read(path))]
            for name, paths in files.items()
        }
        counts = Counter(token for parts in split.values() for part in parts for token in part)
        common = [token for token, _ in sorted(counts.most_common(self.num_tokens - 1), key=lambda pair: pair[0])]
        number = {token: place for place, token in enumerate(common, start=UNKNOWN + 1)}
        return [self._cluster(name, parts, number) for name, parts in split.items()]

    def _tokens(self, text: str) -> Sequence[str]:
        return text if self.unit == "characters" else WORDS.findall(text)

    def _cluster(self, name: str, paragraphs: Sequence[Sequence[str]], number: dict[str, int]) -> Cluster:
        windows, groups, waiting, group = [], [], list[int](), 0
        for paragraph in paragraphs:
            if waiting:
                waiting.append(number.get(" ", UNKNOWN))
            waiting += [number.get(token, UNKNOWN) for token in paragraph]
            if len(waiting) <= self.length:  # too short alone: goes with the next paragraph
                continue
            for first in range(0, len(waiting) - self.length, self.length):
                windows.append(waiting[first : first + self.length + 1])
                groups.append(group)
            waiting, group = [], group + 1
        if group < 8:
            raise DataError(
                f"text {name!r} has {group} paragraphs of more than {self.length} {self.unit}; expected at least 8: "
                "add text, or set a smaller length"
            )
        tokens = torch.tensor(windows)  # (N, length + 1)
        size = len(number) + 1
        own = halved(name, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), size, torch.tensor(groups))
        return Cluster(name, own)


def _folder(found: object) -> Path:
    if not isinstance(found, Path):
        raise DataError(f"{found!r} is not a folder of texts")
    return found


def _files(folder: Path, names: Sequence[str]) -> dict[str, list[Path]]:
    """Return the files of each cluster."""
    found = {path.stem: [path] for path in sorted(folder.glob("*.txt"))}
    for inner in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        texts = sorted(inner.rglob("*.txt"))
        if texts:
            found[inner.name] = texts
    if missing := [name for name in names if name not in found]:
        there = f"{', '.join(found) or 'none'}{did_you_mean(missing[0], found)}"
        raise DataError(f"{folder} has no text {missing[0]!r}; there are {there}")
    if not found:
        raise DataError(f"{folder} has no texts; expected NAME.txt for each cluster, or NAME/*.txt")
    return {name: found[name] for name in names or found}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not in UTF-8 ({error.reason} at byte {error.start}); convert it, e.g. with iconv"
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _paragraphs(text: str) -> list[str]:
    """Divide a text at empty lines; at every line if it has none. Spaces and line ends count as one space."""
    parts = re.split(r"\n\s*\n", text.strip())
    parts = parts if len(parts) > 1 else text.strip().split("\n")
    return [" ".join(part.split()) for part in parts if part.strip()]
