"""Draw a contact sheet: example images of every cluster, one row each."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from cdfl.data.errors import DataError
from cdfl.data.federation import Federation

TILE = 64  # an image in the picture is about this many pixels wide; larger ones keep their size
GAP = 4
TITLE = 96  # width of the column with the clusters' names
LEGEND = 22  # height of the line below, where labels are shown


def contact_sheet(federation: Federation, columns: int = 10) -> Image.Image:
    """Draw one proxy image of each of `columns` classes, the same images in every row; names on the left."""
    _, height, width = federation.input_shape
    scale = max(1, round(TILE / max(height, width)))  # whole, so that pixels stay square
    step_y, step_x = height * scale + GAP, width * scale + GAP
    has_labels = any(cluster.label_map is not None for cluster in federation.clusters)
    bottom = GAP + federation.num_clusters * step_y
    sheet = Image.new("RGB", (TITLE + columns * step_x, bottom + LEGEND * has_labels), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=13)
    for k, cluster in enumerate(federation.clusters):
        images, labels = federation.proxy(k)
        top = GAP + k * step_y
        pen.text((GAP, top + step_y // 2), cluster.name.replace(" ", "\n"), "black", font, anchor="lm")
        for column, at in enumerate(_one_of_each(_base_labels(federation, k), columns)):
            tile = Image.fromarray(_rgb(images[at].permute(1, 2, 0).cpu().numpy()))
            left = TITLE + column * step_x
            sheet.paste(tile.resize((width * scale, height * scale), Image.Resampling.NEAREST), (left, top))
            if has_labels:
                word = str(int(labels[at]))
                pen.rectangle((left, top, left + 6 + pen.textlength(word, font), top + 16), "#ffe14d")
                pen.text((left + 3, top + 8), word, "black", font, anchor="lm")
    if has_labels:
        words = "yellow: the label of the image in that cluster; the images are the same in all"
        pen.text((TITLE, bottom + LEGEND // 2), words, "black", font, anchor="lm")
    return sheet


def one_image(federation: Federation, cluster: int, column: int = 7) -> np.ndarray:
    """Return the image of one cluster that the sheet has in a column."""
    images, _ = federation.proxy(cluster)
    at = _one_of_each(_base_labels(federation, cluster), column + 1)[-1]
    return _rgb(images[at].permute(1, 2, 0).cpu().numpy())


def save_sheet(federation: Federation, path: Path, columns: int = 10) -> None:
    """Write the sheet as a small PNG with 256 colours."""
    sheet = contact_sheet(federation, columns)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sheet.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}; choose another folder") from error


def _base_labels(federation: Federation, k: int) -> np.ndarray:
    """Return the labels before any permutation, so that all rows show the same images."""
    labels: np.ndarray = federation.clusters[k].dataset.test_targets.cpu().numpy()[federation.splits[k].proxy]
    return labels


def _one_of_each(labels: np.ndarray, columns: int) -> list[int]:
    """Return the positions of the first image of each class; with few classes, add more images."""
    first = [int(np.flatnonzero(labels == label)[0]) for label in np.unique(labels)[:columns]]
    others = np.delete(np.arange(len(labels)), first)
    return [*first, *others.tolist()][:columns]


def _rgb(image: np.ndarray) -> np.ndarray:
    return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image
