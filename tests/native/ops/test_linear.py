"""Products with model weights: against float64, the same bits whatever the number of rows, every format."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from pomona import _ops

ROWS = (1, 2, 3, 4, 5, 8, 13, 14, 15, 16, 29, 64, 253, 300)
LARGEST_ERROR = 2e-6  # of float32 sums, as a share of the largest result

AFFINE = [("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
FORMATS = [*AFFINE, ("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]


def _random(*shape: int, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def _quantized(
    weight: mx.array, mode: str, bits: int, group: int, bias: mx.array | None = None
) -> tuple[_ops.Weights, NDArray[np.float64]]:
    """The packed matrix, and what it stands for."""
    parts = mx.quantize(weight, group_size=group, bits=bits, mode=mode)
    values = mx.dequantize(*parts, group_size=group, bits=bits, mode=mode).astype(mx.float32)
    biases = parts[2] if len(parts) > 2 else None
    packed = _ops.Weights(parts[0], parts[1], biases, bias, group_size=group, bits=bits, mode=mode)
    return packed, np.array(values).astype(np.float64)


def _error(y: mx.array, exact: NDArray[np.float64]) -> float:
    return float(np.abs(np.array(y.astype(mx.float32)) - exact).max() / np.abs(exact).max())


@pytest.mark.parametrize(("mode", "bits", "group"), FORMATS)
def test_every_quantized_format(mode: str, bits: int, group: int) -> None:
    weights, exact = _quantized(_random(70, 384), mode, bits, group)
    x = _random(20, 384, seed=1)
    assert (weights.rows, weights.depth, weights.experts) == (70, 384, 0)
    for rows in (1, 3, 20):
        y = _ops.linear(x[:rows], weights)
        assert _error(y, np.array(x[:rows]) @ exact.T) < LARGEST_ERROR


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("depth", [1, 15, 100, 576])
def test_dense_matrices_of_any_depth(dtype: mx.Dtype, depth: int) -> None:
    matrix = _random(50, depth).astype(dtype)
    x = _random(9, depth, seed=1)
    exact = np.array(x).astype(np.float64) @ np.array(matrix.astype(mx.float32)).astype(np.float64).T
    for rows in (1, 9):
        assert _error(_ops.linear(x[:rows], _ops.Weights(matrix)), exact[:rows]) < LARGEST_ERROR


@pytest.mark.parametrize(
    ("mode", "bits", "group"), [("affine", 4, 32), ("affine", 8, 64), ("affine", 6, 32), ("mxfp4", 4, 32)]
)
def test_a_row_has_the_same_bits_among_any_number(mode: str, bits: int, group: int) -> None:
    weights, _ = _quantized(_random(130, 832), mode, bits, group)
    x = _random(max(ROWS), 832, seed=1)
    together = np.array(_ops.linear(x, weights))
    for rows in ROWS:
        np.testing.assert_array_equal(np.array(_ops.linear(x[:rows], weights)), together[:rows])
    np.testing.assert_array_equal(np.array(_ops.linear(x[77:78], weights)), together[77:78])


def test_dense_rows_have_the_same_bits_among_any_number() -> None:
    weights = _ops.Weights(_random(130, 700))
    x = _random(max(ROWS), 700, seed=1)
    together = np.array(_ops.linear(x, weights))
    for rows in ROWS:
        np.testing.assert_array_equal(np.array(_ops.linear(x[:rows], weights)), together[:rows])


@pytest.mark.parametrize("depth", [2048, 8192])
def test_long_sums_stay_exact(depth: int) -> None:
    weights, exact = _quantized(_random(64, depth), "affine", 4, 64)
    x = mx.abs(_random(2, depth, seed=1))
    assert _error(_ops.linear(x, weights), np.array(x) @ exact.T) < LARGEST_ERROR


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_half_precision_activations_and_scales(dtype: mx.Dtype) -> None:
    weights, exact = _quantized(_random(64, 512).astype(dtype), "affine", 4, 64)
    x = _random(5, 512, seed=1).astype(dtype)
    y = _ops.linear(x, weights)
    assert y.dtype == dtype
    # MLX rounds the dequantized values to the scales' type, we do not.
    assert _error(y, np.array(x.astype(mx.float32)) @ exact.T) < 1e-2


def test_bias_leading_axes_and_strides() -> None:
    bias = _random(40, seed=2)
    weights, exact = _quantized(_random(40, 64), "affine", 8, 32, bias)
    x = _random(2, 64, 3, seed=1).swapaxes(1, 2)
    y = _ops.linear(x, weights)
    assert y.shape == (2, 3, 40)
    assert _error(y, np.array(x) @ exact.T + np.array(bias)) < LARGEST_ERROR


def test_no_rows() -> None:
    weights = _ops.Weights(_random(8, 32))
    assert _ops.linear(mx.zeros((0, 32)), weights).shape == (0, 8)


def test_a_part_is_a_matrix_of_its_own() -> None:
    bias = _random(96, seed=2)
    for parts in (
        _quantized(_random(96, 64), "affine", 4, 32, bias)[0],
        _ops.Weights(_random(96, 64), bias=bias),
    ):
        x = _random(3, 64, seed=1)
        whole = np.array(_ops.linear(x, parts))
        part = parts.part(50, 30)
        assert (part.rows, part.depth) == (30, 64)
        np.testing.assert_array_equal(np.array(_ops.linear(x, part)), whole[:, 50:80])
        again = part.part(10, 5)
        np.testing.assert_array_equal(np.array(_ops.linear(x, again)), whole[:, 60:65])


@pytest.mark.parametrize(("mode", "bits", "group"), FORMATS)
def test_embed_gives_the_dequantized_rows(mode: str, bits: int, group: int) -> None:
    weights, exact = _quantized(_random(70, 384), mode, bits, group)
    ids = mx.array([[0, 69, 5], [5, 1, 33]], dtype=mx.int32)
    rows = _ops.embed(ids, weights)
    assert rows.shape == (2, 3, 384)
    assert rows.dtype == mx.float32
    np.testing.assert_allclose(np.array(rows), exact[np.array(ids)], rtol=1e-6, atol=1e-6)


def test_embed_of_dense_rows_is_exact_and_keeps_the_type() -> None:
    matrix = _random(20, 33).astype(mx.bfloat16)
    rows = _ops.embed(mx.array([3, 19], dtype=mx.uint32), _ops.Weights(matrix))
    assert rows.dtype == mx.bfloat16
    assert mx.array_equal(rows, matrix[mx.array([3, 19])])


def test_embed_of_an_id_outside_is_not_a_number() -> None:
    rows = np.array(_ops.embed(mx.array([-1, 4, 3], dtype=mx.int32), _ops.Weights(_random(4, 8))))
    assert np.isnan(rows[:2]).all()
    assert np.isfinite(rows[2]).all()


def test_what_does_not_fit_is_refused_by_name() -> None:
    packed, scales, biases = mx.quantize(_random(8, 64), group_size=32, bits=4)
    with pytest.raises(ValueError, match="biases"):
        _ops.Weights(packed, scales, group_size=32, bits=4)
    with pytest.raises(ValueError, match="scales have shape"):
        _ops.Weights(packed, scales, biases, group_size=64, bits=4)
    with pytest.raises(ValueError, match="bits must be"):
        _ops.Weights(packed, scales, biases, group_size=32, bits=7)
    with pytest.raises(ValueError, match="mode fp5"):
        _ops.Weights(packed, scales, biases, group_size=32, bits=4, mode="fp5")
    with pytest.raises(ValueError, match="float32, bfloat16 or float16"):
        _ops.Weights(mx.zeros((8, 64), mx.int32))
    with pytest.raises(ValueError, match="bias has shape"):
        _ops.Weights(_random(8, 64), bias=_random(7))
    weights = _ops.Weights(_random(8, 64))
    with pytest.raises(ValueError, match=r"expected \[\.\.\., 64\]"):
        _ops.linear(_random(2, 32), weights)
    with pytest.raises(ValueError, match="x must be"):
        _ops.linear(mx.zeros((2, 64), mx.int32), weights)
    with pytest.raises(ValueError, match="lie outside"):
        weights.part(4, 5)
    with pytest.raises(ValueError, match="lie outside"):
        weights.part(2**63 - 1, 1)
    with pytest.raises(ValueError, match="stack"):
        _ops.linear(_random(2, 64), _ops.Weights(_random(3, 8, 64)))
    with pytest.raises(ValueError, match="int32 or uint32"):
        _ops.embed(mx.zeros((2,)), weights)


def test_weights_outlive_their_arrays() -> None:
    matrix = _random(40, 64)
    expected = np.array(_ops.linear(_random(2, 64, seed=1), _ops.Weights(matrix)))
    weights = _ops.Weights(mx.array(np.array(matrix)))
    filler = [mx.ones((40, 64)) for _ in range(8)]
    mx.eval(filler)
    np.testing.assert_array_equal(np.array(_ops.linear(_random(2, 64, seed=1), weights)), expected)


def test_weights_are_not_copied() -> None:
    parts = mx.quantize(_random(512, 512), group_size=32, bits=4)
    mx.eval(parts)
    before = mx.get_active_memory()
    weights = _ops.Weights(*parts, group_size=32, bits=4)
    mx.eval(_ops.linear(_random(1, 512, seed=1), weights))
    assert mx.get_active_memory() - before < 16384
