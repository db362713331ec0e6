"""Decode steps in process: through the engine, and by nothing but the model call."""

from __future__ import annotations

import time
from typing import Any

import common
import mlx.core as mx
import numpy as np

from pairs import Timed
from pomona import _ops
from pomona._core import StepPlanner
from pomona.config import WorkerOptions
from pomona.kv.readers import Reader
from pomona.link.messages import RowUpdate
from pomona.worker.model import LoadedModel
from pomona.worker.sequence import Int32Array

PREFILL_CHUNK = 256
NO_COPIES = np.empty((0, 2), np.int32)
GREEDY = _ops.DrawRule(0.0)


class EngineRows:
    """Greedy rows in an engine, past their prompts; nothing else runs in it."""

    def __init__(self, loaded: LoadedModel, options: WorkerOptions, prompts: list[list[int]]) -> None:
        self._engine = common.engine(loaded, options)
        self.answers: list[list[int]] = [[] for _ in prompts]
        for i, prompt in enumerate(prompts):
            limit = options.pool_tokens or loaded.context_tokens
            self._engine.scheduler.submit(common.request(i, prompt, limit))
        while not all(self.answers):
            self._take(self._engine.step())
        self.settle()

    def step(self) -> None:
        self._take(self._engine.step())

    def settle(self) -> None:
        self._take(self._engine.settle())

    def end(self) -> None:
        for i in range(len(self.answers)):
            self._engine.scheduler.cancel(i)

    def _take(self, updates: list[RowUpdate]) -> None:
        for update in updates:
            if update.error or update.finish:
                raise RuntimeError(f"row {update.id} ended: {update.error or update.finish}")
            self.answers[update.id] += update.tokens


class BareRows:
    """The same rows by the model call and the draw alone: same kernels, caches and look-ahead, no scheduler.

    Rows hold blocks for `tokens` tokens each from the start. For models without recurrent layers that are
    read through pages.
    """

    def __init__(self, loaded: LoadedModel, prompts: list[list[int]], tokens: int) -> None:
        if loaded.reader is not Reader.PAGED or loaded.layout.recurrent:
            raise SystemExit(f"models of type {loaded.config['model_type']} cannot be run without the engine")
        self._loaded = loaded
        self._block_size = loaded.store.block_size
        blocks = -(-tokens // self._block_size)
        self._tables = np.stack([loaded.store.pool.allocate(blocks) for _ in prompts])
        first = [self._prefill(i, prompt) for i, prompt in enumerate(prompts)]
        self._tokens = mx.concatenate(first)
        self._lengths = np.array([len(prompt) for prompt in prompts], np.int32)
        self._read: list[list[int]] = []
        mx.eval(self._tokens)

    @property
    def answers(self) -> list[list[int]]:
        return [list(row) for row in zip(*self._read, self._tokens.tolist(), strict=True)]

    def step(self) -> None:
        """Dispatch a step, then read the one before."""
        previous = self._tokens
        rows = np.arange(len(self._lengths), dtype=np.int32)
        self._tokens = self._next(previous[:, None], rows, self._lengths, None)
        mx.async_eval(self._tokens)
        self._lengths = self._lengths + np.int32(1)
        self._read.append(previous.tolist())

    def settle(self) -> None:
        mx.eval(self._tokens)

    def end(self) -> None:
        self.settle()
        for table in self._tables:
            self._loaded.store.pool.release(table)

    def _prefill(self, row: int, prompt: list[int]) -> mx.array:
        """The first token after a prompt, int32 [1]."""
        for start in range(0, len(prompt), PREFILL_CHUNK):
            chunk = np.array(prompt[start : start + PREFILL_CHUNK], np.int32)
            positions = np.arange(start, start + len(chunk), dtype=np.int32)
            rows = np.full(len(chunk), row, np.int32)
            token = self._next(mx.array(chunk)[:, None], rows, positions, mx.array([len(chunk) - 1]))
            mx.eval(token)
        return token[-1:]

    def _next(
        self, ids: mx.array, rows: Int32Array, positions: Int32Array, wanted: mx.array | None
    ) -> mx.array:
        """Greedy tokens after ids [T, 1] of these rows and positions; `wanted`: of which token rows."""
        block, within = np.divmod(positions, self._block_size)
        slots = (self._tables[rows, block] * self._block_size + within).astype(np.int32)
        table = _ops.StepTable(self._block_size, self._tables, rows, positions + 1, slots, NO_COPIES)
        if self._loaded.wanted is not None:
            self._loaded.wanted.rows = wanted
        self._loaded.caches.bind(table, mx.array(positions), None)
        logits = self._loaded.model(ids, cache=self._loaded.caches.layers).reshape(
            -1, self._loaded.vocab_size
        )
        return _ops.choose(logits, [GREEDY] * len(logits), [0] * len(logits))


class StockRow:
    """One row by mlx-lm's unmodified model and cache, one step ahead too."""

    def __init__(self, model: Any, prompt: list[int]) -> None:
        from mlx_lm.models.cache import make_prompt_cache

        self._model = model
        self._cache = make_prompt_cache(model)
        self._tokens = _argmax(model, mx.array([prompt]), self._cache)
        self.settle()

    def step(self) -> None:
        previous = self._tokens
        self._tokens = _argmax(self._model, previous[:, None], self._cache)
        mx.async_eval(self._tokens)
        previous.tolist()

    def settle(self) -> None:
        mx.eval(self._tokens)


Rows = EngineRows | BareRows | StockRow


def step_seconds(rows: Rows, steps: int) -> Timed:
    """Seconds per step over `steps` of them, with none left in flight before and after."""

    def measure() -> float:
        started = time.perf_counter()
        for _ in range(steps):
            rows.step()
        rows.settle()
        return (time.perf_counter() - started) / steps

    return measure


def prompts(loaded: LoadedModel, rows: int, tokens: int, seed: int) -> list[list[int]]:
    return [common.prompt(loaded, tokens, seed + i) for i in range(rows)]


def prefill_seconds(
    loaded: LoadedModel, options: WorkerOptions, tokens: int, seed: int, planner: StepPlanner
) -> float:
    """Time to the first token of a prompt alone, with a planner that knows the rate."""
    engine = common.engine(loaded, options)
    engine.scheduler.planner = planner
    engine.scheduler.submit(common.request(1, common.prompt(loaded, tokens, seed), 1))
    started = time.perf_counter()
    while engine.busy:
        updates: list[RowUpdate] = engine.step()
        if any(update.finish for update in updates):
            break
    seconds = time.perf_counter() - started
    engine.settle()
    return seconds


def equal_answers(a: list[list[int]], b: list[list[int]]) -> bool:
    """Whether two ways gave the same tokens, as far as both went."""
    tokens = [zip(one, other, strict=False) for one, other in zip(a, b, strict=True)]
    return all(x == y for row in tokens for x, y in row)


def _argmax(model: Any, ids: mx.array, cache: list[Any]) -> mx.array:
    """int32 [B]: the likeliest token after each row's last id."""
    logits = model(ids, cache=cache)
    return mx.argmax(logits[:, -1, :], axis=-1).astype(mx.int32)
