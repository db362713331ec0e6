"""Drives an engine in-process, and stock mlx-lm beside it as the oracle.

The oracle is mlx-lm's own `generate_step` on a model of its own, one sequence at a time. A token of ours may
differ from its choice only where the oracle's logits of the two lie within MARGIN of each other; the oracle
then goes on from our token, so every position is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from pomona._core import StepPlanner
from pomona.config import WorkerOptions
from pomona.kv import seam
from pomona.kv.readers import Reader, make_caches
from pomona.kv.row_states import StateBank, StockRows
from pomona.kv.store import KVStore
from pomona.link.messages import FinishReason, RowUpdate, Sampling, Submit, TokenLogprobs
from pomona.worker.engine import Engine
from pomona.worker.model import LoadedModel, load
from pomona.worker.runner import Runner
from pomona.worker.scheduler import Scheduler

MARGIN = 1e-3
GREEDY = Sampling(temperature=0.0)
MAX_STEPS = 20_000


@dataclass
class MarginCount:
    """Tokens compared with the oracle in this test session, and those that differ within MARGIN."""

    tokens: int = 0
    exceptions: int = 0


margin_count = MarginCount()


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    error: str | None = None
    cached: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class ModelUnderTest:
    """One tiny model with our engine and the oracle; `engine()` makes a fresh pool each time."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.loaded: LoadedModel = load(WorkerOptions(model=str(folder), pool_tokens=4096, **options))
        seam.install()
        self.stock, _ = load_model(folder)
        self._oracle: dict[tuple[int, ...], tuple[int, mx.array]] = {}

    def engine(
        self,
        *,
        block_size: int = 16,
        pool_tokens: int = 4096,
        chunk: int = 4096,
        look_ahead: bool = True,
        reserve_tokens: int = 64,
        max_rows: int = 64,
        first_blocks: int | None = None,
        wrap_model: Callable[[Any], Any] = lambda model: model,
    ) -> Engine:
        layout, reader = self.loaded.layout, self.loaded.reader
        blocks = pool_tokens // block_size
        store = KVStore(layout, block_size, blocks, snapshot_bytes=1 << 28, first_blocks=first_blocks)
        states = StockRows(self.loaded.model) if reader is Reader.STOCK else StateBank()
        # Chunk sizes come from the cap alone, not from measured time: tests must not depend on the clock.
        planner = StepPlanner(
            block_size, budget_s=1e9, min_chunk=chunk, max_step_tokens=chunk, reserve_tokens=reserve_tokens
        )
        scheduler = Scheduler(
            store,
            states,
            planner,
            context_tokens=self.loaded.context_tokens,
            vocab_size=self.loaded.vocab_size,
            max_rows=max_rows,
        )
        caches = make_caches(layout, store.slabs, reader)
        model = wrap_model(self.loaded.model)
        return Engine(
            scheduler, Runner(model, caches, states, reader, block_size, self.loaded.wanted), look_ahead
        )

    def prompt(self, length: int, seed: int) -> list[int]:
        return np.random.default_rng(seed).integers(30, 400, length).tolist()

    def next_token(self, prefix: list[int]) -> tuple[int, mx.array]:
        """The oracle's greedy token after `prefix` and its log probabilities, mlx-lm's way."""
        key = tuple(prefix)
        if key not in self._oracle:
            self._extend(prefix, 1)
        return self._oracle[key]

    def _extend(self, prefix: list[int], count: int) -> None:
        sequence = list(prefix)
        for token, logprobs in generate_step(mx.array(prefix), self.stock, max_tokens=count):
            self._oracle[tuple(sequence)] = (int(token), logprobs)
            sequence.append(int(token))

    def check(self, prompt: list[int], answer: list[int]) -> int:
        """Assert that every token of `answer` is the oracle's, by the margin rule; returns the exceptions."""
        if not answer:
            return 0
        exceptions = 0
        self._extend(prompt, len(answer))
        for i, token in enumerate(answer):
            prefix = prompt + answer[:i]
            if tuple(prefix) not in self._oracle:
                self._extend(prefix, len(answer) - i)
            expected, logprobs = self._oracle[tuple(prefix)]
            if token != expected:
                margin = (logprobs[expected] - logprobs[token]).item()
                assert margin < MARGIN, f"token {i}: {token} for {expected}, margin {margin:.2e}"
                exceptions += 1
        margin_count.tokens += len(answer)
        margin_count.exceptions += exceptions
        return exceptions


def submission(row_id: int, prompt: list[int], max_tokens: int, **changes: Any) -> Submit:
    fields: dict[str, Any] = {"sampling": GREEDY, "stop_ids": []} | changes
    return Submit(row_id, Submit.pack(prompt), max_tokens=max_tokens, **fields)


class Collector:
    """Folds row updates into answers."""

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}

    def take(self, updates: list[RowUpdate]) -> None:
        for update in updates:
            answer = self.answers.setdefault(update.id, Answer())
            assert answer.finish is None, "news of a row that has ended"
            answer.tokens += update.tokens
            answer.logprobs += update.logprobs
            answer.finish = update.finish
            answer.error = update.error
            answer.cached = max(answer.cached, update.cached_tokens)


def run(
    engine: Engine,
    requests: list[Submit],
    arrivals: list[int] | None = None,
    cancellations: dict[int, int] | None = None,
    allowed_failures: int = 0,
) -> dict[int, Answer]:
    """Submit each request at its step, cancel rows at theirs ({id: step}), run until idle.

    Any step that could not be built counts as a failure, unless the test put a faulty model there.
    """
    collector = Collector()
    pending = sorted(zip(arrivals or [0] * len(requests), range(len(requests)), strict=True))
    cancel_at = dict(cancellations or {})
    for step in range(MAX_STEPS):
        while pending and pending[0][0] <= step:
            engine.scheduler.submit(requests[pending.pop(0)[1]])
        for row_id in [r for r, at in cancel_at.items() if at <= step]:
            engine.scheduler.cancel(row_id)
            del cancel_at[row_id]
        if engine.busy:
            collector.take(engine.step())
        elif not pending:
            check_idle(engine)
            assert engine.failed_steps <= allowed_failures
            return collector.answers
    raise AssertionError(f"not finished after {MAX_STEPS} steps")


def check_idle(engine: Engine) -> None:
    """Nothing runs: no block may be held by a row or wait for a step."""
    pool = engine.scheduler.store.pool
    assert (pool.in_use, pool.quarantined) == (0, 0)
    assert pool.idle + pool.free == pool.capacity


def is_paged(subject: ModelUnderTest) -> bool:
    return subject.loaded.reader is Reader.PAGED
