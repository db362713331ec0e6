"""Fields of a chat completion that are known but do nothing yet: refused unless they ask for nothing.

A field leaves this table when the server honours it. Fields that are in no table are unknown and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pomona.conversation.errors import UnsupportedParameterError


@dataclass(frozen=True, slots=True)
class Unsupported:
    feature: str
    # Values that ask for nothing; null always does.
    no_effect: tuple[Any, ...] = ()


TEXT_FORMAT = {"type": "text"}

CHAT_FIELDS: dict[str, Unsupported] = {
    "tools": Unsupported("Tool calling", ([],)),
    "tool_choice": Unsupported("Tool calling", ("none", "auto")),
    "functions": Unsupported("Function calling", ([],)),
    "function_call": Unsupported("Function calling", ("none", "auto")),
    "response_format": Unsupported("A response format other than text", (TEXT_FORMAT,)),
    "reasoning_effort": Unsupported("Reasoning effort"),
    "chat_template_kwargs": Unsupported("Chat template arguments", ({},)),
    "modalities": Unsupported("Output other than text", (["text"],)),
    "audio": Unsupported("Audio output"),
    "web_search_options": Unsupported("Web search"),
}

MESSAGE_FIELDS: dict[str, Unsupported] = {
    "tool_calls": Unsupported("Tool calling", ([],)),
    "function_call": Unsupported("Function calling"),
    "reasoning_content": Unsupported("Reasoning in the history", ("",)),
    "refusal": Unsupported("A refusal in the history", ("",)),
    "audio": Unsupported("Audio in the history"),
}


def refuse_unsupported(table: Mapping[str, Unsupported], given: Mapping[str, Any], prefix: str = "") -> None:
    for name, value in given.items():
        entry = table.get(name)
        if entry is None or value is None or _is_one_of(value, entry.no_effect):
            continue
        raise UnsupportedParameterError(
            prefix + name,
            f"{entry.feature} is not supported yet; send the request without '{prefix + name}'.",
        )


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Equal as JSON: true is not 1."""
    return any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in allowed)
