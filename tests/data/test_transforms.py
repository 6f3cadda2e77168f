import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cdfl.data import DataError
from cdfl.data.transforms import quarter_turns, reshape, rotate, shift, to_input

squares = st.integers(1, 9).flatmap(lambda side: hnp.arrays(np.uint8, (2, 3, side, side))).map(torch.from_numpy)


@given(squares)
def test_four_right_angles_return_the_original_bytes(images):
    turned = images
    for _ in range(4):
        turned = quarter_turns(turned, 1)
    assert torch.equal(turned, images)


@given(squares, st.integers(-3, 3))
def test_a_full_turn_is_the_identity_and_right_angles_are_exact(images, rounds):
    assert torch.equal(rotate(images, 360 * rounds), images)
    assert torch.equal(rotate(images, 90), torch.rot90(images, 1, (-2, -1)))


@given(squares, st.integers(0, 3), st.sampled_from([30, 45, 60]))
def test_an_angle_and_its_right_angle_share_one_bilinear_copy(images, turns, degrees):
    assert torch.equal(rotate(images, degrees + 90 * turns), quarter_turns(rotate(images, degrees), turns))


def test_bilinear_turns_the_same_way_as_right_angles():
    """Just under 90 degrees must look like 90: the check that both are counter-clockwise about one centre."""
    image = torch.zeros(1, 1, 15, 15, dtype=torch.uint8)
    image[..., 2:5, 6:9] = 200  # off centre, so that a wrong direction shows
    almost, exact = rotate(image, 89.99).int(), rotate(image, 90).int()
    assert (almost - exact).abs().max() <= 3


def test_bilinear_by_hand():
    """A 3x3 cross turned by 45 degrees: the centre stays, the arms spread evenly."""
    image = torch.zeros(1, 1, 3, 3, dtype=torch.uint8)
    image[0, 0, 1, 1] = 100
    turned = rotate(image, 45)[0, 0]
    assert turned[1, 1] == 100
    # A corner is sqrt(2) away from the centre, an arm 1: bilinear weight (1 - sqrt(1/2))^2 = .0858 on the centre.
    assert turned[0, 1] == turned[1, 0] == turned[1, 2] == turned[2, 1] == 9
    assert turned[0, 0] == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_right_angles_are_the_same_on_a_gpu():
    images = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    for turns in range(4):
        assert torch.equal(quarter_turns(images.cuda(), turns).cpu(), quarter_turns(images, turns))


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


def test_only_bytes_are_scaled():
    assert torch.equal(to_input(torch.tensor([0.5, 2.0]), torch.float64), torch.tensor([0.5, 2.0], dtype=torch.float64))
    assert torch.equal(to_input(torch.tensor([3, 4]), torch.float64), torch.tensor([3, 4]))


def test_the_type_is_the_networks():
    assert to_input(torch.zeros(1, dtype=torch.uint8), torch.bfloat16).dtype == torch.bfloat16
