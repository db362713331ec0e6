"""The server's log: text or JSON lines on stderr, and one line for each request at its end.

No text of prompts or answers is logged unless the settings say so; paths come without their query.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from sanic import Config, Request, Sanic

from pomona.config import ServeSettings
from pomona.link.trace import RequestTrace, RowTrace, tracing
from pomona.server.errors import CLIENT_CLOSED, request_id

log = logging.getLogger(__name__)

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# Asked every few seconds by whoever watches the server.
PROBES = ("/health", "/metrics")
MAX_METHOD_CHARACTERS = 20
MAX_PATH_CHARACTERS = 200
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def configure(settings: ServeSettings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    # Its warnings are about how it is started, which is our business.
    logging.getLogger("sanic").setLevel(logging.ERROR)


class JsonFormatter(logging.Formatter):
    """One object on one line: time, level, logger, message, then what the record's `fields` hold."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class LoggedSanic(Sanic[Config, SimpleNamespace]):
    """Logs each request when all of its answer is sent, or its client has gone."""

    async def handle_request(self, request: Request) -> None:
        settings: ServeSettings = self.ctx.services.settings
        with tracing(RequestTrace(request_id(request), keep_tokens=settings.log_prompts)) as trace:
            try:
                await super().handle_request(request)
            finally:
                _log_request(request, trace, settings)


def _log_request(request: Request, trace: RequestTrace, settings: ServeSettings) -> None:
    fields = _describe(request, trace)
    if trace.rows:
        fields["model"] = settings.model_name
    if settings.log_prompts:
        fields |= _texts(request, trace)
    words = " ".join(
        f"{name}={value}" for name, value in fields.items() if name not in ("request_id", "method", "path")
    )
    log.log(
        _level(fields, trace),
        "request %s %s %s: %s",
        *(trace.request_id, fields["method"], fields["path"], words),
        extra={"fields": fields},
    )


def _level(fields: dict[str, Any], trace: RequestTrace) -> int:
    if fields["path"].startswith(PROBES):
        return logging.DEBUG
    failed = fields["status"] >= 500 or any(row.finish == "error" for row in trace.rows)
    return logging.WARNING if failed else logging.INFO


def _describe(request: Request, trace: RequestTrace) -> dict[str, Any]:
    disconnected = bool(request.conn_info and request.conn_info.lost)
    response = request.stream.response if request.stream is not None else None
    fields: dict[str, Any] = {
        "request_id": trace.request_id,
        "method": CONTROLS.sub("?", request.method[:MAX_METHOD_CHARACTERS]),
        "path": CONTROLS.sub("?", request.path[:MAX_PATH_CHARACTERS]),
        "status": CLIENT_CLOSED if response is None else response.status,
        "total_s": _seconds(trace.began_at, time.monotonic()),
    }
    if disconnected:
        fields["disconnected"] = True
    return fields | (_describe_rows(trace.rows) if trace.rows else {})


def _describe_rows(rows: list[RowTrace]) -> dict[str, Any]:
    """Tokens of all rows together; times of the first to start and to speak."""
    submitted = min(row.submitted_at for row in rows)
    fields: dict[str, Any] = {
        "rows": len(rows),
        "prompt_tokens": rows[0].prompt_tokens,
        "cached_tokens": rows[0].cached_tokens,
        "completion_tokens": sum(row.new_tokens for row in rows),
        # A row that we closed ourselves met a stop string or a deadline, or lost its client.
        "finish": ",".join(row.finish or "closed" for row in rows),
    }
    if started := [row.started_at for row in rows if row.started_at is not None]:
        fields["queue_s"] = _seconds(submitted, min(started))
    if spoke := [row.first_token_at for row in rows if row.first_token_at is not None]:
        fields["first_token_s"] = _seconds(submitted, min(spoke))
    if errors := [row.error for row in rows if row.error]:
        fields["error"] = errors[0]
    return fields


def _texts(request: Request, trace: RequestTrace) -> dict[str, Any]:
    decode = request.app.ctx.services.text.tokenizer.decode
    return {
        "body": request.body.decode(errors="replace"),
        "answers": [decode(row.tokens) for row in trace.rows],
    }


def _seconds(start: float, end: float) -> float:
    return round(end - start, 4)
