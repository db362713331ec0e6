"""A conversation: messages of typed parts, as every API's request is translated to.

Values only. `canonical` makes equal conversations equal; `text.template` turns one into a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


Part = TextPart


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content)


@dataclass(frozen=True, slots=True)
class Conversation:
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A conversation and how to continue it. None: the model's own default."""

    conversation: Conversation
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
