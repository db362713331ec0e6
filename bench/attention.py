"""Attention of one decoding row over paged keys and values, beside MLX's over dense ones.

As a program it is one side of a pair: `attention.py CONTEXT SLICE_S` prints the seconds of a call for every
line on its standard input. POMONA_CPU_THREADS says with how many threads.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import common  # noqa: F401  (the BLAS before mlx)
import mlx.core as mx
import numpy as np

from pairs import Pairs, Timed, alternate, timed
from pomona import _ops

BLOCK_SIZE = 64
# Histories used by turns, one a layer: together beyond the last cache, or as many as a small model has.
COLD_BYTES = 96 << 20
MAX_LAYERS = 30
STOP_S = 30


@dataclass(frozen=True)
class Heads:
    """Query heads over key-value heads, and their width."""

    queries: int
    keys: int
    dim: int

    def __str__(self) -> str:
        return f"{self.queries}/{self.keys} x {self.dim}"

    def kv_bytes(self, context: int) -> int:
        """Keys and values of one layer in float32."""
        return 2 * 4 * self.keys * self.dim * context


SMOLLM2 = Heads(9, 3, 64)
LARGER = Heads(32, 8, 128)


@dataclass(frozen=True)
class Attention:
    heads: str
    context: int
    pairs: Pairs
    difference: float
    """Largest, between the two results."""
    kv_bytes: int


class Layer:
    """One layer's history, in scattered blocks and dense."""

    def __init__(self, heads: Heads, context: int, seed: int) -> None:
        blocks = -(-context // BLOCK_SIZE)
        self._scale = heads.dim**-0.5
        self._slab = _ops.Slab(blocks, BLOCK_SIZE, heads.keys, heads.dim, heads.keys, heads.dim, mx.float32)
        order = np.random.default_rng(seed).permutation(blocks).astype(np.int32)
        draw = [mx.random.key(3 * seed + i) for i in range(3)]
        history = [mx.random.normal((1, heads.keys, context, heads.dim), key=key) for key in draw[:2]]
        filling = _table(order, 0, context)
        self.keys, self.values = (
            _ops.update_and_gather(part, self._slab, values, filling)
            for part, values in zip(history, (False, True), strict=True)
        )
        self._query = mx.random.normal((1, heads.queries, 1, heads.dim), key=draw[2])
        self._newest = [mx.contiguous(part[:, :, -1:]) for part in (self.keys, self.values)]
        mx.eval(self.keys, self.values, self._query, self._newest)
        self._last = _table(order, context - 1, context)

    def paged(self) -> mx.array:
        """The last token writes its K and V, then looks at all."""
        key, value = self._newest
        return _ops.update_and_attend(self._query, key, value, self._slab, self._last, self._scale)

    def dense(self) -> mx.array:
        return mx.fast.scaled_dot_product_attention(self._query, self.keys, self.values, scale=self._scale)


def measure(heads: Heads, context: int, pairs: int, slice_s: float) -> Attention:
    layers = _layers(heads, context)
    difference = float(mx.abs(layers[0].paged() - layers[0].dense()).max().item())
    taken = alternate(
        timed(lambda: mx.eval([layer.paged() for layer in layers]), slice_s),
        timed(lambda: mx.eval([layer.dense() for layer in layers]), slice_s),
        pairs,
    )
    per_layer = Pairs([s / len(layers) for s in taken.a], [s / len(layers) for s in taken.b])
    return Attention(str(heads), context, per_layer, difference, heads.kv_bytes(context))


def threads(context: int, few: int, many: int, pairs: int, slice_s: float) -> Pairs:
    """The same attention with `many` threads and with `few`, each in a process of its own."""
    with _child(context, many, slice_s) as a, _child(context, few, slice_s) as b:
        return alternate(a, b, pairs)


@contextlib.contextmanager
def _child(context: int, count: int, slice_s: float) -> Iterator[Timed]:
    process = subprocess.Popen(
        [sys.executable, __file__, str(context), str(slice_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"POMONA_CPU_THREADS": str(count)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    source, sink = process.stdout, process.stdin

    def ask() -> float:
        sink.write("\n")
        sink.flush()
        return float(source.readline())

    try:
        ask()
        yield ask
    finally:
        sink.close()
        process.wait(STOP_S)
        source.close()


def _layers(heads: Heads, context: int) -> list[Layer]:
    count = max(1, min(MAX_LAYERS, COLD_BYTES // heads.kv_bytes(context)))
    return [Layer(heads, context, seed) for seed in range(count)]


def _table(order: np.ndarray[tuple[int], np.dtype[np.int32]], start: int, end: int) -> _ops.StepTable:
    """Token rows of positions [start, end) of one sequence."""
    positions = np.arange(start, end, dtype=np.int32)
    slots = order[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    return _ops.StepTable(
        BLOCK_SIZE,
        order[None],
        np.zeros(len(positions), np.int32),
        positions + 1,
        slots.astype(np.int32),
        np.empty((0, 2), np.int32),
    )


def main() -> None:
    context, slice_s = int(sys.argv[1]), float(sys.argv[2])
    layers = _layers(SMOLLM2, context)
    attend = timed(lambda: mx.eval([layer.paged() for layer in layers]), slice_s)
    for _ in sys.stdin:
        print(attend() / len(layers), flush=True)


if __name__ == "__main__":
    main()
