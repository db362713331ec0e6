"""A conversation as token ids, with the positions where its messages end (boundaries).

Boundaries are places worth a snapshot of recurrent state: the next turn of the same conversation
agrees with this one up to one of them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from pomona.conversation.conversation import Conversation, Role
from pomona.conversation.errors import InvalidRequestError
from pomona.text.template import ChatTemplate, RenderMessage, TemplateRefusedError, to_messages
from pomona.text.tokenizer import Encoding, Tokenizer

# Each costs one more rendering, so only the ends that a next turn may share are looked for.
LAST_MESSAGE_ENDS = 4


@dataclass(frozen=True, slots=True)
class Prompt:
    ids: list[int]
    boundaries: list[int]  # token positions, ascending, inside the prompt


class PromptBuilder:
    """Thread-safety: `build` may run in any thread; it takes about 1 s per million tokens."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self._tokenizer = tokenizer
        self._template = template

    def build(self, conversation: Conversation) -> Prompt:
        if self._template is None:
            raise InvalidRequestError(
                "This model has no chat template, so it cannot be used for chat. Use an instruct model, or "
                "put a chat_template.jinja into its folder.",
                "model",
                "no_chat_template",
            )
        messages = to_messages(conversation)
        text = self._template.render(messages, add_generation_prompt=True)
        encoding = self._tokenizer.encode(text)
        if not encoding.ids:
            raise InvalidRequestError("The messages are empty once rendered.", "messages")
        ends = _message_ends(self._template, messages, text)
        return Prompt(encoding.ids, _token_positions(encoding, ends))


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
