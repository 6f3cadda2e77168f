import dataclasses
import json

import pytest

from cdfl.core import EstimateSettings, RateSettings, Settings
from cdfl.core.settings import LEAVES

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("loss_weight", 1.5, "from 0 to 1"),
        ("loss_weight", -0.1, "from 0 to 1"),
        ("loss_weight", NAN, "from 0 to 1"),
        ("loss_weight", "half", "from 0 to 1"),
        ("gap_weight", True, "from 0 to 1"),
        ("gap_weight", None, "from 0 to 1"),
        ("sharpness", (), "one or more numbers above 0"),
        ("sharpness", (7.0, 0.0), "one or more numbers above 0"),
        ("sharpness", (-1,), "one or more numbers above 0"),
        ("sharpness", (INF,), "one or more numbers above 0"),
        ("sharpness", "7", "one or more numbers above 0"),
        ("main_share", 1, "a number from 0 to below 1"),
        ("main_share", None, "a number from 0 to below 1"),
        ("loss_bar", "max", "a number or 'min'"),
        ("gap_bar", NAN, "a number or 'min'"),
        ("distance_bar", None, "a number or 'min'"),
        ("base_rate", 1.01, "from 0 to 1"),
        ("rate_floor", "ave", "'mean'"),
        ("rate_floor", 2, "'mean'"),
        ("staleness_slope", -1, "0 or more"),
        ("staleness_grace", -1, "0 or more"),
        ("staleness_grace", INF, "0 or more"),
        ("max_staleness", -1, "whole number"),
        ("max_staleness", 2.5, "whole number"),
        ("staleness_hinge", "linear", "'paper', 'continuous'"),
        ("cluster_epochs_set", "never", "'before', 'after'"),
        ("reply_clusters", "some", "'all', 'moved'"),
        ("proximal_strength", -0.1, "0 or more"),
        ("optimizer", "rmsprop", "'adam', 'sgd'"),
        ("learning_rate", 0, "above 0"),
        ("learning_rate", INF, "above 0"),
        ("weight_decay", -1e-4, "0 or more"),
        ("batch_size", 0, "1 or more"),
        ("batch_size", 12.0, "1 or more"),
        ("local_epochs", 0, "1 or more"),
        ("shared_epochs", -1, "0 or more"),
        ("separate_epochs", "2", "0 or more"),
        ("measures", "raw", "'plain', 'relative'"),
        ("cluster_step", "up", "'towards', 'along'"),
        ("momentum", True, "a number from 0 to below 1"),
        ("guard", 1, "True or False"),
        ("guard", None, "True or False"),
        ("guard", "yes", "True or False"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_and_what_was_expected(name, value, expected):
    with pytest.raises(ValueError, match=name) as caught:
        Settings(**{name: value})
    assert str(caught.value).startswith(f"{name} is {value!r}; expected ")
    assert expected in str(caught.value)


def test_the_distances_get_the_rest_of_the_weights():
    assert EstimateSettings(loss_weight=0.5, gap_weight=0.2).distance_weight == pytest.approx(0.3)
    assert EstimateSettings(loss_weight=0.9, gap_weight=0.1).distance_weight == 0.0  # 1 - .9 - .1 is -2.8e-17 in floats
    with pytest.raises(ValueError, match=r"loss_weight \+ gap_weight is 1.25; expected at most 1"):
        EstimateSettings(loss_weight=0.75, gap_weight=0.5)


def test_momentum_needs_sgd():
    assert Settings(optimizer="sgd", momentum=0.9).training.momentum == 0.9
    with pytest.raises(ValueError, match=r"momentum is 0.9; expected 0 unless optimizer is 'sgd'"):
        Settings(optimizer="adam", momentum=0.9)
    with pytest.raises(ValueError, match=r"momentum is 1.0; expected a number from 0 to below 1"):
        Settings(optimizer="sgd", momentum=1.0)


def test_sharpness_may_be_a_number_or_a_list():
    assert EstimateSettings(sharpness=3).sharpness == (3.0,)
    assert EstimateSettings(sharpness=[10, 10]).sharpness == (10, 10)
    assert EstimateSettings(sharpness=[10, 10]).softmax_factors(4) == (10, 10)
    assert EstimateSettings(sharpness=None).sharpness is None


def test_the_ends_of_every_range_are_allowed():
    Settings(loss_weight=0, gap_weight=1, base_rate=0, rate_floor=1, staleness_grace=0, max_staleness=0)
    Settings(loss_bar=-3.5, base_rate=1, rate_floor=0, proximal_strength=0, weight_decay=0, shared_epochs=0)


def test_replace_returns_new_settings_and_checks_them():
    old = Settings(local_epochs=2)
    new = old.replace(base_rate=0.1, guard=True)
    assert (old.rates.base_rate, new.rates.base_rate) == (0.15, 0.1)
    assert (old.guard, new.guard) == (False, True)
    assert new == Settings(base_rate=0.1, local_epochs=2, guard=True)
    assert new.replace(guard=False, base_rate=0.15) == old
    with pytest.raises(ValueError, match="base_rate is 7; expected"):
        old.replace(base_rate=7)
    with pytest.raises(ValueError, match=r"there is no setting 'base_rat'; there are loss_weight, .*, guard"):
        old.replace(base_rat=0.1)


def test_values_that_depend_on_each_other_are_checked_together():
    """Each alone would be refused beside the default of the other."""
    settings = Settings().replace(loss_weight=0.9, gap_weight=0.1, optimizer="sgd", momentum=0.9)
    assert settings.estimate.distance_weight == 0.0
    assert settings.training.momentum == 0.9
    with pytest.raises(ValueError, match=r"momentum is 0\.9; expected 0 unless"):
        settings.replace(optimizer="adam")


def test_a_group_can_be_passed_whole_and_changed_at_once():
    rates = RateSettings(base_rate=0.1, rate_floor="mean")
    assert Settings(rates=rates).rates is rates
    changed = Settings(rates=rates, base_rate=0.2)
    assert (changed.rates.base_rate, changed.rates.rate_floor) == (0.2, "mean")


def test_names_are_unique_and_leaves_gives_every_value():
    assert len(LEAVES) == len(set(LEAVES))
    values = Settings(base_rate=0.1, guard=True).leaves()
    assert list(values) == LEAVES
    assert (values["base_rate"], values["guard"], values["batch_size"]) == (0.1, True, 128)
    assert Settings(**values) == Settings(base_rate=0.1, guard=True)


def test_settings_survive_json():
    settings = Settings(sharpness=(10, 10), loss_bar=8, max_staleness=3, optimizer="sgd", momentum=0.9, guard=True)
    written = json.loads(json.dumps(settings.to_dict()))
    assert written["rates"]["max_staleness"] == 3
    assert Settings.from_dict(written) == settings
    assert hash(Settings.from_dict(written)) == hash(settings)


def test_settings_are_frozen():
    for thing, name in ((Settings(), "rates"), (Settings(), "guard"), (Settings().rates, "base_rate")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, name, 0.5)
