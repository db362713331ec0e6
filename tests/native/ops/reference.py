"""The primitives in plain MLX operations: gather by table, explicit softmax, all in float32.

Arrays of a reference slab are float32 and hold values that the native slab's dtype can represent.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from pomona import _ops

NO_COPIES = np.zeros((0, 2), np.int32)


@dataclass(slots=True)
class Step:
    """The arguments of a StepTable, kept readable."""

    block_size: int
    tables: NDArray[np.int32]
    sequence: NDArray[np.int32]
    visible: NDArray[np.int32]
    slots: NDArray[np.int32]
    copies: NDArray[np.int32] = field(default_factory=NO_COPIES.copy)

    def native(self) -> _ops.StepTable:
        return _ops.StepTable(
            self.block_size, self.tables, self.sequence, self.visible, self.slots, self.copies
        )


def step_of(block_size: int, tables: NDArray[np.int32], rows: list[tuple[int, int]]) -> Step:
    """Token rows (sequence, position), each writing at its position and seeing up to itself."""
    sequence = np.array([s for s, _ in rows], np.int32)
    position = np.array([p for _, p in rows], np.int32)
    slots = np.array([tables[s, p // block_size] * block_size + p % block_size for s, p in rows], np.int32)
    return Step(block_size, tables, sequence, position + 1, slots)


def shuffled_tables(lengths: list[int], block_size: int, seed: int) -> tuple[NDArray[np.int32], int]:
    """Block tables of sequences with room for `lengths` tokens, and the number of blocks in use."""
    counts = [-(-length // block_size) for length in lengths]
    order = np.random.default_rng(seed).permutation(sum(counts)).astype(np.int32)
    tables = np.full((len(lengths), max([1, *counts]) + 1), -1, np.int32)
    for row, count, end in zip(tables, counts, np.cumsum(counts), strict=True):
        row[:count] = order[end - count : end]
    return tables, max(1, len(order))


def random(shape: tuple[int, ...], dtype: mx.Dtype, seed: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def fill(slab: _ops.Slab, keys: mx.array, values: mx.array) -> None:
    """Give every slot of the slab the contents [blocks, block_size, heads, dim]."""
    blocks, block_size = keys.shape[:2]
    slots = np.arange(blocks * block_size, dtype=np.int32)
    nothing = np.zeros_like(slots)
    step = Step(block_size, np.zeros((1, 1), np.int32), nothing, nothing, slots)
    k, v = (x.reshape(len(slots), 1, *x.shape[2:]).swapaxes(1, 2) for x in (keys, values))
    mx.eval(_ops.update_and_attend(mx.zeros_like(k), k, v, slab, step.native(), 1.0))


def token_rows(x: mx.array) -> mx.array:
    """[B, H, L, D] to [T, H, D]."""
    batch, heads, length, dim = x.shape
    return x.swapaxes(1, 2).reshape(batch * length, heads, dim)


def update(storage: mx.array, x: mx.array, step: Step) -> mx.array:
    """The slab half after the copies and the writes of a call."""
    after = np.array(storage.astype(mx.float32))
    for source, destination in step.copies:
        after[destination] = after[source]
    flat = after.reshape(-1, *after.shape[2:])
    for slot, row in zip(step.slots, np.array(token_rows(x).astype(mx.float32)), strict=True):
        flat[slot] = row
    return mx.array(after)


def history(storage: mx.array, table: NDArray[np.int32], count: int) -> mx.array:
    """The first `count` tokens of a table as [count, heads, dim]."""
    block_size = storage.shape[1]
    positions = np.arange(count)
    slots = table[positions // block_size] * block_size + positions % block_size
    flat = storage.reshape(-1, *storage.shape[2:])
    return flat[mx.array(slots)] if count else flat[:0]


def attend(
    q: mx.array,
    keys: mx.array,
    values: mx.array,
    step: Step,
    scale: float,
    window: int = 0,
    sinks: mx.array | None = None,
) -> mx.array:
    """Attention over an updated reference slab: [B, Hq, L, Dv] in float32."""
    batch, q_heads, length, _ = q.shape
    group = q_heads // keys.shape[2]
    outputs = []
    for row, sequence, visible in zip(
        token_rows(q.astype(mx.float32)), step.sequence.tolist(), step.visible.tolist(), strict=True
    ):
        start = max(0, visible - window) if window else 0
        k, v = (
            mx.repeat(history(half, step.tables[sequence], visible)[start:], group, axis=1)
            for half in (keys, values)
        )
        scores = (k * row[None]).sum(-1) * scale
        if sinks is not None:
            scores = mx.concatenate([scores, sinks.astype(mx.float32)[None]])
            v = mx.concatenate([v, mx.zeros((1, *v.shape[1:]))])
        if scores.shape[0] == 0:
            outputs.append(mx.zeros(v.shape[1:]))
        else:
            outputs.append((mx.softmax(scores, axis=0)[..., None] * v).sum(0))
    out = mx.stack(outputs) if outputs else mx.zeros((0, q_heads, values.shape[3]))
    return out.reshape(batch, length, q_heads, values.shape[3]).swapaxes(1, 2)
