"""Keeps a worker running: the first start, a restart after each loss, and the end.

A lost worker's open requests fail at once with an error worth a retry; new ones are refused with a time
to come back until the next worker has loaded its model.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pomona.config import WorkerOptions
from pomona.conversation.errors import PomonaError, UnavailableError, WorkerLostError
from pomona.link.client import RowStream
from pomona.link.liveness import LivenessLimits
from pomona.link.messages import Heartbeat, ModelInfo, Submit
from pomona.link.process import DEFAULT_COMMAND, LOADING, STOPPED, WorkerProcess
from pomona.link.restarts import WINDOW_S, RestartBudget, RestartPolicy

log = logging.getLogger(__name__)

# What a client is told to wait when nobody knows.
RETRY_AFTER_S = 5


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Health:
    ready: bool
    reason: str
    state: State = State.READY


class Supervisor:
    """One worker at a time. `start` first, `stop` last; everything on one event loop."""

    def __init__(
        self,
        options: WorkerOptions,
        command: Sequence[str] = DEFAULT_COMMAND,
        policy: RestartPolicy | None = None,
        limits: LivenessLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._command = tuple(command)
        self._limits = limits or LivenessLimits()
        self._clock = clock
        self._budget = RestartBudget(policy or RestartPolicy(), clock)
        self._worker: WorkerProcess | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._info: ModelInfo | None = None
        self._state = State.STARTING
        self._reason = LOADING
        self._load_s = 0.0  # how long the last load took
        self._ready_at = 0.0  # when the model was, or should be, loaded
        self.restarts = 0

    async def start(self) -> ModelInfo:
        """Start the worker, wait for its model, and keep it running from then on.

        Raises ModelLoadError or WorkerLostError: a worker that has never loaded is not tried again.
        """
        info = await self._start_worker()
        self._keeper = asyncio.create_task(self._keep(), name="supervisor")
        return info

    @property
    def info(self) -> ModelInfo:
        """The model's, also while its worker is being restarted."""
        if self._info is None:
            raise UnavailableError(LOADING, RETRY_AFTER_S)
        return self._info

    @property
    def pid(self) -> int | None:
        return None if self._worker is None else self._worker.pid

    @property
    def heartbeat(self) -> Heartbeat | None:
        return None if self._worker is None else self._worker.heartbeat

    @property
    def open_rows(self) -> int:
        return 0 if self._worker is None else self._worker.open_rows

    def health(self) -> Health:
        if self._state is State.READY and self._worker is not None and self._worker.loss is not None:
            # The keeper has not come round yet.
            return Health(False, self._worker.loss.message, State.RESTARTING)
        return Health(self._state is State.READY, self._reason, self._state)

    def submit(self, row: Submit) -> RowStream:
        health = self.health()
        if self._worker is None or not health.ready:
            raise UnavailableError(health.reason, self._retry_after_s())
        return self._worker.submit(row)

    async def stop(self) -> None:
        """End the worker in good order; nothing is restarted any more. Safe to call again."""
        self._turn(State.STOPPED, STOPPED)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self._worker is not None:
            await self._worker.stop()

    def kill(self) -> None:
        """End the worker at once and wait for nothing."""
        if self._worker is not None:
            self._worker.kill()

    # ---------------------------------------------------------------- keeping it running

    async def _keep(self) -> None:
        while await self._recover(await self._loss()):
            pass

    async def _loss(self) -> PomonaError:
        assert self._worker is not None
        return await self._worker.wait_lost()

    async def _recover(self, loss: PomonaError) -> bool:
        """Start workers until one has loaded its model; False when it is time to leave it."""
        assert self._worker is not None
        served_s = self._clock() - self._ready_at
        while (delay := self._budget.take(served_s)) is not None:
            served_s = 0.0
            self._ready_at = self._clock() + delay + self._load_s
            self._turn(State.RESTARTING, f"{loss.message} It is being restarted.")
            log.warning("restart %d of the worker in %.1f s", self.restarts + 1, delay)
            await self._worker.stop()
            await asyncio.sleep(delay)
            self.restarts += 1
            try:
                await self._start_worker()
            except (PomonaError, OSError) as error:
                log.error("the worker could not be restarted: %s", error)
                loss = error if isinstance(error, PomonaError) else WorkerLostError(str(error))
                continue
            return True
        self._give_up(loss)
        await self._worker.stop()
        return False

    async def _start_worker(self) -> ModelInfo:
        started = self._clock()
        self._worker = WorkerProcess(self._options, self._command, self._limits, self._clock)
        self._info = await self._worker.start()
        self._ready_at = self._clock()
        self._load_s = self._ready_at - started
        self._turn(State.READY, "ready")
        return self._info

    def _give_up(self, loss: PomonaError) -> None:
        reason = (
            f"{loss.message} That was loss {self._budget.losses} within {WINDOW_S / 60:.0f} minutes, so it "
            "is not restarted any more: read the log, then restart the server."
        )
        log.critical("%s", reason)
        self._turn(State.FAILED, reason)

    def _turn(self, state: State, reason: str) -> None:
        self._state, self._reason = state, reason

    def _retry_after_s(self) -> int:
        if self._state is not State.RESTARTING:
            return RETRY_AFTER_S
        return max(1, math.ceil(self._ready_at - self._clock()))
