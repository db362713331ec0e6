"""A model's chat template: found in its folder, compiled once, rendered in jinja2's sandbox.

The surroundings are those templates are written for: transformers' filters and globals, plus the few
names that published templates use beyond them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pomona.conversation.conversation import Conversation
from pomona.conversation.errors import InvalidRequestError, ModelLoadError
from pomona.text.model_files import read_json

RenderMessage = dict[str, Any]
# Of a folder with several named templates.
PREFERRED_NAME = "default"
# Templates index and call what they like; any of these is the template's own refusal.
TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
)


class TemplateRefusedError(InvalidRequestError):
    """The template itself raised on this conversation."""


class ChatTemplate:
    """Thread-safety: rendering shares nothing between calls."""

    def __init__(self, source: str, named_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._named_tokens = dict(named_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelLoadError(f"The chat template has an error in line {error.lineno}: {error}") from error
        self._absent: dict[str, Any] = {"tools": None, "documents": None}
        if not self._accepts_a_chat():
            # Tool-use variants loop over what a plain chat has not; jinja2's undefined is an empty loop.
            self._absent = {}

    @staticmethod
    def load(folder: Path, named_tokens: Mapping[str, str]) -> ChatTemplate | None:
        source = _find_source(folder)
        return None if source is None else ChatTemplate(source, named_tokens)

    def render(self, messages: Sequence[RenderMessage], *, add_generation_prompt: bool) -> str:
        variables = {
            **self._named_tokens,
            **self._absent,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            # Firefunction's way to say tools and today.
            "functions": "[]",
            "datetime": _strftime_now("%Y-%m-%d"),
        }
        try:
            return self._template.render(variables)
        except SecurityError as error:
            raise TemplateRefusedError(f"The chat template is not allowed to do this: {error}") from error
        except TEMPLATE_ERRORS as error:
            raise TemplateRefusedError(
                f"The model's chat template does not accept these messages: {error}", "messages"
            ) from error

    def _accepts_a_chat(self) -> bool:
        try:
            self.render([{"role": "user", "content": "Hello"}], add_generation_prompt=True)
        except TemplateRefusedError:
            return False
        return True


def to_messages(conversation: Conversation) -> list[RenderMessage]:
    """Messages as templates read them. Content is one string: many templates take no parts."""
    return [{"role": message.role.value, "content": message.text} for message in conversation.messages]


# ---------------------------------------------------------------- where a template is found


def _find_source(folder: Path) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        source = _choose(read_json(folder / name).get("chat_template"))
        if source is not None:
            return source
    return None


def _choose(value: Any) -> str | None:
    """One template, or a list of named ones."""
    if isinstance(value, list):
        named = {
            item["name"]: item["template"]
            for item in value
            if isinstance(item, dict) and {"name", "template"} <= item.keys()
        }
        value = named.get(PREFERRED_NAME, next(iter(named.values()), None))
    return value if isinstance(value, str) else None


# ---------------------------------------------------------------- the environment


class GenerationTag(Extension):
    """`{% generation %}` marks the model's words for training; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Values are made for one rendering, so a template may append to its lists; nothing else changes."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, list) and attr == "append":
            return True
        return super().is_safe_attribute(obj, attr, value)


def _environment() -> jinja2.Environment:
    environment = TemplateEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.filters["fromjson"] = environment.filters["from_json"] = json.loads
    functions: dict[str, Callable[..., Any]] = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    environment.globals.update(functions)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: no HTML escaping, unlike jinja2's own filter."""
    if isinstance(value, Generator):
        value = list(value)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format_: str) -> str:
    """Today at midnight: a clock in the prompt would make every prompt a new one for the cache."""
    return datetime.combine(date.today(), time()).strftime(format_)
