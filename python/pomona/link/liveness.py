"""When a worker that still runs counts as lost: silent for too long, or alive without progress."""

from __future__ import annotations

from dataclasses import dataclass

# Before its model is loaded a worker may be held up by the disk; it sends heartbeats all the same.
LOADING_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class LivenessLimits:
    # A worker sends a heartbeat every second, from a thread of its own.
    heartbeat_s: float = 10.0
    # A step takes a fraction of a second; an engine thread silent for this long will not come back.
    wedge_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Pulse:
    """How a worker was last seen."""

    loaded: bool
    silence_s: float  # since its last heartbeat
    idle_s: float  # since its engine last made progress

    def time_left_s(self, limits: LivenessLimits) -> float:
        """Until the worker counts as lost if nothing more is heard of it."""
        if not self.loaded:
            return max(LOADING_LIMIT_S, limits.heartbeat_s) - self.silence_s
        return min(limits.heartbeat_s - self.silence_s, limits.wedge_s - self.idle_s)

    def fault(self, limits: LivenessLimits) -> str | None:
        """Why the worker counts as lost, as the end of "The worker was ended because it ..."."""
        if self.time_left_s(limits) > 0:
            return None
        if self.loaded and self.silence_s < limits.heartbeat_s:
            return f"had made no progress for {self.idle_s:.0f} s"
        return f"had not been heard of for {self.silence_s:.0f} s"
