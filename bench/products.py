"""Products with model weights: pomona's `linear` beside MLX's, with the error of both.

The weights of one shape exist several times and are used by turns: a model reads each matrix from memory, not
from the cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import common  # noqa: F401  (the BLAS before mlx)
import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from pairs import Pairs, alternate, timed
from pomona import _ops
from pomona.cli.machine import cores

Float64Array = NDArray[np.float64]

# Copies of a matrix together: beyond the last cache of this class of machines, as far as that is reached.
COLD_BYTES = 96 << 20
MAX_COPIES = 64
# Products in one evaluation: its fixed cost must not count where a product takes microseconds.
BATCH_MULTIPLICATIONS = 64 << 20
MAX_BATCH = 8
PEAK_RUNS = 7
PEAK_SIZE = 1536
READ_BYTES = 256 << 20


@dataclass(frozen=True)
class Shape:
    """Of a weight matrix: x [M, depth] gives [M, columns]."""

    columns: int
    depth: int

    def __str__(self) -> str:
        return f"{self.columns} x {self.depth}"


@dataclass(frozen=True)
class Format:
    """How weights are stored (bits 0: dense), and the dtype of activations, scales and dense weights."""

    bits: int
    group: int
    dtype: mx.Dtype

    def __str__(self) -> str:
        name = "f32" if self.dtype == mx.float32 else "bf16"
        return f"{self.bits} bit / {self.group}, {name}" if self.bits else f"dense, {name}"


@dataclass(frozen=True)
class Product:
    """One measured product. Errors are the largest difference from float64, as a share of the largest
    value."""

    format: str
    shape: str
    rows: int
    pairs: Pairs
    error: float
    mlx_error: float
    flops: float
    weight_bytes: int
    same_bits: bool
    """Whether each row came out as it does among the most rows."""


@dataclass(frozen=True)
class Peaks:
    """What this machine gave in this run: float32 products through the BLAS, and plain reading."""

    flops: float
    bytes: float

    def __str__(self) -> str:
        return f"sgemm {self.flops / 1e9:.0f} GF/s, reading {self.bytes / 1e9:.1f} GB/s"


class Matrix:
    """Copies of one matrix, as MLX and as pomona take it."""

    def __init__(self, shape: Shape, form: Format, seed: int) -> None:
        self.form = form
        values = mx.random.normal((shape.columns, shape.depth), key=mx.random.key(seed))
        values = (values / shape.depth**0.5).astype(form.dtype)
        stored = mx.quantize(values, form.group, form.bits) if form.bits else [values]
        mx.eval(stored)
        self.nbytes = sum(array.nbytes for array in stored)
        count = max(1, min(MAX_COPIES, COLD_BYTES // self.nbytes))
        self.copies = [_copies(stored) for _ in range(count)]
        self.ours = [self._weights(copy) for copy in self.copies]

    def _weights(self, copy: list[mx.array]) -> _ops.Weights:
        if not self.form.bits:
            return _ops.Weights(copy[0])
        weight, scales, biases = copy
        return _ops.Weights(weight, scales, biases, None, self.form.group, self.form.bits)

    def mlx_product(self, x: mx.array, copy: list[mx.array]) -> mx.array:
        if not self.form.bits:
            return x @ copy[0].T
        return mx.quantized_matmul(x, *copy, transpose=True, group_size=self.form.group, bits=self.form.bits)

    def exact(self) -> Float64Array:
        """The weights in float64, without the rounding of a dequantization."""
        stored = self.copies[0]
        if not self.form.bits:
            return _float64(stored[0])
        ones, zeros = mx.ones_like(stored[1]), mx.zeros_like(stored[1])
        codes = mx.dequantize(stored[0], ones, zeros, self.form.group, self.form.bits)
        scales, biases = (np.repeat(_float64(part), self.form.group, axis=1) for part in stored[1:])
        return _float64(codes) * scales + biases


def measure(shape: Shape, form: Format, rows: list[int], pairs: int, slice_s: float) -> Iterator[Product]:
    """One product for each number of rows."""
    matrix = Matrix(shape, form, seed=shape.columns)
    x = mx.random.normal((max(rows), shape.depth), key=mx.random.key(1)).astype(form.dtype)
    most = _ops.linear(x, matrix.ours[0])
    exact = _float64(x) @ matrix.exact().T
    for count in rows:
        part = mx.contiguous(x[:count])
        mx.eval(part)
        ours = _ops.linear(part, matrix.ours[0])
        theirs = matrix.mlx_product(part, matrix.copies[0])
        multiplications = shape.columns * shape.depth * count
        batch = max(1, min(MAX_BATCH, BATCH_MULTIPLICATIONS // multiplications))
        yield Product(
            str(form),
            str(shape),
            count,
            _pairs(matrix, part, batch, pairs, slice_s),
            _error(ours, exact[:count]),
            _error(theirs, exact[:count]),
            2.0 * multiplications,
            matrix.nbytes,
            bool(mx.array_equal(ours, most[:count]).item()),
        )


def _pairs(matrix: Matrix, x: mx.array, batch: int, pairs: int, slice_s: float) -> Pairs:
    ours = _evaluation(lambda i: _ops.linear(x, matrix.ours[i]), len(matrix.ours), batch)
    theirs = _evaluation(lambda i: matrix.mlx_product(x, matrix.copies[i]), len(matrix.copies), batch)
    taken = alternate(timed(ours, slice_s), timed(theirs, slice_s), pairs)
    return Pairs([s / batch for s in taken.a], [s / batch for s in taken.b])


def _evaluation(product: Callable[[int], mx.array], copies: int, batch: int) -> Callable[[], None]:
    """Computes the next `batch` products, each with another copy of the weights."""
    turn = itertools.cycle(range(copies))
    return lambda: mx.eval([product(next(turn)) for _ in range(batch)])


def peaks() -> Peaks:
    return Peaks(_sgemm_flops(), _read_bytes_per_s())


def _sgemm_flops() -> float:
    a, b = (mx.random.normal((PEAK_SIZE, PEAK_SIZE), key=mx.random.key(i)) for i in range(2))
    mx.eval(a, b)
    product = timed(lambda: mx.eval(a @ b), 0.05)
    return 2.0 * PEAK_SIZE**3 / min(product() for _ in range(PEAK_RUNS))


def _read_bytes_per_s() -> float:
    """Of all cores together; the maximum of integers costs less than fetching them."""
    data = np.ones(READ_BYTES // 4, np.int32)
    with ThreadPoolExecutor(cores()) as pool:
        parts = np.array_split(data, cores())
        read = timed(lambda: list(pool.map(np.max, parts)), 0.05)
        return READ_BYTES / min(read() for _ in range(PEAK_RUNS))


def _copies(stored: list[mx.array]) -> list[mx.array]:
    made = [mx.array(np.array(array.view(mx.uint8))).view(array.dtype) for array in stored]
    mx.eval(made)
    return made


def _float64(array: mx.array) -> Float64Array:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def _error(result: mx.array, exact: Float64Array) -> float:
    return float(np.abs(_float64(result) - exact).max() / np.abs(exact).max())
