"""Decides what runs in each step: admission, sharing of prefixes, parking, cancellation.

It owns every row from submission to its end and keeps the block tables; the runner only reads them.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pomona._core import OutOfBlocksError, StepPlanner, common_prefix
from pomona.kv.readers import State
from pomona.kv.row_states import RowStates
from pomona.kv.store import KVStore
from pomona.link.messages import FinishReason, RowUpdate, Submit, TokenLogprobs
from pomona.worker.penalties import make_shaper
from pomona.worker.sampler import FAILED, problem_with
from pomona.worker.sequence import EMPTY, AwaitedPrefix, Int32Array, RowState, Sequence, TokenBuffer

log = logging.getLogger(__name__)


NOTHING = range(0)


class StepInFlightError(Exception):
    """The plan needs a step in flight to complete first (its blocks, or the slabs themselves)."""


class RowRefusedError(Exception):
    """A submission that can never run; the text says why and what to do."""


@dataclass(slots=True)
class ScheduledRow:
    """One row's part of a step: tokens [start, start + count)."""

    row: Sequence
    start: int
    count: int
    wants_token: bool
    state: State | None = None
    """Recurrent state after a prefill chunk, filled in by the runner."""

    @property
    def scores(self) -> range:
        """Positions whose logits give a logprob (of the next token) that the row still wants."""
        if not self.row.wants_scores:
            return NOTHING
        end = min(self.start + self.count, self.row.prompt_tokens - 1)
        return range(max(self.start, self.row.scored), end)


