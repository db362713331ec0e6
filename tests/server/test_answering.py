"""What the generating routes share."""

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import cast

import pytest
from sanic import Request

from pomona.server.routes.answering import read


@pytest.mark.parametrize(("messages", "inline"), [(10, True), (10_000, False)])
def test_a_body_of_many_small_messages_does_not_hold_the_event_loop_up(messages: int, inline: bool) -> None:
    body = json.dumps([{"role": "user", "content": ""}] * messages).encode()
    request = cast(Request, SimpleNamespace(body=body))
    thread = asyncio.run(read(request, lambda _: threading.current_thread()))
    assert (thread is threading.current_thread()) is inline
