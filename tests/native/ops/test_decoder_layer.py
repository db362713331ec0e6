"""Whole layers against mlx-lm's blocks, and the promise of equal bits."""

from __future__ import annotations

import os
import subprocess
import sys
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
    "q8": (32, 8, "affine"),
    "mxfp4": (32, 4, "mxfp4"),
}
BLOCK = 16


class Layer:
    """A block of mlx-lm beside the native layer made of its weights, over its own slab."""

    def __init__(self, name, dtype, quantized=None, lengths=(80,)) -> None:
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
        # A rounding of K or V could make a router choose another expert.
        kept = mx.float32 if "experts" in self.block.mlp else dtype
        self.slab = _ops.Slab(blocks, BLOCK, heads, dim, heads, dim, kept)

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


@pytest.mark.parametrize("quantized", FORMATS.values(), ids=FORMATS)
def test_formats(quantized):
    sizes = [40, 1, 1]
    layer = Layer("qwen3", mx.float32, quantized)
    x = random((sum(sizes), layer.hidden), mx.float32, 3)
    assert difference(layer.in_chunks(x, sizes), layer.expected(x, sizes)) < 2e-5


@pytest.mark.parametrize("name", ["llama", "gemma3-window", "gpt_oss"])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_chunks_change_no_bit(name, dtype):
    length = 300  # more than a block of rows
    layer = Layer(name, dtype, (32, 4, "affine"), lengths=(length,))
    x = random((length, layer.hidden), dtype, 4)
    whole = layer.in_chunks(x, [length])
    for size in (1, 7, 64):
        chunks = [size] * (length // size) + [length % size] * (length % size > 0)
        assert equal(layer.in_chunks(x, chunks), whole), size


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_neighbours_change_no_bit(name):
    """Sequences alone, and their rows packed with those of others."""
    lengths = [50, 3, 20, 9]
    layer = Layer(name, mx.float32, (32, 4, "affine"), lengths)
    xs = [random((n, layer.hidden), mx.float32, 10 + s) for s, n in enumerate(lengths)]
    alone = [layer.run(x, [(s, p) for p in range(len(x))]) for s, x in enumerate(xs)]
    rows = [(s, p) for s, n in enumerate(lengths) for p in range(n)]
    order = np.random.default_rng(5).permutation(len(rows))
    # Positions of one sequence stay in order; sequences are mixed at random.
    mixed = sorted((rows[i] for i in order), key=lambda row: row[1] // 4)
    start = 0
    for size in [*range(1, 13), 4]:
        part = mixed[start : start + size]
        out = layer.run(mx.stack([xs[s][p] for s, p in part]), part)
        for (s, p), row in zip(part, out, strict=True):
            assert equal(row, alone[s][p]), (size, s, p)
        start += size
    assert start == len(rows)


# A wide enough layer for every phase of it to be shared out, as a digest.
WIDE = """
import hashlib
import mlx.core as mx
import numpy as np
from tests.native.ops import modules
from tests.native.ops.reference import random, shuffled_tables, step_of
from pomona import _ops

tables, blocks = shuffled_tables([100], 16, 1)
digest = hashlib.sha256()
for build, convert in ((lambda: modules.llama_block(512), modules.pre_norm_layer),
                       (modules.gpt_oss_block, modules.gpt_oss_layer)):
    block = modules.quantize(modules.randomise(build(), mx.float32))
    slab = _ops.Slab(blocks, 16, 2, 32, 2, 32, mx.float32)
    layer = convert(block)
    x = random((1, 100, block.input_layernorm.weight.shape[0]), mx.float32, 3)
    for first, end in ((0, 70), (70, 99), (99, 100)):
        table = step_of(16, tables, [(0, p) for p in range(first, end)]).native()
        digest.update(np.array(_ops.decoder_layer(x[:, first:end], layer, slab, table)).tobytes())
print(digest.hexdigest())
"""


def test_threads_change_no_bit():
    digests = [
        subprocess.run(
            [sys.executable, "-c", WIDE],
            env=os.environ | {"POMONA_CPU_THREADS": threads, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "")  # one, and as many as there are cores
    ]
    assert digests[0] == digests[1]
    assert digests[0].strip()


def test_copies_come_first():
    layer = Layer("llama", mx.float32, lengths=(20, 20))
    x = random((20, layer.hidden), mx.float32, 6)
    whole = layer.run(x, [(0, p) for p in range(20)])
    source, target = layer.tables[0, 0], layer.tables[1, 0]
    step = step_of(BLOCK, layer.tables, [(1, p) for p in range(16, 20)])
    step.copies = np.array([[source, target]], np.int32)
    out = _ops.decoder_layer(x[None, 16:], layer.native, layer.slab, step.native())
    assert equal(out[0], whole[16:])


def test_residual_scale():
    layer = Layer("llama", mx.float32)
    block = layer.block
    scaled = _ops.DecoderLayer(
        modules.attention(block.self_attn),
        modules.mlp(block.mlp),
        None,
        None,
        residual_scale=0.25,
    )
    x = random((1, 9, layer.hidden), mx.float32, 7)
    table = step_of(BLOCK, layer.tables, [(0, p) for p in range(9)]).native()
    h = x + 0.25 * block.self_attn(x, "causal")
    expected = h + 0.25 * block.mlp(h)
    assert difference(_ops.decoder_layer(x, scaled, layer.slab, table), expected) < 2e-5


def test_attention_block():
    layer = Layer("qwen3", mx.float32)
    x = random((1, 33, layer.hidden), mx.float32, 8)
    table = step_of(BLOCK, layer.tables, [(0, p) for p in range(33)]).native()
    out = _ops.attention_block(x, modules.attention(layer.block.self_attn), layer.slab, table)
    assert difference(out, layer.block.self_attn(x, "causal")) < 2e-5


def test_strided_input_and_batches():
    """Two sequences as [2, L, hidden], taken from a wider array."""
    layer = Layer("llama", mx.float32, lengths=(12, 12))
    wide = random((2, 12, 2 * layer.hidden), mx.float32, 9)
    x = wide[:, :, ::2]
    table = step_of(BLOCK, layer.tables, [(s, p) for s in range(2) for p in range(12)]).native()
    out = _ops.decoder_layer(x, layer.native, layer.slab, table)
    for s in range(2):
        assert equal(out[s], layer.run(x[s], [(s, p) for p in range(12)]))


def test_no_rows():
    """Blocks are copied all the same."""
    layer = Layer("llama", mx.float32, lengths=(20, 20))
    layer.run(random((20, layer.hidden), mx.float32, 6), [(0, p) for p in range(20)])
    source, target = layer.tables[0, 0], layer.tables[1, 0]
    step = step_of(BLOCK, layer.tables, [])
    step.copies = np.array([[source, target]], np.int32)
    out = _ops.decoder_layer(mx.zeros((1, 0, layer.hidden)), layer.native, layer.slab, step.native())
    mx.eval(out)
    assert out.shape == (1, 0, layer.hidden)
    for half in (layer.slab.keys(), layer.slab.values()):
        assert mx.array_equal(half[int(target)], half[int(source)])


def refused(match: str) -> Any:
    return pytest.raises(ValueError, match=match)


def test_calls_that_do_not_fit():
    layer = Layer("llama", mx.float32)
    table = step_of(BLOCK, layer.tables, [(0, 0), (0, 1)]).native()
    x = mx.zeros((1, 2, layer.hidden))

    def call(x=x, slab=layer.slab, window=0):
        return _ops.decoder_layer(x, layer.native, slab, table, window)

    with refused(r"decoder_layer: x has shape \(1,2,95\), expected \[B, L, 96\]"):
        call(x[..., 1:])
    with refused("x has 1 token rows, the table has 2"):
        call(x[:, 1:])
    with refused("x must be float32, bfloat16 or float16"):
        call(x.astype(mx.int32))
    with refused("window must not be negative"):
        call(window=-1)
    with refused("the slab has K of 1 heads of width 32, the block 2 of 32"):
        call(slab=_ops.Slab(8, BLOCK, 1, 32, 1, 32, mx.float32))
    with refused("the table's blocks hold 16 tokens, the slab's 8"):
        call(slab=_ops.Slab(8, 8, 2, 32, 2, 32, mx.float32))


def test_parts_that_do_not_fit():
    def w(rows: int, depth: int, **more: Any) -> _ops.Weights:
        return _ops.Weights(mx.zeros((rows, depth)), **more)

    fitting = {"q": w(64, 48), "k": w(32, 48), "v": w(32, 48), "o": w(48, 64), "heads": 4, "kv_heads": 2}

    def attention(**changed: Any) -> _ops.Attention:
        return _ops.Attention(**fitting | changed, scale=1.0)

    good = attention()
    with refused("4 heads are not a multiple of 3 KV heads"):
        attention(kv_heads=3)
    with refused("k has 48 rows, expected 2 heads of 16"):
        attention(k=w(48, 48))
    with refused(r"o is \[48, 32\], expected \[48, 64\]"):
        attention(o=w(48, 32))
    with refused("q, k and v have depths 48, 48 and 40"):
        attention(v=w(32, 40))
    with refused("a head's norm has 8 weights, heads are 16 wide"):
        attention(q_norm=_ops.Norm(mx.ones(8), 1e-5))
    with refused("the rope turns 18 values of a head, heads are 16 wide"):
        attention(rope=_ops.Rope(mx.ones(9)))
    with refused(r"sinks must be \[4\], got shape \(5\)"):
        attention(sinks=mx.zeros(5))
    with refused("weights must be single matrices, got a stack of 2"):
        attention(q=_ops.Weights(mx.zeros((2, 64, 48))))
    mlp = _ops.GatedMlp(w(20, 48), w(20, 48), w(48, 20), "silu")
    with refused("a norm has 47 weights, the layer is 48 wide"):
        _ops.DecoderLayer(good, mlp, _ops.Norm(mx.ones(47), 1e-5), None)
    with refused("attention has width 48, the MLP 40"):
        _ops.DecoderLayer(good, _ops.GatedMlp(None, w(20, 40), w(40, 20), "silu"), None, None)
