"""The steps of an answer, as every API serialises them.

A stream writes each event; a collected reply is the fold of the same events. `choice` is the index of
the answer an event belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pomona.conversation.errors import PomonaError


class StopReason(StrEnum):
    STOP = "stop"  # the model ended its turn
    LENGTH = "length"  # max_tokens or the room of a request was reached


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0  # of the prompt, found in the prefix cache
    reasoning_tokens: int = 0  # of the completion


@dataclass(frozen=True, slots=True)
class Started:
    """The request is valid and admitted; its prompt has this length."""

    prompt_tokens: int
    choice: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Nothing new for a while. `progress` is the part of the prompt that is computed, 0 to 1."""

    progress: float
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    reason: StopReason
    usage: Usage
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer ends here, incomplete."""

    error: PomonaError
    choice: int = 0


Event = Started | TextDelta | Heartbeat | Finished | Failed
