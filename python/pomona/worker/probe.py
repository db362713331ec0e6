"""Chooses a model's reader and fused ops at load, by comparing logits with stock mlx-lm.

Two rows are run through the real runner the way the server runs rows: a prompt in chunks, a second row
joining, single tokens side by side, in small scattered blocks. The first reader whose logits agree
is taken; the paged one is tried first.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
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
from pomona.worker.substitutions import Installer, Substitutions, float32_activations

log = logging.getLogger(__name__)

BLOCK_SIZE = 4
BLOCKS = 16
ROW_TOKENS = (9, 7)
# Tokens of each row per step: (row, count).
STEPS = (((0, 6),), ((0, 1), (1, 4)), ((0, 1), (1, 1)), ((1, 2), (0, 1)))

# Largest accepted difference of logits, as a share of the largest logit. The models run with float32
# activations, so only the order of sums differs; HALF is for those that insist on half precision.
FLOAT32 = 1e-3
HALF = 0.1


@dataclass(slots=True)
class ReaderChoice:
    reader: Reader | None
    layout: CacheLayout
    vocab_size: int
    wanted: head.WantedRows | None = None
    ops: Substitutions = field(default_factory=Substitutions)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Installed:
    """What one attempt has substituted in the model."""

    ops: Substitutions
    selected: head.SelectedHead | None

    @property
    def wanted(self) -> head.WantedRows | None:
        return self.selected.wanted if self.selected else None

    def undo(self) -> None:
        if self.selected:
            self.selected.substitution.undo()
        self.ops.undo()

    @property
    def words(self) -> str:
        parts = [("fused ops", self.ops.done), ("row selection", self.selected)]
        there = [words for words, part in parts if part]
        return f" with {' and '.join(there)}" if there else ""


def choose_reader(model: Any, layout: CacheLayout, reader: str = "auto", fused: bool = True) -> ReaderChoice:
    """Try readers (or the one asked for) until one agrees with stock mlx-lm.

    On success the model is left substituted: its head as `wanted` says, and with `fused` what the table of
    substitutions admits. A reader is tried without fused ops where it fails with them.
    """
    oracle = _Oracle(model)
    choice = ReaderChoice(None, layout, oracle.vocab_size)
    ops = Installer(model) if fused else None
    for candidate in _candidates(layout, reader):
        if candidate is Reader.STOCK and not choice.layout.opaque:
            choice.layout = opaque_layout(model)
        reasons: dict[str, str] = {}
        for installed in _attempts(model, ops, candidate):
            reason = oracle.objection(choice.layout, candidate, installed.wanted)
            if not reason:
                choice.reader, choice.wanted, choice.ops = candidate, installed.wanted, installed.ops
                choice.notes += (fallbacks := _notes(candidate, reasons))
                for note in fallbacks:
                    log.warning("%s", note)
                return choice
            reasons[installed.words] = reason
            installed.undo()
        choice.notes += _notes(candidate, {"": reason} if len({*reasons.values()}) == 1 else reasons)
    return choice


def _notes(reader: Reader, reasons: dict[str, str]) -> list[str]:
    return [f"{reader} reader{words} not used ({reason})" for words, reason in reasons.items()]


def _attempts(model: Any, ops: Installer | None, reader: Reader) -> Iterator[_Installed]:
    """The model with substitutions, the fullest first. The caller undoes one before it takes the next."""
    for with_ops in (True, False) if ops else (False,):
        for selective in (True, False):
            done = ops.install(reader is Reader.PAGED) if ops and with_ops else Substitutions()
            installed = _Installed(done, head.install(model) if selective else None)
            if (with_ops and not done.done) or (selective and installed.selected is None):
                installed.undo()
            else:
                yield installed


def _candidates(layout: CacheLayout, reader: str) -> list[Reader]:
    if reader != "auto":
        return [Reader(reader)]
    return [Reader.STOCK] if layout.opaque else list(Reader)


def _prompt(seed: int, length: int) -> Int32Array:
    """Small ids, so that they exist in any vocabulary and mean nothing special."""
    return ((np.arange(length) * 7 + 11 * seed + 5) % 97).astype(np.int32)


class _Oracle:
    """Stock mlx-lm's logits of two prompts, and what the model gives through a reader."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._prompts = [_prompt(i, n) for i, n in enumerate(ROW_TOKENS)]
        with float32_activations(model):
            logits = [self._stock_logits(prompt) for prompt in self._prompts]
        mx.eval(logits)
        self._expected = [values.astype(mx.float32) for values in logits]
        self._share = FLOAT32 if logits[0].dtype == mx.float32 else HALF
        self._half = self._stock_logits(self._prompts[0][:1]).dtype != mx.float32

    @property
    def vocab_size(self) -> int:
        return int(self._expected[0].shape[-1])

    def _stock_logits(self, prompt: Int32Array) -> mx.array:
        return self._model(mx.array(prompt)[None], cache=stock.make_prompt_cache(self._model))[0]

    def objection(self, layout: CacheLayout, reader: Reader, wanted: head.WantedRows | None) -> str:
        """Why this reader can't be used; empty when it agrees."""
        try:
            with float32_activations(self._model):
                error = self._largest_error(layout.in_dtype(mx.float32), reader, wanted)
            # In its own dtype the model must run, but there is nothing exact to compare with.
            runs = not self._half or math.isfinite(self._largest_error(layout, reader, wanted))
        except Exception as failure:  # whatever model code raises: this reader does not fit
            return f"{type(failure).__name__}: {failure}"
        if not runs:
            return "logits are not finite"
        scale = max(1.0, *(float(mx.abs(logits).max().item()) for logits in self._expected))
        return "" if error <= self._share * scale else f"logits differ by {error:.1e}"

    def _largest_error(self, layout: CacheLayout, reader: Reader, wanted: head.WantedRows | None) -> float:
        store = KVStore(layout, BLOCK_SIZE, BLOCKS)
        states = StockRows(self._model) if reader is Reader.STOCK else StateBank()
        caches = make_caches(layout, store.slabs, reader)
        runner = Runner(self._model, caches, states, reader, BLOCK_SIZE, wanted)
        rows = [_row(store, i, prompt) for i, prompt in enumerate(self._prompts)]
        errors = []
        for number, step in enumerate(STEPS):
            scheduled = [ScheduledRow(rows[i], rows[i].computed, n, wants_token=True) for i, n in step]
            plan = StepPlan(number, scheduled, np.empty((0, 2), np.int32))
            logits = runner.forward(plan, None)
            if logits.errors:
                raise RuntimeError("; ".join(map(str, logits.errors.values())))
            for result, s in zip(logits.values, logits.rows, strict=True):
                s.row.computed += s.count
                expected = self._expected[s.row.id][s.row.computed - 1]
                errors.append(float(mx.abs(result.astype(mx.float32) - expected).max().item()))
        return max(errors) if all(map(math.isfinite, errors)) else math.inf


def _row(store: KVStore, row_id: int, prompt: Int32Array) -> Sequence:
    row = Sequence(row_id, TokenBuffer(prompt), len(prompt), 1, Sampling(), frozenset())
    blocks = store.pool.allocate(-(-len(prompt) // BLOCK_SIZE))
    row.table = blocks[::-1].copy()
    return row
