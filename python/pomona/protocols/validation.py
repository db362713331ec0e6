"""Request bodies to pydantic models, with errors that name the field as its API's users write it."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pomona.conversation.errors import InvalidRequestError

Body = TypeVar("Body", bound=BaseModel)


def parse_body(model: type[Body], data: bytes) -> Body:
    """Raises InvalidRequestError for the first thing that is wrong."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise _explain(error.errors(include_url=False, include_input=False)[0]) from None


def field_path(location: tuple[int | str, ...]) -> str:
    """("messages", 0, "role") is `messages[0].role`."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _explain(detail: Any) -> InvalidRequestError:
    kind: str = detail["type"]
    param = field_path(detail["loc"]) or None
    if kind == "json_invalid":
        return InvalidRequestError(f"The body is not valid JSON: {detail['msg']}.", code="invalid_json")
    if param is None:
        return InvalidRequestError("The body must be a JSON object.", code="invalid_type")
    if kind == "missing":
        return InvalidRequestError(
            f"Missing required parameter: '{param}'.", param, "missing_required_parameter"
        )
    code = "invalid_type" if kind.endswith("_type") else "invalid_value"
    return InvalidRequestError(f"Invalid value for '{param}': {_sentence(detail['msg'])}", param, code)


def _sentence(text: str) -> str:
    text = text.removeprefix("Value error, ")
    return text[:1].lower() + text[1:] + ("" if text.endswith(".") else ".")
