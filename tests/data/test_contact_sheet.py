import numpy as np
from PIL import Image

from cdfl.data.contact_sheet import _one_of_each, contact_sheet, save_sheet
from cdfl.scenarios import load_scenario


def test_one_row_for_each_cluster_turned(tmp_path):
    federation = load_scenario("digits-4").federation()
    sheet = contact_sheet(federation, columns=3)
    assert sheet.size == (96 + 3 * 68, 4 + 4 * 68)
    upright, turned = (sheet.crop((96, top, 160, top + 64)) for top in (4, 4 + 2 * 68))
    assert upright.rotate(180).tobytes() == turned.tobytes()
    save_sheet(federation, tmp_path / "new" / "sheet.png")
    with Image.open(tmp_path / "new" / "sheet.png") as picture:
        assert picture.width == 96 + 10 * 68


def test_more_columns_than_classes_show_further_images_once():
    assert _one_of_each(np.array([1, 0, 1, 0, 0]), 4) == [1, 0, 2, 3]
    assert _one_of_each(np.array([1, 0, 1, 0, 0]), 9) == [1, 0, 2, 3, 4]


def test_permuted_labels_are_written_on_the_images():
    federation = load_scenario("digits-4-labels").federation()
    sheet = contact_sheet(federation, columns=2)
    rows = [sheet.crop((96, 4 + k * 68, 160, 68 + k * 68)).tobytes() for k in (0, 1)]
    assert rows[0] != rows[1]
    yellow = (255, 225, 77)
    for k in range(4):  # the first cluster's, too
        assert sheet.getpixel((96, 4 + k * 68)) == yellow
    assert sheet.height > 4 + 4 * 68  # a line says what the numbers are
