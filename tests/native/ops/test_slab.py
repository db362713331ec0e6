"""Slab: sizes, growth, addresses."""

import mlx.core as mx
import pytest
from tests.native.ops.reference import fill, random

from pomona import _ops


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_shapes_and_bytes(dtype):
    slab = _ops.Slab(3, 16, 2, 8, 4, 5, dtype)
    assert (slab.blocks, slab.block_size) == (3, 16)
    assert slab.nbytes == 3 * 16 * (2 * 8 + 4 * 5) * dtype.size
    assert slab.keys().shape == (3, 16, 2, 8)
    assert slab.values().shape == (3, 16, 4, 5)
    assert slab.keys().dtype == dtype


def test_buffers_begin_on_a_cache_line():
    assert [a % 64 for a in _ops.Slab(3, 16, 2, 8, 4, 5, mx.float16).address()] == [0, 0]


def test_growth_keeps_the_contents():
    slab = _ops.Slab(2, 16, 2, 8, 2, 8, mx.float32)
    keys, values = random((2, 16, 2, 8), mx.float32, 0), random((2, 16, 2, 8), mx.float32, 1)
    fill(slab, keys, values)
    slab.grow(5)
    assert slab.blocks == 5
    assert mx.array_equal(slab.keys()[:2], keys)
    assert mx.array_equal(slab.values()[:2], values)
    address = slab.address()
    slab.grow(5)
    assert slab.address() == address


def test_what_it_returns_is_a_copy():
    slab = _ops.Slab(1, 16, 1, 8, 1, 8, mx.float32)
    fill(slab, mx.zeros((1, 16, 1, 8)), mx.zeros((1, 16, 1, 8)))
    before = slab.keys()
    fill(slab, mx.ones((1, 16, 1, 8)), mx.ones((1, 16, 1, 8)))
    assert not before.any()
    assert slab.keys().all()


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0, 16, 2, 8"):
        _ops.Slab(0, 16, 2, 8, 2, 8, mx.float32)
    with pytest.raises(ValueError, match="dtype must be float32, bfloat16 or float16, got int8"):
        _ops.Slab(1, 16, 2, 8, 2, 8, mx.int8)
    with pytest.raises(ValueError, match="cannot grow from 4 to 3 blocks"):
        _ops.Slab(4, 16, 2, 8, 2, 8, mx.float32).grow(3)
