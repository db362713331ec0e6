"""How long to wait before a lost worker is started again, and when to leave it at that."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

# Losses further back than this are forgotten.
WINDOW_S = 600.0
# A worker that has served this long starts the back-off anew when it is lost.
STABLE_S = 60.0
BACKOFF_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    backoff_s: float = 1.0  # before the first restart; doubled for each further one
    limit: int = 5  # restarts within WINDOW_S


class RestartBudget:
    """Counts losses. Not for more than one worker."""

    def __init__(self, policy: RestartPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._losses: deque[float] = deque()
        self._in_a_row = 0

    @property
    def losses(self) -> int:
        """Within the window."""
        return len(self._losses)

    def take(self, served_s: float) -> float | None:
        """Note a loss after `served_s` of service. The seconds to wait, or None: do not start again."""
        now = self._clock()
        self._losses.append(now)
        while now - self._losses[0] > WINDOW_S:
            self._losses.popleft()
        self._in_a_row = 1 if served_s >= STABLE_S else self._in_a_row + 1
        if len(self._losses) > self._policy.limit:
            return None
        doublings = min(self._in_a_row - 1, 64)
        base_s = self._policy.backoff_s
        return float(min(base_s * 2**doublings, max(base_s, BACKOFF_LIMIT_S)))
