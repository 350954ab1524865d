"""What is known is found; the error for what isn't names it and what there is."""

import pytest

from whitenorm.lab.lookup import check_options, choose, look_up


def test_a_row_is_found_by_its_name():
    table = {"bn": 1, "dbn": 2}
    assert look_up(table, "method", "dbn") == 2
    with pytest.raises(ValueError, match="unknown method 'gn'; there are bn, dbn"):
        look_up(table, "method", "gn")


def test_options_that_a_row_does_not_have_are_named():
    check_options("model", "mlp", {"hidden": [3]}, ["hidden", "activation"])
    with pytest.raises(ValueError, match="'mlp' has no option 'depth', 'width'; it has hidden"):
        check_options("model", "mlp", {"width": 1, "depth": 2, "hidden": [3]}, ["hidden"])
    with pytest.raises(ValueError, match="method 'plain' has no option 'eps'; it has none"):
        check_options("method", "plain", {"eps": 1}, [])


def test_a_value_must_be_one_of_the_choices():
    assert choose("depth", 34, {18: "a", 34: "b"}) == 34
    assert choose("augment", None, [None, "flip"]) is None
    with pytest.raises(ValueError, match="augment must be one of None, 'flip', got 'cutout'"):
        choose("augment", "cutout", [None, "flip"])
