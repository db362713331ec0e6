"""Makes equal prompts equal, so that they share cached blocks however a client wrote them.

A string and its list of one text part become the same; adjacent text parts become one; empty parts go.
"""

from __future__ import annotations

from collections.abc import Iterable

from pomona.conversation.conversation import Conversation, Message, Part, TextPart


def canonical(conversation: Conversation) -> Conversation:
    return Conversation(tuple(_canonical_message(message) for message in conversation.messages))


def _canonical_message(message: Message) -> Message:
    return Message(message.role, _merge_text(message.content))


def _merge_text(parts: Iterable[Part]) -> tuple[Part, ...]:
    text = "".join(part.text for part in parts)
    return (TextPart(text),) if text else ()
