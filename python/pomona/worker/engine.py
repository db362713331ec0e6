"""The step loop: plan, dispatch, and meanwhile take in the step before.

With look-ahead the next forward is on the device before the CPU work of the previous step begins; a row
that turns out to have ended then ran one token too many, which is dropped. On the CPU a step that
has prefill beside decoding rows is not overlapped: MLX holds the dispatching thread up while many tasks
are open, so the tokens of such a step would be read a whole step late.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from pomona.link.messages import RowUpdate
from pomona.worker.runner import CALL_ERRORS, InFlight, Runner
from pomona.worker.scheduler import Scheduler, StepInFlightError, StepPlan
from pomona.worker.sequence import RowState

log = logging.getLogger(__name__)


class Engine:
    """Runs steps. `step` returns the news of rows; the caller sends them."""

    def __init__(
        self, scheduler: Scheduler, runner: Runner, look_ahead: bool = True, over_prefill: bool = True
    ) -> None:
        self.scheduler = scheduler
        self.look_ahead = look_ahead
        self._over_prefill = over_prefill
        self.failed_steps = 0
        self._runner = runner
        self._in_flight: InFlight | None = None
        self._last_completion = 0.0

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting or self._in_flight)

    def step(self) -> list[RowUpdate]:
        """Dispatch one step and take in the one before (or this one, without look-ahead)."""
        updates: list[RowUpdate] = []
        if self._in_flight is not None and not self._may_overlap(self._in_flight.plan):
            updates += self.settle()
        try:
            plan = self.scheduler.plan()
        except StepInFlightError:
            updates += self.settle()
            plan = self.scheduler.plan()
        previous, self._in_flight = self._in_flight, None
        failed = False
        if plan is not None:
            try:
                self._in_flight = self._dispatch(plan, previous)
            except CALL_ERRORS:
                log.exception("a step of %d rows could not be built", len(plan.rows))
                failed = True
                self.failed_steps += 1
        updates += self._complete(previous)
        if self._in_flight is not None:
            updates += self._fail_rows(self._in_flight.errors)
        if plan is not None and failed:
            updates += self._isolate(plan)
        if not self.look_ahead:
            updates += self.settle()
        return updates + self.scheduler.take_updates()

    def settle(self) -> list[RowUpdate]:
        """Wait for the step in flight, if any."""
        in_flight, self._in_flight = self._in_flight, None
        return self._complete(in_flight)

    def _may_overlap(self, plan: StepPlan) -> bool:
        return self._over_prefill or not (plan.prefill_tokens and plan.decode_rows)

    def _dispatch(self, plan: StepPlan, previous: InFlight | None) -> InFlight:
        in_flight = self._runner.dispatch(plan, previous)
        self.scheduler.dispatched(plan)
        return in_flight

    def _complete(self, in_flight: InFlight | None) -> list[RowUpdate]:
        if in_flight is None:
            return []
        tokens = in_flight.read()
        completed_at = in_flight.completed.seconds
        seconds = completed_at - max(in_flight.dispatched_at, self._last_completion)
        self._last_completion = completed_at
        plan = in_flight.plan
        self.scheduler.planner.observe(plan.prefill_tokens, plan.decode_rows, seconds)
        return self.scheduler.complete(plan, tokens)

    def _fail_rows(self, errors: dict[int, Exception]) -> list[RowUpdate]:
        """End the rows (by id) whose part of a step could not be built."""
        for row_id, error in errors.items():
            log.error("row %d could not run", row_id, exc_info=error)
        return self.scheduler.fail_rows(errors)

    def _isolate(self, plan: StepPlan) -> list[RowUpdate]:
        """Run the rows of a step that could not be built one by one, so that only the guilty one ends."""
        updates: list[RowUpdate] = []
        for scheduled in plan.rows:
            if scheduled.row.state is not RowState.RUNNING:
                continue
            try:
                in_flight = self._dispatch(replace(plan, rows=[scheduled]), None)
            except CALL_ERRORS as error:
                updates += self._fail_rows({scheduled.row.id: error})
            else:
                updates += self._fail_rows(in_flight.errors) + self._complete(in_flight)
        self.scheduler.abandon(plan)
        return updates
