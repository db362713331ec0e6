"""update_and_gather against plain MLX."""

import mlx.core as mx
import numpy as np
import pytest
from tests.native.ops import reference
from tests.native.ops.reference import Step, fill, random, shuffled_tables, step_of

from pomona import _ops

# (heads, dim) of K and of V, which differ.
K, V = (2, 24), (3, 7)


def filled_slab(blocks: int, dtype: mx.Dtype) -> tuple[_ops.Slab, dict[bool, mx.array]]:
    slab = _ops.Slab(blocks, 16, *K, *V, dtype)
    halves = {False: random((blocks, 16, *K), dtype, 1), True: random((blocks, 16, *V), dtype, 2)}
    for values, contents in halves.items():
        slots = np.arange(blocks * 16, dtype=np.int32)
        step = Step(16, np.zeros((1, 1), np.int32), slots * 0, slots * 0, slots)
        x = contents.reshape(1, -1, *contents.shape[2:]).swapaxes(1, 2)
        mx.eval(_ops.update_and_gather(x, slab, values, step.native()))
    return slab, halves


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize(("start", "new"), [(0, 1), (0, 40), (37, 1), (37, 20)])
def test_writes_then_returns_the_history(start, new, values, dtype):
    tables, blocks = shuffled_tables([start + new], 16, 5)
    slab, halves = filled_slab(blocks + 1, dtype)
    step = step_of(16, tables, [(0, p) for p in range(start, start + new)])
    step.copies = np.array([[int(tables[0, 0]), blocks]], np.int32)
    heads, dim = V if values else K
    x = random((1, new, heads, dim), dtype, 9).swapaxes(1, 2)
    out = _ops.update_and_gather(x, slab, values, step.native())
    mx.eval(out)

    after = reference.update(halves[values], x, step)
    expected = reference.history(after, tables[0], start + new).swapaxes(0, 1)[None]
    assert out.dtype == dtype
    assert out.shape == (1, heads, start + new, dim)
    assert mx.array_equal(out.astype(mx.float32), expected)
    # The other half is left alone, its block copies too.
    kept = slab.keys() if values else slab.values()
    assert mx.array_equal(kept, halves[not values])


def test_no_rows():
    slab = _ops.Slab(1, 16, *K, *V, mx.float32)
    nothing = np.zeros(0, np.int32)
    step = Step(16, np.zeros((1, 1), np.int32), nothing, nothing, nothing)
    assert _ops.update_and_gather(mx.zeros((1, 2, 0, 24)), slab, False, step.native()).tolist() == [[[], []]]


@pytest.mark.parametrize(
    ("x", "sequence", "message"),
    [
        (mx.zeros((2, 2, 1, 24)), [0, 0], r"expected \[1, 2, L, 24\]"),
        (mx.zeros((1, 3, 2, 24)), [0, 0], r"expected \[1, 2, L, 24\]"),
        (mx.zeros((1, 2, 3, 24)), [0, 0], "x has 3 token rows, the table has 2"),
        (mx.zeros((1, 2, 2, 24), mx.float16), [0, 0], "x is float16, the slab is float32"),
        (mx.zeros((1, 2, 2, 24)), [0, 1], "more than one sequence"),
    ],
)
def test_what_does_not_fit_is_refused(x, sequence, message):
    slab = _ops.Slab(2, 16, *K, *V, mx.float32)
    tables = np.array([[0], [1]], np.int32)
    step = step_of(16, tables, [(s, 3 + i) for i, s in enumerate(sequence)])
    with pytest.raises(ValueError, match=message):
        _ops.update_and_gather(x, slab, False, step.native())


def test_a_slab_filled_by_attention_is_gathered():
    slab = _ops.Slab(2, 16, 2, 8, 2, 8, mx.float32)
    keys, values = random((2, 16, 2, 8), mx.float32, 0), random((2, 16, 2, 8), mx.float32, 1)
    fill(slab, keys, values)
    step = step_of(16, np.array([[1, 0]], np.int32), [(0, 31)])
    last = values[0, 15][None, :, None]
    out = _ops.update_and_gather(last, slab, True, step.native())
    expected = mx.concatenate([values[1], values[0]]).swapaxes(0, 1)[None]
    assert mx.array_equal(out, expected)
