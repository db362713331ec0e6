"""Norm, rope and gated MLP against plain MLX operations."""

from __future__ import annotations

import math

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from tests.native.ops import modules
from tests.native.ops.reference import random

from pomona import _ops

DTYPES = {mx.float32: 2e-6, mx.bfloat16: 1.6e-2, mx.float16: 2e-3}


def close(a: mx.array, b: mx.array, tolerance: float) -> bool:
    """Within `tolerance` of values near 1, relative for larger ones."""
    assert a.shape == b.shape
    a, b = a.astype(mx.float32), b.astype(mx.float32)
    return bool((mx.abs(a - b) <= tolerance * mx.maximum(1, mx.abs(b))).all().item())


# ---------------------------------------------------------------- norm


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 576), (3, 5, 64), (2, 7), (1, 1, 1), (40, 1000)], ids=str)
def test_rms_norm(shape, dtype):
    x = 3 * random(shape, dtype, 1)
    weight = random((shape[-1],), dtype, 2)
    out = _ops.rms_norm(x, _ops.Norm(weight, 1e-5))
    assert out.dtype == dtype
    expected = mx.fast.rms_norm(x.astype(mx.float32), weight.astype(mx.float32), 1e-5)
    assert close(out, expected, DTYPES[dtype])
    plain = _ops.rms_norm(x, _ops.Norm(None, 1e-5))
    assert close(plain, mx.fast.rms_norm(x.astype(mx.float32), None, 1e-5), DTYPES[dtype])


def test_rms_norm_of_strided_rows():
    x = random((6, 4, 80), mx.float32, 1)
    norm = _ops.Norm(None, 1e-6)
    assert mx.array_equal(_ops.rms_norm(x.swapaxes(0, 1), norm), _ops.rms_norm(x, norm).swapaxes(0, 1))


def test_rms_norm_refuses():
    with pytest.raises(ValueError, match=r"Norm: weight must be \[dim\], got shape \(2,3\)"):
        _ops.Norm(mx.ones((2, 3)), 1e-5)
    with pytest.raises(ValueError, match=r"rms_norm: x has shape \(2,4\), the weight is \[3\]"):
        _ops.rms_norm(mx.ones((2, 4)), _ops.Norm(mx.ones(3), 1e-5))


# ---------------------------------------------------------------- rope


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize(("dim", "turned"), [(64, 64), (80, 32), (24, 24), (6, 2)])
def test_rope(dim, turned, traditional, dtype):
    module = nn.RoPE(turned, traditional, base=10000.0)
    rope = modules.rope(module)
    x = random((2, 7, 3, dim), dtype, 3).swapaxes(1, 2)
    for offset in (0, 5, 1000, 8192):
        out = _ops.rope(x, rope, offset)
        assert out.dtype == dtype
        # MLX turns float32: an angle near 8192 is known to about 5e-4.
        tolerance = max(DTYPES[dtype], 4e-6)
        assert close(out, module(x.astype(mx.float32), offset), tolerance), offset


def test_rope_with_offsets_per_sequence():
    frequencies = mx.array(1 / (500.0 ** np.linspace(0, 1, 16)), mx.float32)
    rope = _ops.Rope(frequencies, scale=0.5)
    x = random((3, 4, 5, 48), mx.float32, 4)
    offsets = mx.array([0, 77, 4000])
    out = _ops.rope(x, rope, offsets)
    for b, offset in enumerate(offsets.tolist()):
        half = mx.concatenate([0.5 * x[b : b + 1, ..., :32], x[b : b + 1, ..., 32:]], axis=-1)
        expected = mx.fast.rope(
            half, 32, traditional=False, base=None, scale=1.0, offset=offset, freqs=1 / frequencies
        )
        assert close(out[b : b + 1], expected, 1e-3 if offset > 1000 else 2e-5)


def test_rope_refuses():
    rope = _ops.Rope(mx.ones(4))
    with pytest.raises(ValueError, match="x has heads of width 6, the rope turns 8"):
        _ops.rope(mx.ones((1, 1, 1, 6)), rope, 0)
    with pytest.raises(ValueError, match=r"offset must be int32, one or \[1\]"):
        _ops.rope(mx.ones((1, 1, 1, 8)), rope, mx.array([1, 2]))
    with pytest.raises(ValueError, match=r"frequencies must be \[pairs\]"):
        _ops.Rope(mx.ones((2, 2)))


# ---------------------------------------------------------------- gated MLP


def swiglu_oai(x: mx.array) -> mx.array:
    return x * mx.sigmoid(1.702 * x)


ACTIVATIONS = {
    "silu": nn.silu,
    "gelu": nn.gelu,
    "gelu_tanh": nn.gelu_approx,
    "relu2": nn.relu2,
    "swiglu_oai": swiglu_oai,
}


