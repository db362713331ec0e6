"""Start-up checks of the native parts. `python -m pomona.worker.selftest` prints them as JSON lines for
`pomona doctor`, which must not import mlx itself.

Each check returns a sentence about what is wrong, or an empty string.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from pomona.worker import blas

if __name__ == "__main__":
    blas.load()  # before mlx, as in a worker

import mlx.core as mx
import numpy as np

from pomona import _ops
from pomona._core import BlockPool, RadixTree

PIPELINED_STEPS = 3
SLAB_BLOCKS = 256
BLOCK_SIZE = 64
HEADS, DIM = 4, 64


def check_slab_stays_in_place() -> str:
    """Queue a few steps ahead of each other: memory must not grow by copies of the slab."""
    slab = _ops.Slab(SLAB_BLOCKS, BLOCK_SIZE, HEADS, DIM, HEADS, DIM, mx.float32)
    x = mx.ones((1, HEADS, 1, DIM))
    mx.eval(x)
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for position in range(PIPELINED_STEPS):
        out = _ops.update_and_attend(x, x, x, slab, _single_row(position), 1.0)
        mx.async_eval(out)
    mx.synchronize()
    grown = mx.get_peak_memory() - before
    if grown > slab.nbytes // 4:
        return f"three pipelined steps took {grown} extra bytes beside a slab of {slab.nbytes}"
    return ""


def check_attention() -> str:
    """The paged kernel against MLX's own attention on dense keys."""
    tokens = 150
    shape = (1, HEADS, tokens, DIM)
    q, k, v = (mx.random.normal(shape, key=mx.random.key(i)) for i in range(3))
    slab = _ops.Slab(8, BLOCK_SIZE, HEADS, DIM, HEADS, DIM, mx.float32)
    positions = np.arange(tokens, dtype=np.int32)
    blocks = np.array([[5, 0, 3]], np.int32)
    table = _ops.StepTable(
        BLOCK_SIZE,
        blocks,
        np.zeros(tokens, np.int32),
        positions + 1,
        blocks[0, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE,
        np.empty((0, 2), np.int32),
    )
    ours = _ops.update_and_attend(q, k, v, slab, table, DIM**-0.5)
    theirs = mx.fast.scaled_dot_product_attention(q, k, v, scale=DIM**-0.5, mask="causal")
    error = float(mx.abs(ours - theirs).max().item())
    return "" if error < 1e-4 else f"paged attention differs from MLX's by {error:.1e}"


def check_products() -> str:
    """Products with packed weights against MLX's own."""
    dense, x = (mx.random.normal((rows, 256), key=mx.random.key(rows)) for rows in (96, 5))
    weight, scales, biases = mx.quantize(dense, group_size=64, bits=4)
    mx.eval(weight, scales, biases)
    ours = _ops.linear(x, _ops.Weights(weight, scales, biases, group_size=64, bits=4))
    theirs = mx.quantized_matmul(x, weight, scales, biases, group_size=64, bits=4)
    error = float((mx.abs(ours - theirs).max() / mx.abs(theirs).max()).item())
    return "" if error < 1e-5 else f"products with 4-bit weights differ from MLX's by {error:.1e}"


def check_core() -> str:
    """A prompt goes into the radix tree and comes out again."""
    pool = BlockPool(8)
    tree = RadixTree(pool, 4)
    tokens = np.arange(10, dtype=np.int32)
    blocks = pool.allocate(3)
    tree.insert(tokens, blocks)
    pool.release(blocks)
    match = tree.match(tokens, 9)
    return "" if match.tokens == 9 else f"the radix tree found {match.tokens} of 9 cached tokens"


def check_blas() -> str:
    """The BLAS that was loaded is really called, and right; none at all is a fault on Linux."""
    note = blas.load()
    if sys.platform == "linux" and not blas.replaced() and "switched off" not in note:
        return f"products of float32 matrices will be slow ({note})"
    try:
        blas.self_test()
    except blas.BlasError as error:
        return str(error)
    return ""


CHECKS: dict[str, Callable[[], str]] = {
    "radix tree and block pool": check_core,
    "paged attention": check_attention,
    "fused ops": check_products,
    "slab stays in place": check_slab_stays_in_place,
    "BLAS": check_blas,
}


def _single_row(position: int) -> _ops.StepTable:
    return _ops.StepTable(
        BLOCK_SIZE,
        np.array([[0]], np.int32),
        np.zeros(1, np.int32),
        np.array([position + 1], np.int32),
        np.array([position], np.int32),
        np.empty((0, 2), np.int32),
    )


def main() -> int:
    """Print one line per check: {"check", "problem"}, after one with the device."""
    device = {"device": str(mx.default_device()), "mlx": mx.__version__, "kernels": _ops.cpu_variant()}
    print(json.dumps(device | {"blas": blas.load()}))
    failed = False
    for name, check in CHECKS.items():
        problem = check()
        failed |= bool(problem)
        print(json.dumps({"check": name, "problem": problem}), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
