"""Serves one loaded model over the link: messages in, one frame of row updates per step out."""

from __future__ import annotations

import logging
import time

import mlx.core as mx

from pomona._core import StepPlanner
from pomona.config import WorkerOptions
from pomona.kv.readers import Reader
from pomona.kv.row_states import StateBank, StockRows
from pomona.link.messages import (
    Cancel,
    FinishReason,
    Heartbeat,
    Loaded,
    ModelInfo,
    PoolStats,
    RowUpdate,
    StepOutput,
    Stop,
    Submit,
    ToWorker,
)
from pomona.worker.connection import Connection, heartbeats
from pomona.worker.engine import Engine
from pomona.worker.model import LoadedModel, dtype_name, synchronize
from pomona.worker.runner import Runner
from pomona.worker.scheduler import RowRefusedError, Scheduler

log = logging.getLogger(__name__)

IDLE_WAIT_S = 0.5
# A step always takes this much prefill, however slow the model: below it, the fixed cost of a step wins.
MIN_CHUNK_TOKENS = 4


def make_engine(loaded: LoadedModel, options: WorkerOptions, look_ahead: bool) -> Engine:
    """Scheduler and runner for a loaded model."""
    states = StockRows(loaded.model) if loaded.reader is Reader.STOCK else StateBank()
    planner = StepPlanner(
        options.block_size,
        budget_s=options.prefill_budget_ms / 1000,
        min_chunk=MIN_CHUNK_TOKENS,
        reserve_tokens=options.reserve_tokens,
    )
    scheduler = Scheduler(
        loaded.store,
        states,
        planner,
        context_tokens=loaded.context_tokens,
        vocab_size=loaded.vocab_size,
        max_rows=options.max_rows,
    )
    runner = Runner(loaded.model, loaded.caches, states, loaded.reader, options.block_size, loaded.wanted)
    return Engine(scheduler, runner, look_ahead, over_prefill=mx.default_device() == mx.gpu)


class Service:
    """The worker's main loop. Runs on the thread that does all MLX work."""

    def __init__(self, connection: Connection, engine: Engine) -> None:
        self._connection = connection
        self._engine = engine
        self._progress_at = time.monotonic()
        self._stopping = False

    def run(self, loaded: LoadedModel, options: WorkerOptions, blas: str) -> None:
        """Announce the model, then serve until told to stop or the server has gone."""
        info = model_info(loaded, options, self._engine, blas)
        self._connection.send(Loaded(info))
        with heartbeats(self._connection, self._heartbeat):
            try:
                self._loop()
            finally:
                self._engine.settle()
                synchronize()

    def _loop(self) -> None:
        while not self._stopping:
            timeout = 0.0 if self._engine.busy else IDLE_WAIT_S
            updates = [update for m in self._connection.receive(timeout) for update in self._handle(m)]
            if self._engine.busy:
                updates += self._engine.step()
            self._progress_at = time.monotonic()
            if updates:
                self._connection.send(StepOutput(updates))

    def _handle(self, message: ToWorker) -> list[RowUpdate]:
        match message:
            case Submit():
                log.debug(
                    "row %d belongs to request %s: %d tokens",
                    *(message.id, message.request_id, message.prompt_tokens),
                )
                try:
                    self._engine.scheduler.submit(message)
                except RowRefusedError as error:
                    log.info("row %d of request %s refused: %s", message.id, message.request_id, error)
                    return [RowUpdate(message.id, finish=FinishReason.ERROR, error=str(error))]
            case Cancel():
                self._engine.scheduler.cancel(message.id)
            case Stop():
                self._stopping = True
        return []

    def _heartbeat(self) -> Heartbeat:
        scheduler = self._engine.scheduler
        counters, pool = scheduler.counters, scheduler.store.pool
        return Heartbeat(
            idle_s=time.monotonic() - self._progress_at,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            pool=PoolStats(pool.capacity, pool.in_use, pool.idle, pool.free, pool.quarantined),
            steps=counters.steps,
            prefill_tokens=counters.prefill_tokens,
            decode_tokens=counters.decode_tokens,
            parked=counters.parked,
        )


def model_info(loaded: LoadedModel, options: WorkerOptions, engine: Engine, blas: str) -> ModelInfo:
    return ModelInfo(
        model_type=str(loaded.config.get("model_type")),
        context_tokens=loaded.context_tokens,
        pool_tokens=engine.scheduler.pool_tokens,
        block_size=options.block_size,
        reader=str(loaded.reader),
        recurrent=bool(loaded.layout.recurrent),
        dtype=dtype_name(loaded.layout),
        vocab_size=loaded.vocab_size,
        weights_bytes=loaded.weights_bytes,
        kv_bytes_per_token=loaded.layout.bytes_per_token,
        look_ahead=engine.look_ahead,
        blas=blas,
        notes=loaded.notes,
    )
