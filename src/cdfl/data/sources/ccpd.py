"""Cut digits of licence plates from the photographs of CCPD, https://github.com/detectRecog/CCPD.

A photograph's file name has seven fields. The fourth holds the plate's corners, clockwise from the lower right. The
fifth holds its seven characters as numbers; in the last five, 24..33 are the digits 0..9.
"""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cdfl.data.dataset import Dataset
from cdfl.data.errors import DataError
from cdfl.data.randomness import generator
from cdfl.data.sources.npz_and_mosaics import remember
from cdfl.data.sources.source import reading

POINT = r"(\d+)&(\d+)"
NAME = re.compile(rf"\d+-\d+_\d+-{POINT}_{POINT}-{POINT}_{POINT}_{POINT}_{POINT}-(\d+(?:_\d+)*)-\d+-\d+\.jpe?g")
FIRST_DIGIT, NO_CHARACTER = 24, 34  # in CCPD's table of letters and digits

# A blue plate is 440 x 140 mm. Its characters are 45 x 90 mm with 12 mm between them, 34 mm after the second
# (Chinese standard GA 36); these are the centres of the last five.
PLATE = (440.0, 140.0)
MIDDLES = (174.0, 231.0, 288.0, 345.0, 402.0)
WINDOW = (57.0, 110.0)  # width and height of the cut around a digit's centre; neighbours just touch it
SIDE = 32
LIMITS = {"train": 80_000, "test": 20_000}  # at most this many digits, as in the paper


@dataclass(frozen=True)
class Plate:
    """The content of a file name."""

    corners: np.ndarray  # (4, 2) x and y: upper left, upper right, lower right, lower left
    characters: tuple[int, ...]

    def digits(self) -> list[tuple[int, int]]:
        """Return the digits, each with its position among the last five characters."""
        return [(at, c - FIRST_DIGIT) for at, c in enumerate(self.characters[2:]) if FIRST_DIGIT <= c < NO_CHARACTER]


def parse_name(name: str) -> Plate:
    """Read a photograph's file name.

    >>> plate = parse_name("025-95_113-154&383_386&473-386&473_177&454_154&383_363&402-0_0_22_27_27_33_16-37-15.jpg")
    >>> plate.digits()
    [(1, 3), (2, 3), (3, 9)]
    >>> plate.corners[0].tolist()
    [154.0, 383.0]
    """
    found = NAME.fullmatch(name)
    if found is None:
        raise DataError(
            f"{name!r} is not a CCPD file name; "
            "expected AREA-TILT-BOX-CORNERS-CHARACTERS-BRIGHTNESS-BLUR.jpg; move other pictures out of the folder"
        )
    *numbers, characters = found.groups()
    right_lower, left_lower, left_upper, right_upper = np.array(numbers[4:], np.float64).reshape(4, 2)
    plate = tuple(int(c) for c in characters.split("_"))
    if len(plate) != 7 or max(plate[2:]) > NO_CHARACTER:
        raise DataError(
            f"{name!r} has the characters {characters}; expected seven, the last five at most {NO_CHARACTER}"
        )
    return Plate(np.stack([left_upper, right_upper, right_lower, left_lower]), plate)


def ccpd(folder: Path) -> Dataset:
    """Cut the digits of all photographs below `ccpd_base`, or below the folder; a fifth of the plates is the test half.

    This takes minutes for the full dataset, so the result is stored in the folder as `data.npz`.
    """
    base = folder / "ccpd_base" if (folder / "ccpd_base").is_dir() else folder
    photographs = sorted(base.rglob("*.jp*g"))
    if not photographs:
        raise DataError(f"{base} has no photographs; put the .jpg files of CCPD's ccpd_base folder there")
    images: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    labels: dict[str, list[int]] = {"train": [], "test": []}
    for at in generator(0, "ccpd").permutation(len(photographs)):
        plate = parse_name(photographs[at].name)
        # Split by plate, not by photograph, so that no car is in both halves.
        half = "test" if zlib.crc32(repr(plate.characters).encode()) % 5 == 0 else "train"
        for image, label in cut_digits(photographs[at], plate):
            if len(images[half]) < LIMITS[half]:
                images[half].append(image)
                labels[half].append(label)
        if all(len(images[half]) == LIMITS[half] for half in LIMITS):
            break
    for half in images:
        if not images[half]:
            raise DataError(f"{base} gives no {half} digits from {len(photographs)} photographs; add more of them")
    train, test = ((np.stack(images[half]), np.array(labels[half])) for half in ("train", "test"))
    return remember(folder, Dataset.from_arrays("ccpd", train, test, num_classes=10))


def cut_digits(path: Path, plate: Plate) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the digits of one photograph, each `(32, 32, 3)`, with the perspective removed."""
    from PIL import Image

    with reading(path, "unpack it again, or move it away"), Image.open(path) as photograph:
        rgb = photograph.convert("RGB")
    to_photograph = perspective(np.array([[0, 0], [PLATE[0], 0], [PLATE[0], PLATE[1]], [0, PLATE[1]]]), plate.corners)
    for place, digit in plate.digits():
        left, top = MIDDLES[place] - WINDOW[0] / 2, (PLATE[1] - WINDOW[1]) / 2
        window = np.array([[WINDOW[0] / SIDE, 0, left], [0, WINDOW[1] / SIDE, top], [0, 0, 1]])
        matrix = to_photograph @ window
        coefficients = (matrix / matrix[2, 2]).reshape(-1)[:8].tolist()
        cut = rgb.transform((SIDE, SIDE), Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BILINEAR)
        yield np.asarray(cut), digit


def perspective(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the 3x3 matrix that maps four points to four others."""
    rows, values = [], []
    for (x, y), (u, v) in zip(source, target, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    try:
        solution = np.linalg.solve(np.array(rows, np.float64), np.array(values, np.float64))
    except np.linalg.LinAlgError as error:
        raise DataError(f"the plate corners {target.tolist()} lie on one line; expected a quadrilateral") from error
    return np.append(solution, 1.0).reshape(3, 3)
