"""Attention over more keys than one split: equal bits however it is cut, against float64 sums."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.native.ops.reference import Step, fill, random, shuffled_tables, step_of

from pomona import _ops

SPLIT = 256  # csrc/kernels/cpu/attend_tile.h
LENGTH = 4 * SPLIT + 70
BOUNDARIES = [n + d for n in (SPLIT, 2 * SPLIT, 4 * SPLIT) for d in (-1, 0, 1, 2)]
WINDOWS = [0, 1, 40, SPLIT - 1, SPLIT, SPLIT + 1, 2 * SPLIT + 13]
ROOT = Path(__file__).parents[3]


class History:
    """Tokens of one or more sequences of LENGTH in a slab, and queries for all of them."""

    def __init__(
        self, heads=(4, 2), dims=(32, 32), dtype=mx.float32, block_size=16, sequences=1, scale_q=1.0
    ) -> None:
        self.heads, self.dims, self.block_size = heads, dims, block_size
        self.tables, blocks = shuffled_tables([LENGTH] * sequences, block_size, 5)
        self.slab = _ops.Slab(blocks, block_size, heads[1], dims[0], heads[1], dims[1], dtype)
        self.q, self.k, self.v = (
            random((sequences * LENGTH, h, d), dtype, seed)
            for h, d, seed in ((heads[0], dims[0], 1), (heads[1], dims[0], 2), (heads[1], dims[1], 3))
        )
        self.q = (self.q.astype(mx.float32) * scale_q).astype(dtype)
        everything = [(s, p) for s in range(sequences) for p in range(LENGTH)]
        slots = step_of(block_size, self.tables, everything).slots
        shape = (blocks * block_size, heads[1], -1)
        keys, values = (np.zeros((shape[0], heads[1], d), np.float32) for d in dims)
        keys[slots], values[slots] = (np.array(x.astype(mx.float32)) for x in (self.k, self.v))
        fill(
            self.slab,
            *(mx.array(x).reshape(blocks, block_size, heads[1], -1).astype(dtype) for x in (keys, values)),
        )

    def attend(self, rows: list[tuple[int, int]], window=0, sinks=None, step: Step | None = None):
        """Outputs [rows, heads, dim] as float32."""
        index = mx.array([s * LENGTH + p for s, p in rows])
        q, k, v = (x[index][:, None].swapaxes(1, 2) for x in (self.q, self.k, self.v))
        table = (step or step_of(self.block_size, self.tables, rows)).native()
        out = _ops.update_and_attend(q, k, v, self.slab, table, self.dims[0] ** -0.5, window, sinks)
        return np.array(out.astype(mx.float32))[:, :, 0]

    def exact(self, row: tuple[int, int], window=0, sinks=None) -> NDArray[np.float64]:
        sequence, position = row
        start = max(0, position + 1 - window) if window else 0
        seen = slice(sequence * LENGTH + start, sequence * LENGTH + position + 1)
        q, k, v = (np.array(x.astype(mx.float32)).astype(np.float64) for x in (self.q, self.k, self.v))
        group = self.heads[0] // self.heads[1]
        keys, values = (np.repeat(x[seen], group, axis=1) for x in (k, v))
        query = q[sequence * LENGTH + position]
        scores = np.einsum("hd,khd->hk", query, keys) * self.dims[0] ** -0.5
        logits = np.full((self.heads[0], 1), -np.inf) if sinks is None else np.array(sinks)[:, None]
        peak = np.maximum(scores.max(axis=1, keepdims=True), logits)
        weights = np.exp(scores - peak)
        total = weights.sum(axis=1, keepdims=True) + np.exp(logits - peak)
        return np.einsum("hk,khd->hd", weights / total, values)


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
def test_rows_at_the_boundaries(window, with_sinks):
    """Alone, side by side and in a chunk: the same bits, and the right ones."""
    history = History()
    sinks = mx.array([3.0, -2.0, 0.5, 9.0]) if with_sinks else None
    chunk = history.attend([(0, p) for p in range(LENGTH)], window, sinks)
    rows = [(0, n - 1) for n in BOUNDARIES]
    together = history.attend(rows, window, sinks)
    for i, row in enumerate(rows):
        alone = history.attend([row], window, sinks)[0]
        assert np.array_equal(alone, chunk[row[1]])
        assert np.array_equal(alone, together[i])
        assert np.abs(alone - history.exact(row, window, sinks)).max() < 3e-6


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize(
    ("heads", "dims"), [((9, 3), (64, 64)), ((8, 1), (40, 24)), ((6, 6), (128, 80)), ((20, 1), (33, 16))]
)
def test_shapes_and_types(heads, dims, dtype):
    history = History(heads, dims, dtype)
    positions = [0, 5, SPLIT - 1, SPLIT, LENGTH - 40, *range(LENGTH - 9, LENGTH)]
    chunk = history.attend([(0, p) for p in range(LENGTH - 40, LENGTH)])
    for position in positions:
        alone = history.attend([(0, position)])[0]
        if position >= LENGTH - 40:
            assert np.array_equal(alone, chunk[position - LENGTH + 40])
        error = np.abs(alone - history.exact((0, position))).max()
        assert error < {mx.float32: 5e-6, mx.bfloat16: 1.6e-2, mx.float16: 2e-3}[dtype]


@pytest.mark.parametrize("window", [0, 300])
def test_block_size_changes_no_bit(window):
    rows = [(0, p) for p in (3, SPLIT, LENGTH - 1)]
    outputs = [History(block_size=n).attend(rows, window) for n in (1, 4, 16, 24, 64, 256)]
    assert all(np.array_equal(out, outputs[0]) for out in outputs)


def test_short_and_long_rows_of_several_sequences():
    history = History(sequences=3)
    rows = [(1, 3), (0, LENGTH - 1), (2, SPLIT), (2, SPLIT + 1), (1, 700), (0, 0)]
    together = history.attend(rows)
    for i, row in enumerate(rows):
        assert np.array_equal(history.attend([row])[0], together[i])


def test_peaks_that_differ_between_splits():
    """Scores of hundreds, so that almost all splits but one vanish in the fold."""
    history = History(scale_q=60.0)
    for position in (SPLIT, LENGTH - 1):
        error = np.abs(history.attend([(0, position)])[0] - history.exact((0, position))).max()
        assert error < 1e-3


def test_windows_of_two_far_rows_of_one_sequence():
    history = History()
    rows = [(0, 300), (0, 301), (0, LENGTH - 1), (0, 20)]
    together = history.attend(rows, window=30)
    for i, row in enumerate(rows):
        assert np.array_equal(history.attend([row], window=30)[0], together[i])


def test_rows_that_see_nothing_beside_long_ones():
    history = History()
    step = step_of(16, history.tables, [(0, LENGTH - 1), (0, 0), (0, SPLIT)])
    step.visible[1] = 0
    step.slots[1] = step.slots[0]
    out = history.attend([(0, LENGTH - 1), (0, LENGTH - 1), (0, SPLIT)], step=step)
    assert not out[1].any()
    assert np.array_equal(out[0], history.attend([(0, LENGTH - 1)])[0])
    assert np.array_equal(out[2], history.attend([(0, SPLIT)])[0])


def digest() -> str:
    """Bits of calls that are cut in every way."""
    import hashlib

    found = hashlib.sha256()
    for dtype in (mx.float32, mx.bfloat16):
        history = History((6, 2), (64, 48), dtype, sequences=2)
        for window in (0, 400):
            for rows in (
                [(0, LENGTH - 1)],
                [(0, LENGTH - 1), (1, 500)],
                [(1, p) for p in range(LENGTH - 5, LENGTH)],
                [(0, p) for p in range(LENGTH)],
            ):
                found.update(history.attend(rows, window).tobytes())
    return found.hexdigest()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2 if sys.platform == "linux" else False, reason="one core")
def test_the_number_of_threads_changes_no_bit():
    code = "from tests.native.ops.test_attention_splits import digest; print(digest())"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=os.environ | {"POMONA_CPU_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    }
    assert len(digests) == 1
