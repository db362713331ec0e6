"""A conversation with a server: messages, the request's own settings, answers as they come."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

from pomona.cli.client import Client, Delta, Usage
from pomona.cli.errors import CommandError
from pomona.config.definitions import did_you_mean
from pomona.config.private_file import write_private

# Fields of a request that /set may set; the server checks their values.
NUMBERS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "max_tokens",
    "min_tokens",
)
TEXTS = ("stop",)


class Chat:
    """`messages` holds whole turns only: a question without an answer is not kept."""

    def __init__(self, client: Client, model: str) -> None:
        self.model = model
        self.system = ""
        self.fields: dict[str, float | int | str] = {}
        self.messages: list[dict[str, str]] = []
        self.usage: Usage | None = None
        self._client = client

    def ask(self, text: str) -> Generator[Delta]:
        """The answer as it comes. Closed early, what came so far is kept as the answer."""
        question = {"role": "user", "content": text}
        answer = ""
        failed = False
        with closing(self._client.stream_chat(self._body(question))) as deltas:
            try:
                for delta in deltas:
                    answer += delta.text
                    self.usage = delta.usage or self.usage
                    yield delta
            except CommandError:
                failed = True
                raise
            finally:
                if answer and not failed:
                    self.messages += [question, {"role": "assistant", "content": answer}]

    def set(self, name: str, value: str) -> None:
        """Raises CommandError. The value none gives the field back to the server's default."""
        if name not in NUMBERS + TEXTS:
            known = ", ".join(NUMBERS + TEXTS)
            raise CommandError(
                f"There is nothing to set named {name!r}{did_you_mean(name, NUMBERS + TEXTS)}; "
                f"known are {known}."
            )
        if value == "none":
            self.fields.pop(name, None)
        elif name in TEXTS:
            self.fields[name] = value
        else:
            self.fields[name] = _number(name, value)

    def clear(self) -> None:
        self.messages.clear()
        self.usage = None

    def save(self, path: Path) -> None:
        if path.exists():
            raise CommandError(f"{path} exists already; give another name.")
        document = {"model": self.model, **self.fields, "messages": self._all_messages()}
        write_private(path, json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n")

    def _body(self, question: dict[str, str]) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": [*self._all_messages(), question],
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.fields,
        }

    def _all_messages(self) -> list[dict[str, str]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages]


def _number(name: str, text: str) -> float | int:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise CommandError(f"{name} is a number, not {text!r}.")
