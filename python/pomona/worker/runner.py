"""Runs one step: builds the model calls of a plan, dispatches them and samples, all lazily.

Models without recurrent layers get all tokens of a step as one packed call [T, 1], every token a batch
row with its own position. Recurrent models get one call for the decoding rows and one per prefill
chunk; models read through gathered K/V get one call per row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import mlx.core as mx
import numpy as np

from pomona import _ops
from pomona.kv.readers import ModelCaches, Reader, State
from pomona.kv.row_states import StateBank, StockRows
from pomona.link.messages import TokenLogprobs
from pomona.worker.head import WantedRows
from pomona.worker.logprobs import LazyLogprobs, logprobs_of
from pomona.worker.penalties import shape_rows
from pomona.worker.sampler import GREEDY, Draw, sample
from pomona.worker.scheduler import RowResult, ScheduledRow, StepPlan
from pomona.worker.sequence import Int32Array

CALL_ERRORS = (ValueError, TypeError, RuntimeError, IndexError)
"""What building a model call can raise for bad input of one row. Errors of the device surface when a
step is read; those end the worker."""

UNUSED = Draw(GREEDY, 0)
"""For rows whose logits nobody reads."""


@dataclass(slots=True)
class InFlight:
    """A dispatched step. Its tokens may not have been computed yet."""

    plan: StepPlan
    rows: list[ScheduledRow]
    """In the order of the model calls, without those whose call could not be built."""
    tokens: mx.array
    """int32 [rows]; of rows that wanted none they mean nothing."""
    index: dict[int, int]
    """Row id to its place in `rows`."""
    errors: dict[int, Exception]
    """Rows whose call could not be built, by id."""
    dispatched_at: float
    completed: _ops.Moment
    logprobs: list[tuple[list[int], LazyLogprobs]]
    """Of the sampled tokens, for groups of rows that want them, by id."""
    prompt_logprobs: dict[int, LazyLogprobs]

    def read(self) -> dict[int, RowResult]:
        """Wait for the step; what it gave each row of its calls, by row id."""
        values: list[int] = self.tokens.tolist()
        drawn: dict[int, TokenLogprobs] = {}
        for row_ids, lazy in self.logprobs:
            drawn.update(zip(row_ids, lazy.read(), strict=True))
        results = {}
        for s, token in zip(self.rows, values, strict=True):
            row_id = s.row.id
            prompt = self.prompt_logprobs.get(row_id)
            results[row_id] = RowResult(
                token if s.wants_token else None, drawn.get(row_id), [] if prompt is None else prompt.read()
            )
        return results


@dataclass(slots=True)
class ModelCall:
    """Rows that go through the model together as ids of shape [batch, length]."""

    rows: list[ScheduledRow]
    packed: bool
    token_rows: int = field(init=False)
    plain: bool = field(init=False)
    """Whether every row runs one token and wants its logits alone."""

    def __post_init__(self) -> None:
        self.token_rows = sum(s.count for s in self.rows)
        self.plain = self.token_rows == len(self.rows) and not any(s.scores for s in self.rows)


@dataclass(slots=True)
class Logits:
    """What a step's model calls give, lazily."""

    values: mx.array
    """[rows, vocabulary]: each row's last token."""
    rows: list[ScheduledRow]
    errors: dict[int, Exception]
    scores: dict[int, mx.array] = field(default_factory=dict)
    """By row id: the logits at the positions in `ScheduledRow.scores`, where there are any."""
    states: list[tuple[ModelCall, State]] = field(default_factory=list)
    """Recurrent states after each call."""


