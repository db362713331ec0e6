"""StepTable refuses entries that point outside."""

import numpy as np
import pytest

from pomona import _ops


def arguments(**change):
    good = {
        "tables": [[4, 2, -1], [0, -1, -1]],
        "sequence": [0, 0, 1],
        "visible": [31, 32, 1],
        "slots": [46, 47, 0],
        "copies": [[1, 2]],
    } | change
    return {name: np.array(value, np.int32) for name, value in good.items()}


def test_a_good_table():
    _ops.StepTable(16, **arguments())
    _ops.StepTable(16, **arguments() | {"copies": np.zeros((0, 2), np.int32)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tables": [[4, -2, -1], [0, -1, -1]]}, r"tables\[0\]\[1\] is -2, neither a block nor -1"),
        ({"sequence": [0, 0, 2]}, r"sequence\[2\] is 2, but there are 2 tables"),
        ({"sequence": [-1, 0, 1]}, r"sequence\[0\] is -1"),
        ({"visible": [31, 33, 1]}, r"visible\[1\] is 33, but table 0 holds 32 keys"),
        ({"visible": [31, 32, -1]}, r"visible\[2\] is -1"),
        ({"tables": [[4, -1, 2], [0, -1, -1]]}, r"visible\[0\] is 31, but table 0 holds 16 keys"),
        ({"slots": [46, -1, 0]}, r"slots\[1\] is negative: -1"),
        ({"copies": [[1, 2], [-1, 0]]}, r"copies\[1\] has a negative block: -1"),
        ({"slots": [46, 47]}, "one entry per token row, got 3, 3 and 2"),
    ],
)
def test_what_points_outside_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        _ops.StepTable(16, **arguments(**change))


def test_a_block_holds_at_least_one_token():
    with pytest.raises(ValueError, match="block_size must be at least 1, got 0"):
        _ops.StepTable(0, **arguments())
