"""Chooses a model's reader at load, by comparing logits with stock mlx-lm.

Two rows are run through the real runner the way the server runs rows: a prompt in chunks, a second row
joining, single tokens side by side, in small scattered blocks. The first reader whose logits agree
is taken; the paged one is tried first.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models import cache as stock

from pomona.kv.layout import CacheLayout, opaque_layout
from pomona.kv.readers import Reader, make_caches
from pomona.kv.row_states import StateBank, StockRows
from pomona.kv.store import KVStore
from pomona.link.messages import Sampling
from pomona.worker import head
from pomona.worker.runner import Runner
from pomona.worker.scheduler import ScheduledRow, StepPlan
from pomona.worker.sequence import Int32Array, Sequence, TokenBuffer

log = logging.getLogger(__name__)

BLOCK_SIZE = 4
BLOCKS = 16
ROW_TOKENS = (9, 7)
# Tokens of each row per step: (row, count).
STEPS = (((0, 6),), ((0, 1), (1, 4)), ((0, 1), (1, 1)), ((1, 2), (0, 1)))

# Largest accepted difference of logits, as a share of the largest logit. Half precision rounds every
# intermediate result; float32 differs only by the order of sums.
TOLERANCE = {mx.float32: 1e-3}
HALF_TOLERANCE = 0.1


@dataclass(slots=True)
class ReaderChoice:
    reader: Reader | None
    layout: CacheLayout
    wanted: head.WantedRows | None
    vocab_size: int
    note: str


def choose_reader(model: Any, layout: CacheLayout, reader: str = "auto") -> ReaderChoice:
    """Try readers (or the one asked for) until one agrees with stock mlx-lm.

    On success the model's head is left substituted as `wanted` says.
    """
    prompts = [_prompt(i, n) for i, n in enumerate(ROW_TOKENS)]
    expected = [_stock_logits(model, prompt) for prompt in prompts]
    vocab_size = expected[0].shape[-1]
    notes: list[str] = []
    for candidate in _candidates(layout, reader):
        if candidate is Reader.STOCK and not layout.opaque:
            layout = opaque_layout(model)
        for selective in (True, False):
            wanted = head.install(model) if selective else None
            if selective and wanted is None:
                continue
            try:
                error = _largest_error(model, layout, candidate, wanted, prompts, expected)
            except Exception as failure:  # whatever model code raises: this reader does not fit
                error, reason = math.inf, f"{type(failure).__name__}: {failure}"
            else:
                reason = f"logits differ by {error:.1e}"
            if error <= _tolerance(layout, expected):
                return ReaderChoice(candidate, layout, wanted, vocab_size, "; ".join(notes))
            head.uninstall(model)
            form = "" if selective else " without row selection"
            notes.append(f"{candidate} reader{form} not used ({reason})")
            log.info(notes[-1])
    return ReaderChoice(None, layout, None, vocab_size, "; ".join(notes))


def _candidates(layout: CacheLayout, reader: str) -> list[Reader]:
    if reader != "auto":
        return [Reader(reader)]
    return [Reader.STOCK] if layout.opaque else list(Reader)


def _prompt(seed: int, length: int) -> Int32Array:
    """Small ids, so that they exist in any vocabulary and mean nothing special."""
    return ((np.arange(length) * 7 + 11 * seed + 5) % 97).astype(np.int32)


def _stock_logits(model: Any, prompt: Int32Array) -> mx.array:
    logits = model(mx.array(prompt)[None], cache=stock.make_prompt_cache(model))[0].astype(mx.float32)
    mx.eval(logits)
    return logits


def _tolerance(layout: CacheLayout, expected: list[mx.array]) -> float:
    dtype = layout.attention[0].dtype if layout.attention else expected[0].dtype
    scale = max(1.0, *(mx.abs(logits).max().item() for logits in expected))
    return float(TOLERANCE.get(dtype, HALF_TOLERANCE) * scale)


def _largest_error(
    model: Any,
    layout: CacheLayout,
    reader: Reader,
    wanted: head.WantedRows | None,
    prompts: list[Int32Array],
    expected: list[mx.array],
) -> float:
    store = KVStore(layout, BLOCK_SIZE, BLOCKS)
    states = StockRows(model) if reader is Reader.STOCK else StateBank()
    runner = Runner(model, make_caches(layout, store.slabs, reader), states, reader, BLOCK_SIZE, wanted)
    rows = [_row(store, i, prompt) for i, prompt in enumerate(prompts)]
    worst = 0.0
    for number, step in enumerate(STEPS):
        scheduled = [ScheduledRow(rows[i], rows[i].computed, n, wants_token=True) for i, n in step]
        plan = StepPlan(number, scheduled, np.empty((0, 2), np.int32))
        logits = runner.forward(plan, None)
        if logits.errors:
            raise RuntimeError("; ".join(map(str, logits.errors.values())))
        for result, s in zip(logits.values, logits.rows, strict=True):
            s.row.computed += s.count
            difference = mx.abs(result.astype(mx.float32) - expected[s.row.id][s.row.computed - 1])
            worst = max(worst, float(difference.max().item()))
    return float(worst) if math.isfinite(worst) else math.inf


def _row(store: KVStore, row_id: int, prompt: Int32Array) -> Sequence:
    row = Sequence(row_id, TokenBuffer(prompt), len(prompt), 1, Sampling(), frozenset())
    blocks = store.pool.allocate(-(-len(prompt) // BLOCK_SIZE))
    row.table = blocks[::-1].copy()
    return row