class Runner:
    """Turns plans into model calls. `caches` must have been made for the slabs behind the plans' tables;
    `states` is a StockRows exactly when the reader is the stock one.
    """

    def __init__(
        self,
        model: Any,
        caches: ModelCaches,
        states: StateBank | StockRows,
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
        """Start a step. Tokens that `previous` has sampled but nobody has read are taken lazily.

        Raises one of CALL_ERRORS when a call of several rows could not be built; nothing has run then.
        """
        started = _ops.Moment.now()
        logits = self._build(plan, previous)
        # Every row gets logits (a chunk in mid-prompt too): they are what makes MLX run its graph.
        draws = [_draw(s, previous) if s.wants_token else UNUSED for s in logits.rows]
        completed = _ops.Moment()
        tokens = mx.zeros(0, mx.int32)
        if draws:
            shaped, errors = shape_rows(logits.values, [draw.shape for draw in draws])
            logits.errors.update({logits.rows[i].row.id: error for i, error in errors.items()})
            tokens = sample(shaped, draws)
        drawn, prompt = _drawn_logprobs(logits, tokens), _prompt_logprobs(logits)
        lazies = [*(lazy for _, lazy in drawn), *prompt.values()]
        scores = [array for lazy in lazies for array in lazy.arrays()]
        tokens = _ops.stamp(tokens, completed)
        self._keep_states(logits)
        mx.async_eval(tokens, *scores, *self._states.arrays([s.row.id for s in logits.rows]))
        index = {s.row.id: i for i, s in enumerate(logits.rows)}
        return InFlight(plan, logits.rows, tokens, index, logits.errors, started, completed, drawn, prompt)

    def forward(self, plan: StepPlan, previous: InFlight | None) -> Logits:
        """All model calls of a step, without sampling."""
        logits = self._build(plan, previous)
        self._keep_states(logits)
        return logits

    def _build(self, plan: StepPlan, previous: InFlight | None) -> Logits:
        """Build all model calls of a step. A call of one row that fails is noted as that row's error."""
        done: list[tuple[ModelCall, mx.array, State]] = []
        errors: dict[int, Exception] = {}
        for call in self._split(plan):
            try:
                done.append((call, self._call(call, plan, previous), self._state_after()))
            except CALL_ERRORS as error:
                if len(call.rows) > 1:
                    raise
                errors[call.rows[0].row.id] = error
        rows: list[ScheduledRow] = []
        values: list[mx.array] = []
        scores: dict[int, mx.array] = {}
        for call, logits, _ in done:
            rows += call.rows
            at = len(call.rows)
            values.append(logits if call.plain else logits[:at])
            for s in [] if call.plain else call.rows:
                if s.scores:
                    scores[s.row.id] = logits[at : at + len(s.scores)]
                    at += len(s.scores)
        joined = mx.concatenate(values) if values else mx.zeros((0, 1))
        return Logits(joined, rows, errors, scores, [(call, state) for call, _, state in done])

    def _keep_states(self, logits: Logits) -> None:
        """Only once the whole step has been built: what fails must leave the rows' states as they were."""
        for call, state in logits.states:
            self._keep_state(call, state)

    # ------------------------------------------------------------------ calls

    def _split(self, plan: StepPlan) -> list[ModelCall]:
        if self._reader is not Reader.PAGED:
            return [ModelCall([s], packed=False) for s in plan.rows]
        if not self._caches.recurrent:
            return [ModelCall(plan.rows, packed=True)]
        assert isinstance(self._states, StateBank)
        decode = [s for s in plan.rows if s.count == 1 and s.row.id in self._states]
        rest = [s for s in plan.rows if s not in decode]
        calls = [ModelCall([s], packed=False) for s in rest]
        return [ModelCall(decode, packed=True), *calls] if decode else calls

    def _call(self, call: ModelCall, plan: StepPlan, previous: InFlight | None) -> mx.array:
        """Logits [N, vocabulary]: of the last token of each row, then of the positions in their `scores`."""
        ids = self._token_ids(call, previous)
        ids = ids[:, None] if call.packed else ids[None, :]
        wanted = _wanted(call)
        if self._wanted is not None:
            self._wanted.rows = wanted
        logits: mx.array = self._model(ids, cache=self._bind(call, plan))
        logits = logits.reshape(-1, logits.shape[-1])
        return logits if wanted is None or self._wanted is not None else logits[wanted]

    def _bind(self, call: ModelCall, plan: StepPlan) -> list[Any]:
        """The `cache=` argument of a call."""
        if isinstance(self._states, StockRows):
            return self._states.caches(call.rows[0].row.id)
        offset = mx.array(_positions(call)) if call.packed else call.rows[0].start
        state = self._states.get([s.row.id for s in call.rows]) if self._caches.recurrent else None
        self._caches.bind(self._table(call, plan), offset, state)
        return self._caches.layers

    def _state_after(self) -> State:
        """The recurrent state of the call just built, free of views into larger arrays."""
        return [[mx.contiguous(array) for array in layer] for layer in self._caches.state()]

    def _keep_state(self, call: ModelCall, state: State) -> None:
        if isinstance(self._states, StockRows) or not state:
            return
        self._states.put([s.row.id for s in call.rows], state)
        if len(call.rows) == 1 and call.rows[0].start < call.rows[0].row.prompt_tokens:
            call.rows[0].state = state

    def _token_ids(self, call: ModelCall, previous: InFlight | None) -> mx.array:
        """Ids int32 [T] of a call; unread tokens are picked out of the previous step's array."""
        if call.plain and previous is not None and all(s.row.unread for s in call.rows):
            return _pick(previous.tokens, [previous.index[s.row.id] for s in call.rows])
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

    def _table(self, call: ModelCall, plan: StepPlan) -> _ops.StepTable:
        rows = call.rows
        blocks = [s.row.table for s in rows]
        copies = plan.copies
        if len(copies):
            # A copy belongs to the call whose row writes into the new block.
            copies = copies[np.isin(copies[:, 1], np.concatenate(blocks))]
        return _ops.StepTable.of_rows(
            self._block_size, blocks, [s.start for s in rows], [s.count for s in rows], copies
        )


def _positions(call: ModelCall) -> Int32Array:
    """Of a call's tokens, int32 [T]."""
    if call.token_rows == len(call.rows):
        return np.array([s.start for s in call.rows], np.int32)
    return np.concatenate([np.arange(s.start, s.start + s.count, dtype=np.int32) for s in call.rows])


def _wanted(call: ModelCall) -> mx.array | None:
    """The token rows of a call that get logits; None when each does, in their order."""
    if call.plain:
        return None
    ends = list(accumulate(s.count for s in call.rows))
    wanted = [end - 1 for end in ends]
    for s, end in zip(call.rows, ends, strict=True):
        wanted += [position - s.start + end - s.count for position in s.scores]
    return mx.array(wanted)


def _pick(tokens: mx.array, places: list[int]) -> mx.array:
    """tokens[places]; nothing to compute when the rows are those of the step before."""
    return tokens if places == list(range(tokens.size)) else tokens[mx.array(places)]


def _draw(s: ScheduledRow, previous: InFlight | None) -> Draw:
    row = s.row
    if row.shaper is None:
        return Draw(row.rule, row.generated)
    unread = None
    if row.unread:
        assert previous is not None
        place = previous.index[row.id]
        unread = previous.tokens[place : place + 1]
    answer = row.tokens.view(row.prompt_tokens)
    return Draw(row.rule, row.generated, partial(row.shaper.apply, answer=answer, unread=unread))


def _drawn_logprobs(logits: Logits, tokens: mx.array) -> list[tuple[list[int], LazyLogprobs]]:
    """Logprobs of the sampled tokens for the rows that want them; rows that want as many go together."""
    groups: dict[int, list[int]] = {}
    for i, s in enumerate(logits.rows):
        if s.wants_token and s.row.sampling.logprobs is not None:
            groups.setdefault(s.row.sampling.logprobs, []).append(i)
    found = []
    for top, places in groups.items():
        at = mx.array(places)
        row_ids = [logits.rows[i].row.id for i in places]
        found.append((row_ids, logprobs_of(tokens[at], logits.values[at], top)))
    return found


def _prompt_logprobs(logits: Logits) -> dict[int, LazyLogprobs]:
    found = {}
    for s in logits.rows:
        if s.scores:
            assert s.row.prompt_logprobs is not None
            targets = s.row.tokens.view(s.scores.start + 1, s.scores.stop + 1)
            values = logits.scores[s.row.id]
            found[s.row.id] = logprobs_of(mx.array(targets), values, s.row.prompt_logprobs)
    return found
