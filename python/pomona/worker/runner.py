"""Runs one step: builds the model calls of a plan, dispatches them and samples, all lazily.

Models without recurrent layers get all tokens of a step as one packed call [T, 1], every token a batch
row with its own position. Recurrent models get one call for the decoding rows and one per prefill
chunk; models read through gathered K/V get one call per row.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from pomona import _ops
from pomona.kv.readers import ModelCaches, Reader, State
from pomona.kv.state_bank import StateBank
from pomona.link.messages import Sampling
from pomona.worker.head import WantedRows
from pomona.worker.sampler import Draw, sample
from pomona.worker.scheduler import ScheduledRow, StepPlan
from pomona.worker.sequence import Int32Array

UNUSED = Draw(Sampling(temperature=0.0), 0)
"""For rows whose logits nobody reads."""


@dataclass(slots=True)
class InFlight:
    """A dispatched step. Its tokens may not have been computed yet."""

    plan: StepPlan
    tokens: mx.array
    """int32 [rows that wanted a token], in call order."""
    index: dict[int, int]
    """Row id to its place in `tokens`."""
    dispatched_at: float

    def read(self) -> list[int]:
        """Wait for the step and return the tokens in plan order."""
        values: list[int] = self.tokens.tolist()
        return [values[self.index[s.row.id]] for s in self.plan.rows if s.wants_token]


@dataclass(slots=True)
class ModelCall:
    """Rows that go through the model together as ids of shape [batch, length]."""

    rows: list[ScheduledRow]
    packed: bool

    @property
    def token_rows(self) -> int:
        return sum(s.count for s in self.rows)


class Runner:
    """Turns plans into model calls. `caches` must have been made for `store`'s slabs."""

    def __init__(
        self,
        model: Any,
        caches: ModelCaches,
        states: StateBank,
        reader: Reader,
        block_size: int,
        wanted: WantedRows | None,
    ) -> None:
        self._model = model
        self._caches = caches
        self._states = states
        self._reader = reader
        self._block_size = block_size
        self._wanted = wanted

    def dispatch(self, plan: StepPlan, previous: InFlight | None) -> InFlight:
        """Start a step. Tokens that `previous` has sampled but nobody has read are taken lazily."""
        started = time.perf_counter()
        logits, order = self.forward(plan, previous)
        # Every row gets logits (a chunk in mid-prompt too): they are what makes MLX run its graph.
        draws = [Draw(s.row.sampling, s.row.generated) if s.wants_token else UNUSED for s in order]
        tokens = sample(logits, draws)
        mx.async_eval(tokens, *self._states.arrays([s.row.id for s in order]))
        return InFlight(plan, tokens, {s.row.id: i for i, s in enumerate(order)}, started)

    def forward(self, plan: StepPlan, previous: InFlight | None) -> tuple[mx.array, list[ScheduledRow]]:
        """Logits [rows, vocabulary] of each row's last token, and the rows in that order."""
        calls = self._split(plan)
        logits, states = [], []
        for call in calls:
            logits.append(self._call(call, plan, previous))
            states.append(self._state_after())
        # Only now: a call that fails must leave the rows' states as they were.
        if self._caches.recurrent:
            for call, state in zip(calls, states, strict=True):
                self._keep_state(call, state)
        joined = logits[0] if len(logits) == 1 else mx.concatenate(logits)
        return joined, [s for call in calls for s in call.rows]

    # ------------------------------------------------------------------ calls

    def _split(self, plan: StepPlan) -> list[ModelCall]:
        if self._reader is Reader.GATHERED:
            return [ModelCall([s], packed=False) for s in plan.rows]
        if not self._caches.recurrent:
            return [ModelCall(plan.rows, packed=True)]
        decode = [s for s in plan.rows if s.count == 1 and s.row.id in self._states]
        rest = [s for s in plan.rows if s not in decode]
        calls = [ModelCall([s], packed=False) for s in rest]
        return [ModelCall(decode, packed=True), *calls] if decode else calls

    def _call(self, call: ModelCall, plan: StepPlan, previous: InFlight | None) -> mx.array:
        """Logits [rows of the call, vocabulary]."""
        ids = self._token_ids(call, previous)
        positions = np.concatenate([np.arange(s.start, s.start + s.count) for s in call.rows]).astype(np.int32)
        table = self._table(call, plan, positions)
        if call.packed:
            ids, offset = ids[:, None], mx.array(positions)
        else:
            ids, offset = ids[None, :], call.rows[0].start
        row_ids = [s.row.id for s in call.rows]
        last = np.cumsum([s.count for s in call.rows]) - 1
        self._caches.bind(table, offset, self._states.get(row_ids) if self._caches.recurrent else None)
        if self._wanted is not None:
            self._wanted.rows = mx.array(last.astype(np.int32))
        logits: mx.array = self._model(ids, cache=self._caches.layers)
        logits = logits.reshape(-1, logits.shape[-1])
        return logits if self._wanted is not None else logits[mx.array(last.astype(np.int32))]

    def _state_after(self) -> State:
        """The recurrent state of the call just built, free of views into larger arrays."""
        return [[mx.contiguous(array) for array in layer] for layer in self._caches.state()]

    def _keep_state(self, call: ModelCall, state: State) -> None:
        self._states.put([s.row.id for s in call.rows], state)
        if len(call.rows) == 1 and call.rows[0].start < call.rows[0].row.prompt_tokens:
            call.rows[0].state = state

    def _token_ids(self, call: ModelCall, previous: InFlight | None) -> mx.array:
        """Ids int32 [T] of a call; unread tokens are picked out of the previous step's array."""
        ids = np.zeros(call.token_rows, np.int32)
        pick = np.arange(len(ids), dtype=np.int32)
        at, lazy = 0, False
        for s in call.rows:
            known = s.row.tokens.view(s.start, s.start + s.count)
            known = known[: max(0, len(s.row.tokens) - s.start)]
            ids[at : at + len(known)] = known
            if len(known) < s.count:
                assert previous is not None
                pick[at + len(known)] = len(ids) + previous.index[s.row.id]
                lazy = True
            at += s.count
        if not lazy:
            return mx.array(ids)
        assert previous is not None
        return mx.concatenate([mx.array(ids), previous.tokens])[mx.array(pick)]

    def _table(self, call: ModelCall, plan: StepPlan, positions: Int32Array) -> _ops.StepTable:
        counts = [s.count for s in call.rows]
        width = max(len(s.row.table) for s in call.rows)
        tables = np.full((len(call.rows), width), -1, np.int32)
        for i, s in enumerate(call.rows):
            tables[i, : len(s.row.table)] = s.row.table
        sequence = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        block, within = np.divmod(positions, self._block_size)
        slots = tables[sequence, block] * self._block_size + within
        # A copy belongs to the call whose row writes into the new block.
        copies = plan.copies[np.isin(plan.copies[:, 1], tables)]
        return _ops.StepTable(
            self._block_size, tables, sequence, positions + 1, slots.astype(np.int32), copies
        )