@dataclass(slots=True)
class RowResult:
    """What a step has given for one row."""

    token: int | None = None
    logprobs: TokenLogprobs | None = None
    """The token's, if the row wants them."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)


@dataclass
class StepPlan:
    step: int
    rows: list[ScheduledRow]
    copies: Int32Array
    """Blocks to copy before the step writes: [n, 2] (source, destination)."""

    @cached_property
    def decode_rows(self) -> int:
        return sum(scheduled.count == 1 for scheduled in self.rows)

    @cached_property
    def prefill_tokens(self) -> int:
        return sum(scheduled.count for scheduled in self.rows if scheduled.count > 1)


@dataclass(slots=True)
class Counters:
    steps: int = 0
    computed_tokens: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    parked: int = 0


class Scheduler:
    """Rows are either waiting (in order of arrival, parked ones in front) or running (oldest first)."""

    def __init__(
        self,
        store: KVStore,
        states: RowStates,
        planner: StepPlanner,
        *,
        context_tokens: int,
        vocab_size: int,
        max_rows: int,
    ) -> None:
        self.store = store
        self.states = states
        self.planner = planner
        self.counters = Counters()
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._rows: dict[int, Sequence] = {}
        self._vocab_size = vocab_size
        self._max_rows = max_rows
        self._open_steps: deque[int] = deque()
        self._updates: list[RowUpdate] = []
        # A spare block is left for copy-on-write.
        self.pool_tokens = max(1, store.pool.capacity - 1) * store.block_size
        self.limit_tokens = min(context_tokens, self.pool_tokens)

    # ------------------------------------------------------------------ rows in and out

    def submit(self, request: Submit) -> Sequence:
        """Queue a row. Raises RowRefusedError when it can never run."""
        prompt = request.prompt()
        self._check(prompt, request)
        stop_ids = frozenset(request.stop_ids)
        row = Sequence(
            id=request.id,
            tokens=TokenBuffer(prompt),
            prompt_tokens=len(prompt),
            max_tokens=min(request.max_tokens, self.limit_tokens - len(prompt)),
            sampling=request.sampling,
            stop_ids=stop_ids,
            boundaries=self._boundaries(request, len(prompt)),
            shaper=make_shaper(request.sampling, stop_ids, prompt, self._vocab_size),
            prompt_logprobs=request.prompt_logprobs,
        )
        self._rows[row.id] = row
        self.waiting.append(row)
        return row

    def cancel(self, row_id: int) -> None:
        """Forget a row; what it has computed stays cached."""
        row = self._rows.get(row_id)
        if row is not None:
            self._end(row)

    def fail(self, row: Sequence, message: str) -> RowUpdate:
        """End a row with an error. Nothing more of it is published."""
        self._end(row, publish=False)
        return RowUpdate(row.id, finish=FinishReason.ERROR, error=message)

    def fail_rows(self, errors: dict[int, Exception]) -> list[RowUpdate]:
        """End the rows (by id) whose model call could not be built."""
        return [
            self.fail(self._rows[row_id], f"the request failed in the model: {error}")
            for row_id, error in errors.items()
            if row_id in self._rows
        ]

    # ------------------------------------------------------------------ planning

    def plan(self) -> StepPlan | None:
        """The next step, its blocks allocated; None when no row can run.

        Raises StepInFlightError when it must be asked again with no step in flight.
        """
        self._admit()
        rows = [row for row in self.running if not row.exhausted]
        while rows:
            shared = self.planner.plan(
                np.array([row.runnable for row in rows], np.int32),
                np.array([row.computed for row in rows], np.int32),
                *self._ledger(rows),
                self.store.pool.available,
            )
            if not shared.shortage and self._allocate(rows, shared.blocks.tolist()):
                return self._make_plan(rows, shared.tokens.tolist())
            self._require_settled()
            self._make_room(rows)
        return None

    def dispatched(self, plan: StepPlan) -> None:
        """The step is on the device: its tokens count as computed."""
        self._open_steps.append(plan.step)
        for scheduled in plan.rows:
            scheduled.row.computed = scheduled.start + scheduled.count
            scheduled.row.unread += scheduled.wants_token

    def complete(self, plan: StepPlan, results: dict[int, RowResult]) -> list[RowUpdate]:
        """Take in a step's results, by row id; rows that have ended since are passed over."""
        self._open_steps.remove(plan.step)
        self.store.pool.complete_step(plan.step)
        self.counters.steps += 1
        self.counters.computed_tokens += plan.prefill_tokens + plan.decode_rows
        self.counters.prefill_tokens += plan.prefill_tokens
        return [
            self._advance(scheduled, results.get(scheduled.row.id, RowResult()))
            for scheduled in plan.rows
            if scheduled.row.state is RowState.RUNNING
        ]

    def abandon(self, plan: StepPlan) -> None:
        """The step was never dispatched as a whole: give back what waits for its end."""
        self.store.pool.complete_step(plan.step)

    def take_updates(self) -> list[RowUpdate]:
        """News that planning itself has made."""
        updates, self._updates = self._updates, []
        return updates

    # ------------------------------------------------------------------ admission

    def _check(self, prompt: Int32Array, request: Submit) -> None:
        if not len(prompt):
            raise RowRefusedError("the prompt has no tokens")
        if request.max_tokens < 1:
            raise RowRefusedError("max_tokens must be at least 1")
        if prompt.min() < 0 or prompt.max() >= self._vocab_size:
            raise RowRefusedError(f"a token id is outside the model's vocabulary of {self._vocab_size}")
        if len(prompt) >= self.limit_tokens:
            raise RowRefusedError(
                f"the prompt has {len(prompt)} tokens and at most {self.limit_tokens - 1} fit; "
                "shorten it, or give the server a larger KV pool if the model's context allows it"
            )
        problem = problem_with(request.sampling, frozenset(request.stop_ids), self._vocab_size)
        if problem is not None:
            raise RowRefusedError(problem)
        if request.prompt_logprobs is not None and request.prompt_logprobs < 0:
            raise RowRefusedError("prompt_logprobs must not be negative")

    def _boundaries(self, request: Submit, prompt_tokens: int) -> tuple[int, ...]:
        """Where chunks must end so that a recurrent state can be kept.

        The last token runs apart: an exact repeat of the prompt then resumes right before it.
        """
        if not (self.store.stateful and self.store.shared):
            return ()
        ends = set(np.frombuffer(request.boundaries, "<i4").tolist()) | {prompt_tokens - 1}
        return tuple(sorted(end for end in ends if 0 < end < prompt_tokens))

    def _admit(self) -> None:
        for row in list(self.waiting):
            if len(self.running) >= self._max_rows:
                return
            if self._prefix_in_flight(row):
                continue
            if not self._start(row):
                return  # nobody overtakes a row that lacks memory

    def _prefix_in_flight(self, row: Sequence) -> bool:
        """Whether a running row is computing a prefix of this one that is worth waiting for."""
        if row.awaited is not None and row.awaited.coming:
            return True
        row.awaited = self._find_prefix(row)
        return row.awaited is not None

    def _find_prefix(self, row: Sequence) -> AwaitedPrefix | None:
        if not self.store.shared:
            return None
        tokens = row.tokens.view()
        limit = row.reusable
        cached = -1
        for other in self.running:
            if not other.prefilling:
                continue
            common = min(common_prefix(tokens, other.tokens.view()), limit)
            if self.store.stateful:
                common = max((b for b in other.boundaries if b <= common), default=0)
            if common < self.store.block_size:
                continue
            if cached < 0:
                cached = self.store.cached_tokens(tokens, limit)
            if common - cached >= self.store.block_size:
                return AwaitedPrefix(other, common - self.store.block_size)
        return None

    def _start(self, row: Sequence) -> bool:
        """Give a waiting row its cached prefix and a reservation; False when memory is short."""
        store, tokens = self.store, row.tokens.view()
        prefix = store.match(tokens, row.reusable)
        partial = prefix.tokens % store.block_size != 0
        reserved = self.planner.reservation(len(tokens), row.max_tokens - row.generated)
        need = reserved - len(prefix.blocks) + partial
        ledger = self._ledger(self.running)
        table = prefix.blocks.copy()
        if not self.planner.admits(need, *ledger, store.pool.available) or (
            partial and not self._make_writable(table)
        ):
            store.pool.release(table)
            return False
        self.waiting.remove(row)
        self.running.append(row)
        row.state = RowState.RUNNING
        row.table = table
        row.reserved = reserved
        row.computed = row.confirmed = row.published = prefix.tokens
        if row.cached is None:
            row.cached = prefix.tokens
        if prefix.state is not None:
            self.states.restore(row.id, prefix.state)
        return True

    def _make_writable(self, table: Int32Array) -> bool:
        """Replace the shared last block of a new row's table by a copy of its own."""
        self._free_up(1)
        previous = int(table[-2]) if len(table) > 1 else -1
        try:
            table[-1] = self.store.pool.copy_on_write(int(table[-1]), previous)
        except OutOfBlocksError:
            return False
        return True

    # ------------------------------------------------------------------ blocks

    def _ledger(self, rows: list[Sequence]) -> tuple[Int32Array, Int32Array]:
        """(blocks held, blocks reserved) per row."""
        return (
            np.array([len(row.table) for row in rows], np.int32),
            np.array([row.reserved for row in rows], np.int32),
        )

    def _free_up(self, blocks: int) -> bool:
        """Evict idle blocks until `blocks` are free."""
        pool = self.store.pool
        if pool.free < blocks:
            self.store.evict(blocks - pool.free)
        return pool.free >= blocks

    def _allocate(self, rows: list[Sequence], counts: list[int]) -> bool:
        """Extend the tables; False (and nothing taken) when the blocks aren't free yet."""
        if not self._free_up(sum(counts)):
            return False
        for row, count in zip(rows, counts, strict=True):
            if count:
                after = int(row.table[-1]) if len(row.table) else -1
                row.table = np.concatenate([row.table, self.store.pool.allocate(count, after)])
        return True

    def _make_plan(self, rows: list[Sequence], counts: list[int]) -> StepPlan:
        if self.store.must_grow:
            self._require_settled()
            self.store.grow()
        step = self.store.pool.begin_step()
        scheduled = [
            ScheduledRow(row, row.computed, count, wants_token=count == row.pending)
            for row, count in zip(rows, counts, strict=True)
            if count
        ]
        # A row that was left out keeps its copy for the step in which it first writes.
        writes = np.array([s.row.table[s.start // self.store.block_size] for s in scheduled], np.int32)
        return StepPlan(step, scheduled, self.store.pool.take_copies(step, writes))

    def _require_settled(self) -> None:
        if self._open_steps:
            raise StepInFlightError

    def _make_room(self, rows: list[Sequence]) -> None:
        """Park the youngest row: its blocks stay cached, it goes back to the head of the queue."""
        row = rows.pop()
        if len(self.running) == 1:
            # Alone and still short: blocks it shares with its own cached past are all that is left.
            self._updates.append(RowUpdate(row.id, finish=FinishReason.LENGTH))
            self._end(row)
            return
        self.counters.parked += 1
        log.debug("row %d parked at %d tokens", row.id, row.confirmed)
        self._publish(row)
        state = self.states.snapshot(row.id)
        if state is not None:
            self.store.publish_state(row.tokens.view(0, row.confirmed), state)
        self._release(row)
        row.state = RowState.WAITING
        row.computed = row.confirmed = row.published = 0
        self.waiting.appendleft(row)

    # ------------------------------------------------------------------ results

    def _advance(self, scheduled: ScheduledRow, result: RowResult) -> RowUpdate:
        row, token = scheduled.row, result.token
        row.scored += len(result.prompt_logprobs)
        row.confirmed = scheduled.start + scheduled.count
        finish: FinishReason | None = None
        fresh: list[int] = []
        if token is not None:
            row.unread -= 1
            if token == FAILED:
                return self.fail(row, "the model's output was not a number; the request can't go on")
            if token in row.stop_ids:
                finish = FinishReason.STOP
            else:
                row.tokens.append(token)
                fresh = [token]
                self.counters.decode_tokens += 1
                if len(row.tokens) - row.prompt_tokens >= row.max_tokens:
                    finish = FinishReason.LENGTH
        self._publish_progress(scheduled)
        if finish is not None:
            self._end(row)
        return RowUpdate(
            row.id,
            tokens=fresh,
            prompt_done=min(row.confirmed, row.prompt_tokens),
            cached_tokens=row.cached or 0,
            finish=finish,
            logprobs=[result.logprobs] if fresh and result.logprobs is not None else [],
            prompt_logprobs=result.prompt_logprobs,
        )

    def _publish_progress(self, scheduled: ScheduledRow) -> None:
        """Make finished prefill chunks and full decode blocks visible."""
        row = scheduled.row
        if scheduled.start < row.prompt_tokens or row.confirmed - row.published >= self.store.block_size:
            self._publish(row)
            if scheduled.state is not None:
                self._keep_state(scheduled, scheduled.state)

    def _keep_state(self, scheduled: ScheduledRow, state: State) -> None:
        """Hang a chunk's state on the tree. For good only at message ends and, between them, once per
        doubling of the length: others serve an aborted prefill until the next chunk is done.
        """
        row = scheduled.row
        handle = self.store.publish_state(row.tokens.view(0, row.confirmed), state)
        self.store.drop_state(row.passing_state)
        doubled = row.confirmed.bit_length() > scheduled.start.bit_length()
        row.passing_state = 0 if doubled or row.confirmed in row.boundaries else handle

    def _publish(self, row: Sequence) -> None:
        if row.confirmed <= row.published:
            return
        blocks = -(-row.confirmed // self.store.block_size)
        own = row.table[:blocks]
        shared = self.store.publish(row.tokens.view(0, row.confirmed), own)
        row.table = np.concatenate([shared, row.table[blocks:]])
        row.published = row.confirmed

    def _end(self, row: Sequence, publish: bool = True) -> None:
        if row.state is RowState.WAITING:
            self.waiting.remove(row)
        else:
            if publish:
                self._publish(row)
            self._release(row)
        row.state = RowState.ENDED
        del self._rows[row.id]

    def _release(self, row: Sequence) -> None:
        self.running.remove(row)
        self.store.pool.release(row.table)
        self.states.drop(row.id)
        row.table = EMPTY
        row.reserved = 0
        row.passing_state = 0
