import numpy as np
import pytest
from PIL import Image, ImageDraw

from cdfl.data import DataError
from cdfl.data.sources.ccpd import MIDDLES, PLATE, ccpd, parse_name, perspective

CORNERS = [(386, 473), (177, 454), (154, 383), (363, 402)]  # of the example in CCPD's own README: lower right first


def name_of(characters: list[int], corners=CORNERS, number: int = 25) -> str:
    points = "_".join(f"{x}&{y}" for x, y in corners)
    plate = "_".join(map(str, characters))
    return f"{number:03d}-95_113-154&383_386&473-{points}-{plate}-37-15.jpg"


def photograph(path, characters, corners=CORNERS):
    """A plate whose seven characters are flat blocks: digit d is the red value 20 + 20 d; seen at an angle."""
    flat = Image.new("RGB", (440, 140), (0, 0, 120))
    pen = ImageDraw.Draw(flat)
    for middle, character in zip(MIDDLES, characters[2:], strict=True):
        red = 20 + 20 * (character - 24) if character >= 24 else 0
        pen.rectangle((middle - 22, 25, middle + 22, 115), (red, 200, 0))
    lower_right, lower_left, upper_left, upper_right = corners
    target = np.array([upper_left, upper_right, lower_right, lower_left], float)
    source = np.array([[0, 0], [PLATE[0], 0], [PLATE[0], PLATE[1]], [0, PLATE[1]]])
    back = perspective(target, source)
    coefficients = (back / back[2, 2]).reshape(-1)[:8].tolist()
    scene = flat.transform((720, 1160), Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BILINEAR)
    scene.save(path, quality=95)


def test_the_example_of_the_datasets_own_page():
    plate = parse_name(name_of([0, 0, 22, 27, 27, 33, 16]))
    assert plate.corners.tolist() == [[154, 383], [363, 402], [386, 473], [177, 454]]
    assert plate.digits() == [(1, 3), (2, 3), (3, 9)]  # characters Y 3 3 9 S


def test_digits_are_cut_from_tilted_plates(tmp_path):
    rng = np.random.default_rng(0)
    plates = [[0, 0, *rng.integers(20, 34, 5)] for _ in range(12)]
    wanted = []
    for number, plate in enumerate(plates):
        photograph(tmp_path / name_of(plate, number=number), plate)
        wanted += [c - 24 for c in plate[2:] if c >= 24]
    data = ccpd(tmp_path)
    assert data.input_shape == (3, 32, 32)
    assert sorted([*data.train_targets.tolist(), *data.test_targets.tolist()]) == sorted(wanted)
    for images, labels in ((data.train_inputs, data.train_targets), (data.test_inputs, data.test_targets)):
        middle = images[:, 0, 10:22, 12:20].float().mean((1, 2))
        assert ((middle - 20) / 20 - labels).abs().max() < 0.4  # the digit that its file name says, nothing else
    assert (tmp_path / "data.npz").is_file()  # cut once


def test_a_plate_is_never_in_both_halves(tmp_path):
    rng = np.random.default_rng(1)
    for number in range(8):
        digit = 24 + number
        for view in range(3):
            plate = [0, 0, digit, digit, digit, digit, digit]
            corners = [(x + 4 * view, y + int(rng.integers(3))) for x, y in CORNERS]
            photograph(tmp_path / name_of(plate, corners, number=3 * number + view), plate, corners)
    data = ccpd(tmp_path)
    assert not set(data.train_targets.tolist()) & set(data.test_targets.tolist())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("holiday.jpg", "'holiday.jpg' is not a CCPD file name; expected AREA-TILT-BOX-CORNERS"),
        (name_of([0, 0, 22, 27, 27, 33, 16]).replace("&", "+"), "is not a CCPD file name"),
        (name_of([0, 0, 22, 27, 27, 33, 16, 1]), "has the characters 0_0_22_27_27_33_16_1; expected seven"),
        (name_of([0, 0, 22, 27, 27, 33, 77]), "expected seven, the last five at most 34"),
    ],
)
def test_a_name_that_ccpd_never_writes(tmp_path, name, message):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match=message):
        ccpd(tmp_path)


def test_other_bad_input_gets_one_sentence_and_leaves_nothing(tmp_path):
    with pytest.raises(DataError, match=r"has no photographs; put the .jpg files of CCPD"):
        ccpd(tmp_path)
    path = tmp_path / name_of([0, 0, 24, 24, 24, 24, 24])
    path.write_bytes(b"not a picture")
    with pytest.raises(DataError, match="is truncated or corrupted"):
        ccpd(tmp_path)
    path.unlink()
    photograph(tmp_path / name_of([0, 0, 1, 1, 1, 1, 1]), [0, 0, 1, 1, 1, 1, 1])  # letters only
    with pytest.raises(DataError, match="gives no train digits from 1 photographs; add more"):
        ccpd(tmp_path)
    with pytest.raises(DataError, match="lie on one line; expected a quadrilateral"):
        perspective(np.array([[0, 0], [1, 1], [2, 2], [3, 3]]), np.zeros((4, 2)))
    assert [file.suffix for file in tmp_path.iterdir()] == [".jpg"]
