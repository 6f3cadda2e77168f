from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cdfl.data import DataError, Sizes
from cdfl.data.split import SPLITS, split_dataset


@given(st.integers(2, 300), st.integers(2, 300), st.integers(1, 400), st.integers(1, 400), st.integers(0, 2**40))
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
        "plates: pretraining set of 687 samples instead of 3,000: the train half has only 2,751; provide more, or set "
        "sizes=Sizes(pretraining=687)",
        "plates: proxy set of 167 samples instead of 1,000: the test half has only 670; provide more, or set "
        "sizes=Sizes(proxy=167)",
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


def test_a_server_without_simulated_clients_may_take_everything(make_dataset):
    split = split_dataset(make_dataset(train=30, test=20), Sizes(pretraining=25, proxy=99), 0, clients=False)
    assert [len(split.part(name)) for name in ("pretraining", "train", "proxy", "test")] == [25, 5, 20, 0]
    assert split.notes == (
        "tiny: proxy set of 20 samples instead of 99: the test half has only 20; provide more, or set "
        "sizes=Sizes(proxy=20)",
    )
    shared = Sizes(pretraining=15, proxy=10)
    alone, simulated = (split_dataset(make_dataset(train=30, test=20), shared, 0, clients=own) for own in (False, True))
    assert np.array_equal(alone.pretraining, simulated.pretraining)
    assert np.array_equal(alone.proxy, simulated.proxy)


def test_one_sample_leaves_nothing_for_clients(make_dataset):
    with pytest.raises(DataError, match=r"tiny: 1 \+ 5 samples leave none for clients beside the server's 1 \+ 1"):
        split_dataset(make_dataset(train=1, test=5), Sizes(), 0)


class TestValidation:
    """Choices are made on samples that no table is scored on."""

    def test_it_never_touches_the_test_half(self, make_dataset):
        data = make_dataset(train=200, test=100)
        assert {split_dataset(data, Sizes(), 0, validation=True).half(name) for name in SPLITS} == {"train"}

    @given(st.integers(0, 10**6), st.integers(0, 10**6))
    @settings(max_examples=30)
    def test_its_samples_are_the_same_for_every_seed_and_trained_on_by_none(self, make_dataset, seed, other):
        data, sizes = make_dataset(train=200, test=100), Sizes(pretraining=40, proxy=20)
        one, two = (split_dataset(data, sizes, own, validation=True) for own in (seed, other))
        held = sorted([*one.proxy, *one.test])
        assert held == sorted([*two.proxy, *two.test])
        assert len(held) == 50  # a quarter of the train half: the test half has more
        assert not set(held) & {*one.pretraining, *one.train, *two.pretraining, *two.train}
        assert len(one.pretraining) + len(one.train) == 150

    def test_it_is_no_larger_than_the_test_half(self, make_dataset):
        split = split_dataset(make_dataset(train=200, test=30), Sizes(pretraining=40, proxy=10), 0, validation=True)
        assert (len(split.proxy), len(split.test)) == (10, 20)


class TestGroups:
    """Samples that belong together, such as windows of one series, stay together."""

    @given(st.lists(st.integers(0, 12), min_size=30, max_size=80), st.integers(1, 20), st.integers(0, 99))
    @settings(max_examples=40)
    def test_no_group_is_in_two_sets(self, make_dataset, groups, wanted, seed):
        numbers = torch.tensor([*groups, *range(20, 25)])
        data = make_dataset(train=len(numbers), test=len(numbers))
        data = replace(data, train_groups=numbers, test_groups=numbers)
        for validation in (False, True):
            split = split_dataset(data, Sizes(pretraining=wanted, proxy=wanted), seed, validation=validation)
            parts = [set(numbers[split.part(name)].tolist()) for name in SPLITS]
            assert not parts[0] & parts[1]
            assert not parts[2] & parts[3]
            assert not validation or not (parts[0] | parts[1]) & (parts[2] | parts[3])
            assert sum(len(split.part(name)) for name in SPLITS) == len(numbers) * (1 if validation else 2)
            assert len(split.pretraining) >= min(wanted, 5)

    def test_a_set_grows_to_whole_groups(self, make_dataset):
        numbers = torch.arange(100) // 10
        data = replace(make_dataset(train=100, test=100), train_groups=numbers, test_groups=numbers)
        split = split_dataset(data, Sizes(pretraining=25, proxy=1), 0)
        assert (len(split.pretraining), len(split.proxy)) == (30, 10)
