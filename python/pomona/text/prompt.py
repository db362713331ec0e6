"""What a request wants continued, as token ids, with the positions where messages end (boundaries).

Boundaries are places worth a snapshot of recurrent state: the next turn of the same conversation
agrees with this one up to one of them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from pomona.conversation.conversation import Conversation, Infill, RawText, Role, Source, TokenIds
from pomona.conversation.errors import InvalidRequestError
from pomona.text.infill import InfillTokens
from pomona.text.template import ChatTemplate, RenderMessage, TemplateRefusedError, to_messages
from pomona.text.tokenizer import Encoding, Tokenizer

# Each costs one more rendering, so only the ends that a next turn may share are looked for.
LAST_MESSAGE_ENDS = 4


@dataclass(frozen=True, slots=True)
class Prompt:
    ids: list[int]
    text: str
    boundaries: list[int] = field(default_factory=list)  # token positions, ascending, inside the prompt
    stop_ids: tuple[int, ...] = ()  # besides the model's own


class PromptBuilder:
    """Thread-safety: `build` may run in any thread; it takes about 1 s per million tokens."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._infill = InfillTokens.find(tokenizer)

    def build(self, source: Source) -> Prompt:
        """Never empty. Raises InvalidRequestError."""
        match source:
            case Conversation():
                return self._chat(source)
            case RawText(text=text):
                return Prompt(self._raw_ids(text), text)
            case TokenIds(ids=ids):
                return Prompt(list(ids), self._tokenizer.decode(list(ids)))
            case Infill():
                return self._fill(source)

    def render(self, conversation: Conversation) -> str:
        return self._render(to_messages(conversation))

    def _render(self, messages: list[RenderMessage]) -> str:
        return self._required_template().render(messages, add_generation_prompt=True)

    def _required_template(self) -> ChatTemplate:
        if self._template is None:
            raise InvalidRequestError(
                "This model has no chat template, so it cannot be used for chat. Use an instruct model, or "
                "put a chat_template.jinja into its folder.",
                "model",
                "no_chat_template",
            )
        return self._template

    def _chat(self, conversation: Conversation) -> Prompt:
        messages = to_messages(conversation)
        text = self._render(messages)
        encoding = self._tokenizer.encode(text)
        if not encoding.ids:
            raise InvalidRequestError("The messages are empty once rendered.", "messages")
        ends = _message_ends(self._required_template(), messages, text)
        return Prompt(encoding.ids, text, _token_positions(encoding, ends))

    def _raw_ids(self, text: str) -> list[int]:
        ids = self._tokenizer.encode_raw(text) or self._tokenizer.beginning
        if not ids:
            raise InvalidRequestError(
                "The prompt is empty, and this model has no token to begin a text with.", "prompt"
            )
        return ids

    def _fill(self, source: Infill) -> Prompt:
        if self._infill is None:
            raise InvalidRequestError(
                "This model cannot fill in the middle of a text: its tokenizer has no markers for that. Send "
                "the request without 'suffix', or use a code model that was trained for it.",
                "suffix",
                "unsupported_parameter",
            )
        match source.prefix:
            case RawText(text=text):
                prefix = self._tokenizer.encode(text).ids
            case TokenIds(ids=given):
                text, prefix = self._tokenizer.decode(list(given)), list(given)
        ids = self._infill.arrange(prefix, self._tokenizer.encode(source.suffix).ids)
        return Prompt([*self._tokenizer.opening, *ids], text, stop_ids=self._infill.stop_ids)


def _message_ends(template: ChatTemplate, messages: list[RenderMessage], text: str) -> list[int]:
    """Characters of `text` where a message ends; only where the shorter rendering is a prefix of it."""
    ends = []
    for count in _wanted_ends(messages):
        try:
            head = template.render(messages[:count], add_generation_prompt=False)
        except TemplateRefusedError:
            continue  # some templates want a user's message, or none but the system's
        if text.startswith(head):
            ends.append(len(head))
    return ends


def _wanted_ends(messages: list[RenderMessage]) -> list[int]:
    """Counts of leading messages: the first system message, and the last few."""
    total = len(messages)
    counts = set(range(max(1, total - LAST_MESSAGE_ENDS + 1), total + 1))
    if messages[0]["role"] == Role.SYSTEM:
        counts.add(1)
    return sorted(counts)


def _token_positions(encoding: Encoding, ends: list[int]) -> list[int]:
    """The last token that ends at or before each character, counted from 1."""
    if not encoding.ends:
        return []
    positions = {bisect_right(encoding.ends, end) for end in ends}
    return sorted(position for position in positions if 0 < position < len(encoding.ids))
