"""A client of any server with an OpenAI-compatible API: base URL, key, streams, errors as sentences."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import httpx

from pomona.cli.errors import CommandError
from pomona.config.environment import API_KEY_VARIABLE
from pomona.config.resolve import Resolved

CONNECT_TIMEOUT_S = 5.0
# Between two bytes of a reply. A long prompt is silent, where a server sends no comments meanwhile.
READ_TIMEOUT_S = 600.0
# More of an error's body says nothing to a person.
SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Usage:
    """As the server reports it; None where it says nothing."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None

    @staticmethod
    def of(usage: Any) -> Usage | None:
        """None where the counts are missing."""
        if not isinstance(usage, dict):
            return None
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if not isinstance(prompt, int) or not isinstance(completion, int):
            return None
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        return Usage(prompt, completion, cached if isinstance(cached, int) else None)


@dataclass(frozen=True, slots=True)
class Delta:
    """One event of a stream. Only text and reasoning are visible."""

    text: str = ""
    reasoning: str = ""
    finish: str | None = None
    usage: Usage | None = None


class Client:
    """Blocking; for one thread."""

    def __init__(self, base_url: str, key: str | None = None) -> None:
        self.base_url = base_url
        self._http = httpx.Client(headers=auth_headers(key), timeout=timeout())

    def close(self) -> None:
        self._http.close()

    def models(self) -> list[str]:
        reply = self.get(f"{self.base_url}/models")
        return [str(model["id"]) for model in reply.get("data", [])]

    def health(self) -> tuple[int, dict[str, Any]]:
        """Status and body of pomona's own readiness route."""
        with explained(self.base_url):
            reply = self._http.get(self.base_url.removesuffix("/v1") + "/health/ready")
        return reply.status_code, _object(reply.content)

    def get(self, url: str) -> dict[str, Any]:
        with explained(self.base_url):
            reply = self._http.get(url)
            check_status(reply)
        return _object(reply.content)

    def stream_chat(self, body: dict[str, Any]) -> Generator[Delta]:
        """Closing the iterator stops the answer at the server."""
        url = f"{self.base_url}/chat/completions"
        with explained(self.base_url), self._http.stream("POST", url, json=body) as reply:
            if reply.status_code != 200:
                reply.read()
                check_status(reply)
            for line in reply.iter_lines():
                if delta := parse_line(line):
                    yield delta


def base_url(url: str | None, settings: Resolved) -> str:
    """What was typed as a base URL, or the server that the settings describe."""
    if url is None:
        host = settings.value("host")
        # Where a server that listens on every address is found.
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{settings.value('port')}/v1"
    url = url if "://" in url else f"http://{url}"
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise CommandError(f"{url!r} is not a base URL; write for example http://127.0.0.1:8642/v1.")
    return str(parsed).rstrip("/") if parsed.path.strip("/") else f"{str(parsed).rstrip('/')}/v1"


def api_key() -> str | None:
    return os.environ.get(API_KEY_VARIABLE) or None


def auth_headers(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def timeout() -> httpx.Timeout:
    return httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)


def parse_line(line: str) -> Delta | None:
    """A line of a stream; None for comments, blank lines and the end."""
    data = line.removeprefix("data:").strip()
    if not line.startswith("data:") or data == "[DONE]":
        return None
    event = _object(data.encode())
    if error := event.get("error"):
        raise CommandError(f"The server ended the answer: {_sentence(error)}")
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
    return Delta(
        delta.get("content") or "", reasoning, choices[0].get("finish_reason"), Usage.of(event.get("usage"))
    )


@contextmanager
def explained(base_url: str) -> Iterator[None]:
    """Failures of the connection as sentences."""
    try:
        yield
    except httpx.ConnectError as error:
        raise CommandError(
            f"No server answers at {base_url} ({_reason(error)}); start one with `pomona serve`, "
            "or give its address with --url."
        ) from error
    except httpx.TimeoutException as error:
        raise CommandError(f"The server at {base_url} does not answer; look at its log.") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CommandError(
            f"The connection to {base_url} broke ({_reason(error)}); look at the server's log."
        ) from error


def check_status(reply: httpx.Response) -> None:
    """A reply whose body has been read."""
    if reply.status_code < 400:
        return
    if reply.status_code == 401:
        raise CommandError(
            f"The server wants an API key; put one into {API_KEY_VARIABLE} (`pomona keys create` makes keys)."
        )
    try:
        body = json.loads(reply.content)
        sentence = _sentence(body["error"])
    except (ValueError, KeyError, TypeError):
        sentence = _sentence(reply.text.strip()) or "no reason given"
    raise CommandError(f"The server refused with status {reply.status_code}: {sentence}")


def _object(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else _not_an_api(content)


def _not_an_api(content: bytes) -> NoReturn:
    shown = content[:80].decode(errors="replace")
    raise CommandError(f"What answers is not an OpenAI-compatible server (it said {shown!r}); check the URL.")


def _sentence(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    # It is printed as it is: nothing in it may steer the terminal.
    return "".join(char if char.isprintable() else " " for char in str(message)[:SHOWN_CHARACTERS])


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
