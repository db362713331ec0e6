"""Whole layers against mlx-lm's blocks, and the promise of equal bits."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache
from tests.native.ops import modules
from tests.native.ops.reference import random, shuffled_tables, step_of

from pomona import _ops

# Of values near 1, against mlx-lm in float32: the native layer rounds K, V and its output only.
TOLERANCE = {mx.float32: 2e-5, mx.bfloat16: 3e-2, mx.float16: 4e-3}
DTYPES = list(TOLERANCE)
FORMATS = {
    "dense": None,
    "q4": (32, 4, "affine"),
    "q8": (64, 8, "affine"),
    "mxfp4": (32, 4, "mxfp4"),
}
BLOCK = 16


class Layer:
    """A block of mlx-lm beside the native layer made of its weights, over its own slab."""

    def __init__(self, name: str, dtype: mx.Dtype, quantized: tuple[int, int, str] | None = None, lengths=(80,)):
        build, convert, self.window = modules.BLOCKS[name]
        self.dtype = dtype
        self.block = modules.randomise(build(), dtype)
        if quantized is not None:
            modules.quantize(self.block, *quantized)
        self.native = convert(self.block)
        self.hidden = self.block.input_layernorm.weight.shape[0]
        self.tables, blocks = shuffled_tables(list(lengths), BLOCK, seed=1)
        attention = self.block.self_attn
        heads, dim = modules.kv_shape(attention)
        self.slab = _ops.Slab(blocks, BLOCK, heads, dim, heads, dim, dtype)

    def run(self, x: mx.array, rows: list[tuple[int, int]]) -> mx.array:
        """Token rows (sequence, position) of x [T, hidden], packed as one call."""
        table = step_of(BLOCK, self.tables, rows).native()
        out = _ops.decoder_layer(x[None], self.native, self.slab, table, self.window)
        mx.eval(out)
        return out[0]

    def in_chunks(self, x: mx.array, sizes: list[int]) -> mx.array:
        outputs = []
        start = 0
        for size in sizes:
            rows = [(0, p) for p in range(start, start + size)]
            outputs.append(self.run(x[start : start + size], rows))
            start += size
        return mx.concatenate(outputs)

    def expected(self, x: mx.array, sizes: list[int]) -> mx.array:
        """mlx-lm in float32, on the same values."""
        self.block.set_dtype(mx.float32)
        x = x.astype(mx.float32)
        cache: Any = KVCache()
        outputs = []
        start = 0
        for size in sizes:
            part = x[None, start : start + size]
            mask = create_attention_mask(part, cache, window_size=self.window or None)
            outputs.append(self.block(part, mask, cache))
            start += size
        return mx.concatenate(outputs, axis=1)[0]


def difference(a: mx.array, b: mx.array) -> float:
    assert a.shape == b.shape
    a, b = a.astype(mx.float32), b.astype(mx.float32)
    return (mx.abs(a - b) / mx.maximum(1, mx.abs(b))).max().item()


def equal(a: mx.array, b: mx.array) -> bool:
    return bool(mx.array_equal(a, b).item())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", modules.BLOCKS)
def test_against_mlx_lm(name, dtype):
    """A prompt in two chunks, then some tokens one by one."""
    sizes = [30, 25, *[1] * 6]
    layer = Layer(name, dtype)
    x = random((sum(sizes), layer.hidden), dtype, 3)
    out = layer.in_chunks(x, sizes)
    assert out.dtype == dtype
    assert difference(out, layer.expected(x, sizes)) < TOLERANCE[dtype]
