"""One streamed request, measured by its first and last visible delta and the server's own token counts."""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import httpx

from pomona.cli.client import Usage, auth_headers, check_status, explained, parse_line, timeout
from pomona.cli.errors import CommandError

# Deltas closer than this came in one piece; an answer of fewer pieces cannot be timed.
PIECE_S = 0.0003
MIN_PIECES = 3


@dataclass(frozen=True, slots=True)
class Sample:
    """A whole answer. Times are seconds on the monotonic clock."""

    sent: float
    first_visible: float
    last_visible: float
    ended: float
    # In how many pieces the visible deltas came.
    pieces: int
    usage: Usage
    finish: str | None
    # Of text and reasoning; with greedy decoding the same prompt gives the same one.
    digest: str

    @property
    def ttft_s(self) -> float:
        return self.first_visible - self.sent

    @property
    def prefill_tokens_per_s(self) -> float:
        return (self.usage.prompt_tokens - (self.usage.cached_tokens or 0)) / self.ttft_s


class Target:
    """A server and the model on it. `fields` go into every request."""

    def __init__(self, base_url: str, model: str | None, key: str | None, limit_s: float) -> None:
        self.base_url = base_url
        self.model = model or ""
        self.fields: dict[str, Any] = {}
        self._limit_s = limit_s
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.AsyncClient(headers=auth_headers(key), timeout=timeout(), limits=limits)

    async def close(self) -> None:
        await self._http.aclose()

    async def prepare(self, prompt: str) -> Sample:
        """Find the model, and whether the server can be told not to stop early. The first, untimed answer."""
        if not self.model:
            self.model = await self._first_model()
        self.fields = {"ignore_eos": True}
        try:
            return await self.ask(prompt, max_tokens=8)
        except CommandError as error:
            if "status 400" not in str(error) and "status 422" not in str(error):
                raise
            self.fields = {}
        return await self.ask(prompt, max_tokens=8)

    async def ask(self, prompt: str, max_tokens: int) -> Sample:
        """Raises CommandError for what is no whole, counted, visible answer."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.fields,
        }
        try:
            async with asyncio.timeout(self._limit_s):
                with explained(self.base_url):
                    return await self._stream(body)
        except TimeoutError as error:
            raise CommandError(
                f"An answer of {self.base_url} took more than {self._limit_s:g} s; "
                "ask for fewer tokens or raise --timeout."
            ) from error

    async def _stream(self, body: dict[str, Any]) -> Sample:
        usage, finish, text = None, None, hashlib.sha256()
        visible: list[float] = []
        sent = time.monotonic()
        async with self._http.stream("POST", f"{self.base_url}/chat/completions", json=body) as reply:
            if reply.status_code != 200:
                await reply.aread()
                check_status(reply)
            async for line in reply.aiter_lines():
                delta = parse_line(line)
                if delta is None:
                    continue
                if shown := delta.reasoning + delta.text:
                    visible.append(time.monotonic())
                    text.update(shown.encode())
                usage, finish = delta.usage or usage, delta.finish or finish
        ended = time.monotonic()
        if usage is None:
            raise CommandError(
                f"The server at {self.base_url} counts no tokens (no usage in the stream); "
                "it cannot be measured."
            )
        if not visible:
            raise CommandError(f"An answer of {self.base_url} showed nothing; try another model.")
        return Sample(
            sent=sent,
            first_visible=visible[0],
            last_visible=visible[-1],
            ended=ended,
            pieces=1 + sum(later - earlier > PIECE_S for earlier, later in pairwise(visible)),
            usage=usage,
            finish=finish,
            digest=text.hexdigest()[:16],
        )

    async def _first_model(self) -> str:
        with explained(self.base_url):
            reply = await self._http.get(f"{self.base_url}/models")
            check_status(reply)
            try:
                return str(reply.json()["data"][0]["id"])
            except (ValueError, KeyError, IndexError, TypeError):
                raise CommandError(
                    f"The server at {self.base_url} does not say which models it has; give --model."
                ) from None


def decode_tokens_per_s(wave: list[Sample]) -> float | None:
    """Tokens after the first of each stream, over the time from the first to the last visible delta. None
    when answers came in too few pieces, because they were too short or the server held them back."""
    if min(sample.pieces for sample in wave) < MIN_PIECES:
        return None
    tokens = sum(sample.usage.completion_tokens - 1 for sample in wave)
    took = max(sample.last_visible for sample in wave) - min(sample.first_visible for sample in wave)
    return tokens / took if tokens > 0 else None
