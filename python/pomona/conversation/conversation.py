"""A conversation: messages of typed parts, as every API's request is translated to.

Values only. `canonical` makes equal conversations equal; `text.template` turns one into a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
class RawText:
    """Text to continue as it is, without a chat template."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenIds:
    """The same, as the model's own tokens."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Infill:
    """What comes before and after the text that is wanted."""

    prefix: RawText | TokenIds
    suffix: str


Source = Conversation | RawText | TokenIds | Infill


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How tokens are drawn. None: the model's own default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # 0: all
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class StopOptions:
    """When an answer ends, besides where the model itself ends it."""

    max_tokens: int | None = None  # None: what fits
    # Nothing ends an answer before; stop strings are looked for in what comes after these.
    min_tokens: int = 0
    strings: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What to continue and how. Each source gets `n` answers; source i's k-th is choice i * n + k."""

    sources: tuple[Source, ...]
    sampling: SamplingOptions = SamplingOptions()
    stop: StopOptions = StopOptions()
    n: int = 1
    best_of: int | None = None  # so many are computed, of which the n most likely ones are answers
    logprobs: int | None = None  # k: of each token, and of the k most likely ones in its place
    echo: bool = False  # begin each answer with its source

    @property
    def computed(self) -> int:
        """Rows per source."""
        return self.best_of or self.n
