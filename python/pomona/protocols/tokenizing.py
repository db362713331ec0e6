"""POST /tokenize, /detokenize and /apply_template: a model's text side on its own.

llama.cpp's routes of these names take and give the same fields.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from pomona.conversation.conversation import Conversation
from pomona.conversation.errors import InvalidRequestError
from pomona.protocols.openai_chat import Messages, to_conversation
from pomona.protocols.openai_fields import TokenId
from pomona.protocols.openai_wire import encode


class TokenizingBody(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    model: str | None = None


class TokenizeRequest(TokenizingBody):
    """Either `content`, or `messages` as the chat endpoint would render them."""

    content: str | None = None
    messages: Messages | None = None
    add_special: bool | None = None  # begin with the tokenizer's own BOS, if it has one


class DetokenizeRequest(TokenizingBody):
    tokens: list[TokenId]


class ApplyTemplateRequest(TokenizingBody):
    messages: Messages


def to_source(body: TokenizeRequest) -> str | Conversation:
    if (body.content is None) == (body.messages is None):
        raise InvalidRequestError(
            "Send either 'content' or 'messages'.",
            "content",
            "missing_required_parameter" if body.content is None else "invalid_value",
        )
    if body.content is not None:
        return body.content
    if body.add_special:
        raise InvalidRequestError(
            "'add_special' goes with 'content'; a chat template writes special tokens itself.",
            "add_special",
            "invalid_value",
        )
    assert body.messages is not None
    return to_conversation(body.messages)


def tokens_reply(tokens: list[int]) -> bytes:
    return encode({"tokens": tokens, "count": len(tokens)})


def content_reply(content: str) -> bytes:
    return encode({"content": content})


def prompt_reply(prompt: str) -> bytes:
    return encode({"prompt": prompt})
