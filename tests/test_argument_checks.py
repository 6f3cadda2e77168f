import pytest

from cdfl.argument_checks import check_method, check_number


def test_check_number():
    check_number("seed", 10**400, 0, whole=True)
    check_number("seconds", float("inf"), 0)
    with pytest.raises(ValueError, match="tolerance is inf; expected a finite number, 0 or more"):
        check_number("tolerance", float("inf"), 0, finite=True)


def test_check_method():
    check_method("clock", "a word", "split", 2, "an object with split(a, b)")
    with pytest.raises(ValueError, match=r"clock is 3; expected an object with tick"):
        check_method("clock", 3, "tick", 0, "an object with tick()")