def mlp_parts(hidden: int, inner: int, dtype: mx.Dtype, bias: bool) -> list[nn.Linear]:
    shapes = [(hidden, inner), (hidden, inner), (inner, hidden)]
    return [modules.randomise(nn.Linear(i, o, bias=bias), dtype, seed) for seed, (i, o) in enumerate(shapes)]


def expected_mlp(x: mx.array, parts: list[nn.Linear], activation: str, gated: bool = True) -> mx.array:
    gate, up, down = (part.__class__.__call__.__get__(part) for part in parts)
    x = x.astype(mx.float32)
    for part in parts:
        part.set_dtype(mx.float32)
    function = ACTIVATIONS[activation]
    if not gated:
        return down(function(up(x)))
    if activation == "swiglu_oai":
        return down(function(mx.minimum(gate(x), 7)) * (mx.clip(up(x), -7, 7) + 1))
    return down(function(gate(x)) * up(x))


@pytest.mark.parametrize("rows", [1, 3, 14, 40, 300])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_mlp(activation, rows):
    parts = mlp_parts(64, 100, mx.float32, bias=True)
    x = random((rows, 64), mx.float32, 5)
    out = _ops.gated_mlp(x, _ops.GatedMlp(*(modules.weights(p) for p in parts), activation))
    assert close(out, expected_mlp(x, parts, activation), 2e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
def test_gated_mlp_quantized(mode, dtype):
    parts = [modules.quantize(p, mode=mode) for p in mlp_parts(128, 320, dtype, bias=False)]
    x = random((2, 9, 128), dtype, 5)
    out = _ops.gated_mlp(x, _ops.GatedMlp(*(modules.weights(p) for p in parts), "silu"))
    assert out.dtype == dtype
    assert close(out, expected_mlp(x, parts, "silu"), max(DTYPES[dtype], 2e-5))


def test_mlp_without_gate():
    parts = mlp_parts(48, 96, mx.float32, bias=True)
    x = random((5, 48), mx.float32, 5)
    mlp = _ops.GatedMlp(None, modules.weights(parts[1]), modules.weights(parts[2]), "relu2")
    assert close(_ops.gated_mlp(x, mlp), expected_mlp(x, parts, "relu2", gated=False), 2e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_over_the_whole_range(activation):
    """One value through an MLP that is the identity around its activation."""
    values = mx.array(
        np.concatenate([np.linspace(-120, 120, 4001), np.linspace(-1, 1, 997), [0.0, -0.0, 1e-30, -1e-30]]),
        mx.float32,
    )
    one = _ops.Weights(mx.ones((1, 1)))
    bias = mx.array([0.0 if activation == "swiglu_oai" else 1.0])
    up = _ops.Weights(mx.zeros((1, 1)), bias=bias)
    out = _ops.gated_mlp(values[:, None], _ops.GatedMlp(one, up, one, activation))[:, 0]
    x = np.array(values, np.float64)
    if activation == "gelu":
        expected = x * np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in x])
    elif activation == "gelu_tanh":
        expected = x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
    elif activation == "relu2":
        expected = np.maximum(x, 0) ** 2
    else:
        clipped = np.minimum(x, 7) if activation == "swiglu_oai" else x
        slope = 1.702 if activation == "swiglu_oai" else 1.0
        expected = clipped / (1 + np.exp(-slope * clipped))
    error = np.abs(np.array(out, np.float64) - expected)
    assert (error <= 1e-6 * np.maximum(np.abs(expected), 1e-1)).all()


def test_gated_mlp_refuses():
    def w(rows: int, depth: int) -> _ops.Weights:
        return _ops.Weights(mx.zeros((rows, depth)))

    with pytest.raises(ValueError, match="activation tanh is not silu, gelu"):
        _ops.GatedMlp(w(8, 4), w(8, 4), w(4, 8), "tanh")
    with pytest.raises(ValueError, match="swiglu_oai needs a gate"):
        _ops.GatedMlp(None, w(8, 4), w(4, 8), "swiglu_oai")
    with pytest.raises(ValueError, match=r"gate is \[9, 4\], up \[8, 4\]"):
        _ops.GatedMlp(w(9, 4), w(8, 4), w(4, 8), "silu")
    with pytest.raises(ValueError, match=r"up is \[8, 4\], down \[4, 9\]"):
        _ops.GatedMlp(w(8, 4), w(8, 4), w(4, 9), "silu")
    mlp = _ops.GatedMlp(w(8, 4), w(8, 4), w(4, 8), "silu")
    with pytest.raises(ValueError, match=r"gated_mlp: x has shape \(2,5\), expected \[..., 4\]"):
        _ops.gated_mlp(mx.zeros((2, 5)), mlp)
