import pytest
import torch

from cdfl.data import DataError
from cdfl.data.shift import reshape, shift


def test_blur_spreads_and_keeps_the_sum_in_the_middle():
    image = torch.zeros(1, 1, 21, 21, dtype=torch.uint8)
    image[0, 0, 10, 10] = 255
    blurred = shift(image, "blur 1")[0, 0].int()
    assert blurred[10, 10] == 41  # 255 / (2 pi)
    assert blurred[10, 11] == blurred[9, 10] == 25
    assert abs(int(blurred.sum()) - 255) < 15  # rounding of each pixel


def test_blur_works_where_the_kernel_is_wider_than_the_image():
    flat = torch.full((1, 3, 4, 4), 70, dtype=torch.uint8)
    assert torch.equal(shift(flat, "blur 9"), flat)


@pytest.mark.parametrize("wrong", ["fog", "blur", "blur -1", "brightness 0", "brightness much", "none 3", "blur inf"])
def test_an_unknown_shift_is_refused(wrong):
    with pytest.raises(DataError, match=r"there is no shift .*expected \"none\""):
        shift(torch.zeros(1, 1, 2, 2, dtype=torch.uint8), wrong)


def test_reshape_repeats_grey_and_keeps_flat_colours():
    grey = torch.full((2, 1, 16, 16), 99, dtype=torch.uint8)
    assert torch.equal(reshape(grey, (3, 32, 32)), torch.full((2, 3, 32, 32), 99, dtype=torch.uint8))
    with pytest.raises(DataError, match="2 channels cannot become 3; give the shape 2 channels, or 1 for grey"):
        reshape(torch.zeros(1, 2, 4, 4, dtype=torch.uint8), (3, 4, 4))


def test_reshape_averages_colours_to_grey():
    colours = torch.tensor([0, 100, 200], dtype=torch.uint8).reshape(1, 3, 1, 1).expand(2, 3, 16, 16)
    assert torch.equal(reshape(colours, (1, 8, 8)), torch.full((2, 1, 8, 8), 100, dtype=torch.uint8))
