"""Losses of the worker as clients of the server see them."""

from __future__ import annotations

import os
import signal

import pytest
from tests.server.conftest import MODEL, Server, StartServer, body


def await_state(server: Server, status: int, words: str = "") -> str:
    """The readiness reply once it has this status and these words."""
    with server.http as client:
        while (reply := client.get("/health/ready")).status_code != status or words not in reply.text:
            assert server.process.poll() is None
    return reply.text


def test_the_next_worker_answers(start_server: StartServer) -> None:
    server = start_server(restart_backoff_s=0.0)
    for _ in range(3):
        assert server.post("die").status_code == 503
        await_state(server, 200)
        assert server.post("say hi").json()["choices"][0]["message"]["content"] == "hi"
    assert server.terminate()[0] == 0


def test_streams_end_with_an_error_that_says_try_again(start_server: StartServer) -> None:
    server = start_server(restart_backoff_s=0.0)
    with (
        server.http as client,
        client.stream("POST", "/v1/chat/completions", json=body("begin hello", stream=True)) as reply,
    ):
        lines = (line for line in reply.iter_lines() if line.startswith("data: "))
        next(lines)
        assert server.post("die").status_code == 503
        *_, last = lines
    assert last.startswith('data: {"error":{"message":')
    assert "ended with status 7. Send the request again." in last
    assert '"code":"unavailable"' in last


def test_clients_are_told_when_to_come_back(start_server: StartServer) -> None:
    server = start_server(restart_backoff_s=600.0)
    assert server.post("die").status_code == 503
    assert "It is being restarted." in await_state(server, 503)
    reply = server.post("say hi")
    assert reply.status_code == 503
    assert int(reply.headers["retry-after"]) > 300
    assert "It is being restarted." in reply.json()["error"]["message"]
    assert server.http.get("/v1/models").json()["data"][0]["id"] == MODEL
    assert server.terminate()[0] == 0


def test_a_worker_that_cannot_be_restarted(start_server: StartServer) -> None:
    server = start_server("once", restart_backoff_s=0.0, restart_limit=2)
    assert server.post("die").status_code == 503
    text = await_state(server, 503, "restart the server")
    assert "the weights are not there That was loss 3" in text
    assert server.http.get("/health/live").status_code == 200
    assert server.post("say hi").status_code == 503
    assert server.terminate()[0] == 0


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_stopping_before_the_model_is_loaded(start_server: StartServer, sig: signal.Signals) -> None:
    server = start_server(restart_backoff_s=600.0)
    server.post("die")
    os.kill(server.process.pid, sig)
    assert server.end()[0] == 0
