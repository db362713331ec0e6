"""The slab is written in place, also while an earlier step is still in flight."""

import mlx.core as mx
import numpy as np
from tests.native.ops.reference import random, step_of

from pomona import _ops

BLOCKS, BLOCK_SIZE, Q_HEADS, HEADS, DIM = 512, 64, 4, 2, 64  # 16 MiB of K and as much of V
STEPS, ROWS = 30, 4


def decode(pipelined: bool) -> tuple[np.ndarray, bool, int]:
    """Each step's q, k and v come from the step before. Returns the last result, whether the
    buffers stayed where they were, and by how much the peak of memory grew."""
    slabs = [_ops.Slab(BLOCKS, BLOCK_SIZE, HEADS, DIM, HEADS, DIM, mx.float32) for _ in range(2)]
    assert slabs[0].nbytes >= 32 << 20
    addresses = [slab.address() for slab in slabs]
    tables = np.arange(ROWS * 3, dtype=np.int32).reshape(ROWS, 3) * 7 % BLOCKS
    weights = [random((DIM, DIM), mx.float32, i) * DIM**-0.5 for i in range(3)]
    x = random((ROWS, Q_HEADS, 1, DIM), mx.float32, 9)
    mx.eval(x, *weights)
    mx.synchronize()
    mx.reset_peak_memory()
    start = mx.get_active_memory()

    previous = x
    for position in range(STEPS):
        table = step_of(BLOCK_SIZE, tables, [(s, position) for s in range(ROWS)]).native()
        for slab in slabs:
            q, k, v = (x @ weights[0], x[:, :HEADS] @ weights[1], x[:, :HEADS] @ weights[2])
            x = x + _ops.update_and_attend(q, k, v, slab, table, DIM**-0.5)
        if pipelined:
            mx.async_eval(x)
            mx.eval(previous)
            previous = x
        else:
            mx.eval(x)
    mx.eval(x)
    mx.synchronize()
    stayed = addresses == [slab.address() for slab in slabs]
    return np.array(x), stayed, mx.get_peak_memory() - start


def test_one_step_ahead_copies_nothing_and_changes_nothing():
    expected, stayed, growth = decode(pipelined=False)
    assert stayed
    assert growth < 2 << 20
    ahead, stayed, growth = decode(pipelined=True)
    assert stayed
    assert growth < 2 << 20
    assert np.array_equal(ahead, expected)


def test_many_steps_in_one_graph():
    """Nothing is evaluated until the end: each call still sees what the calls before it wrote."""
    tables = np.array([[3, 1]], np.int32)
    keys = random((1, HEADS, 80, DIM), mx.float32, 1)
    results = []
    for lazy in (False, True):
        slab = _ops.Slab(4, BLOCK_SIZE, HEADS, DIM, HEADS, DIM, mx.float32)
        x = random((1, HEADS, 1, DIM), mx.float32, 2)
        for p in range(80):
            table = step_of(BLOCK_SIZE, tables, [(0, p)]).native()
            k = keys[:, :, p : p + 1]
            x = _ops.update_and_attend(x, k, k, slab, table, 1.0)
            if not lazy:
                mx.eval(x)
        results.append(np.array(x))
    assert np.array_equal(*results)


def test_a_call_outlives_its_slab_and_table():
    slab = _ops.Slab(1, 16, 1, 8, 1, 8, mx.float32)
    table = step_of(16, np.zeros((1, 1), np.int32), [(0, 0)]).native()
    v = random((1, 1, 1, 8), mx.float32, 3)
    out = _ops.update_and_attend(v, v, v, slab, table, 1.0)
    del slab, table
    assert mx.array_equal(out, v)
