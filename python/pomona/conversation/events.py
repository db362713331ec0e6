"""The steps of an answer, as every API serialises them.

A stream writes each event; a collected reply is the fold of the same events. `choice` is the index of
the answer an event belongs to; a heartbeat is of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pomona.conversation.errors import PomonaError


class StopReason(StrEnum):
    STOP = "stop"  # the model ended its turn, or a stop string or stop id was met
    LENGTH = "length"  # max_tokens or the room of a request was reached


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0  # of the prompt, found in the prefix cache
    reasoning_tokens: int = 0  # of the completion

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of an answer and its natural log probability; None for a prompt's first, which has none.

    `offset` is the number of characters that the answer surely has before it: one that holds the end of a
    character and the start of another counts from the first.
    """

    token: bytes
    logprob: float | None
    top: tuple[tuple[bytes, float], ...]  # the most likely ones, in that order
    offset: int


@dataclass(frozen=True, slots=True)
class Started:
    """The request is valid and admitted; the prompt of this choice has this length.

    These come for all choices before any other event.
    """

    prompt_tokens: int
    choice: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """`logprobs` are those of the tokens that begin in this text, where they are asked for."""

    text: str
    choice: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Nothing new for a while. `progress` is the part of the prompt that is computed, 0 to 1."""

    progress: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A prompt counts in the usage of its first choice alone, so that the sum is that of the request."""

    reason: StopReason
    usage: Usage
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer ends here, incomplete."""

    error: PomonaError
    choice: int = 0


Event = Started | TextDelta | Heartbeat | Finished | Failed
