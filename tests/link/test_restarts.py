"""When a lost worker is started again, and when a running one counts as lost; by the test's own clock."""

from __future__ import annotations

import pytest

from pomona.link.liveness import LOADING_LIMIT_S, LivenessLimits, Pulse
from pomona.link.restarts import BACKOFF_LIMIT_S, STABLE_S, WINDOW_S, RestartBudget, RestartPolicy

LIMITS = LivenessLimits(heartbeat_s=10, wedge_s=100)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_wait_doubles_up_to_a_limit() -> None:
    budget = RestartBudget(RestartPolicy(backoff_s=1, limit=100), Clock())
    assert [budget.take(0) for _ in range(7)] == [1, 2, 4, 8, 16, BACKOFF_LIMIT_S, BACKOFF_LIMIT_S]
    assert [budget.take(0) for _ in range(80)][-1] == BACKOFF_LIMIT_S


def test_a_longer_wait_is_kept_as_it_is() -> None:
    budget = RestartBudget(RestartPolicy(backoff_s=600, limit=100), Clock())
    assert [budget.take(0) for _ in range(3)] == [600, 600, 600]


def test_a_worker_that_has_served_starts_the_wait_anew() -> None:
    budget = RestartBudget(RestartPolicy(backoff_s=1, limit=100), Clock())
    served = [0, STABLE_S - 1, STABLE_S, 0]
    assert [budget.take(s) for s in served] == [1, 2, 1, 2]


def test_the_limit_counts_within_the_window() -> None:
    clock = Clock()
    budget = RestartBudget(RestartPolicy(backoff_s=0, limit=2), clock)
    assert budget.take(0) == 0
    clock.now += WINDOW_S / 2
    assert budget.take(0) == 0
    clock.now += WINDOW_S / 2 + 1  # the first is forgotten
    assert budget.take(0) == 0
    assert budget.take(0) is None
    assert budget.losses == 3


def test_no_restarts_at_all() -> None:
    assert RestartBudget(RestartPolicy(limit=0), Clock()).take(1e6) is None


@pytest.mark.parametrize(
    ("pulse", "left", "fault"),
    [
        (Pulse(True, 0, 0), 10, None),
        (Pulse(True, 9, 9), 1, None),
        (Pulse(True, 10, 10), 0, "had not been heard of for 10 s"),
        (Pulse(True, 1, 95), 5, None),
        (Pulse(True, 1, 101), -1, "had made no progress for 101 s"),
        (Pulse(False, 30, 0), LOADING_LIMIT_S - 30, None),
        (Pulse(False, LOADING_LIMIT_S, 0), 0, "had not been heard of for 60 s"),
    ],
)
def test_silence_and_standstill(pulse: Pulse, left: float, fault: str | None) -> None:
    assert pulse.time_left_s(LIMITS) == left
    assert pulse.fault(LIMITS) == fault
