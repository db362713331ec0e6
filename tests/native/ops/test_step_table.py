"""StepTable refuses entries that point outside."""

import mlx.core as mx
import numpy as np
import pytest
from tests.native.ops.reference import fill

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


def of_rows(**change):
    good = {
        "block_size": 4,
        "blocks": [np.array(row, np.int32) for row in ([5, 2], [], [0, 3, 1])],
        "starts": [3, 0, 9],
        "counts": [5, 0, 1],
        "copies": np.array([[4, 2]], np.int32),
    } | change
    return _ops.StepTable.of_rows(**good)


def test_a_table_of_rows_is_the_one_spelled_out():
    spelled_out = _ops.StepTable(
        4,
        np.array([[5, 2, -1], [-1, -1, -1], [0, 3, 1]], np.int32),
        np.array([0, 0, 0, 0, 0, 2], np.int32),
        np.array([4, 5, 6, 7, 8, 10], np.int32),
        np.array([23, 8, 9, 10, 11, 5], np.int32),
        np.array([[4, 2]], np.int32),
    )
    q, k, v = (mx.random.normal((6, 2, 1, 8), key=mx.random.key(i)) for i in range(3))
    results = []
    for table in (of_rows(), spelled_out):
        slab = _ops.Slab(6, 4, 2, 8, 2, 8, mx.float32)
        fill(slab, mx.ones((6, 4, 2, 8)), mx.arange(6 * 4 * 2 * 8).reshape(6, 4, 2, 8).astype(mx.float32))
        out = _ops.update_and_attend(q, k, v, slab, table, 0.3)
        results.append((out, slab.keys(), slab.values()))
    for ours, theirs in zip(*results, strict=True):
        assert mx.array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"starts": [3, 0]}, "there are 3 tables but 2 starts and 3 counts"),
        ({"counts": [5, 0, 1, 1]}, "there are 3 tables but 3 starts and 4 counts"),
        ({"starts": [3, 0, -1]}, "row 2 runs 1 tokens from -1"),
        ({"counts": [5, -1, 1]}, "row 1 runs -1 tokens from 0"),
        ({"counts": [6, 0, 1]}, "row 0 ends at token 9, but its table has 2 blocks"),
        ({"blocks": [np.array([-1, 2, 3], np.int32)] * 3}, r"visible\[0\] is 4, but table 0 holds 0 keys"),
    ],
)
def test_rows_that_do_not_fit_their_tables_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        of_rows(**change)
