import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdfl.data import Sizes
from cdfl.data.split import split_dataset


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 400), st.integers(1, 400), st.integers(0, 2**40))
@settings(max_examples=60)
def test_no_image_is_in_two_sets_and_none_is_lost(make_dataset, train, test, pretraining, proxy, seed):
    data = make_dataset(train=train, test=test, shape=(2, 2, 1))
    split = split_dataset(data, Sizes(pretraining=pretraining, proxy=proxy), seed)
    assert sorted([*split.pretraining, *split.train]) == list(range(train))
    assert sorted([*split.proxy, *split.test]) == list(range(test))


def test_the_split_depends_on_the_seed_and_not_on_what_the_images_show(make_dataset):
    sizes = Sizes(pretraining=50, proxy=20)
    one, twin = (split_dataset(make_dataset(seed=s), sizes, seed=3) for s in (0, 1))
    other = split_dataset(make_dataset(), sizes, seed=4)
    assert np.array_equal(one.train, twin.train)
    assert not np.array_equal(one.train, other.train)


def test_small_sources_get_smaller_server_sets_and_say_so(make_dataset):
    plates = make_dataset("plates", train=2751, test=670, shape=(1, 1, 1))
    split = split_dataset(plates, Sizes(), seed=0)
    assert [len(split.part(name)) for name in ("pretraining", "train", "proxy", "test")] == [687, 2064, 167, 503]
    assert split.notes == (
        "plates: pretraining set of 687 images instead of 3,000: the train half has only 2,751",
        "plates: proxy set of 167 images instead of 1,000: the test half has only 670",
    )


def test_enough_images_mean_no_note(make_dataset):
    split = split_dataset(make_dataset(train=6000, test=2000, shape=(1, 1, 1)), Sizes(), seed=0)
    assert (len(split.pretraining), len(split.proxy), split.notes) == (3000, 1000, ())


def test_nonsense_is_refused(make_dataset):
    with pytest.raises(ValueError, match="low is 5 and high is 4; expected 1 <= low <= high"):
        Sizes(low=5, high=4)
    with pytest.raises(ValueError, match="proxy is 0; expected at least 1 sample"):
        Sizes(proxy=0)
    with pytest.raises(ValueError, match="there is no split 'validation'"):
        split_dataset(make_dataset(), Sizes(), 0).part("validation")
