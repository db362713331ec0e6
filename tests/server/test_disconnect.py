"""A client that goes away cancels its row, wherever the row is."""

import socket
from collections.abc import Callable

import pytest
from tests.server.conftest import Server


def close(sock: socket.socket) -> None:
    sock.close()


def half_close(sock: socket.socket) -> None:
    sock.shutdown(socket.SHUT_WR)


def read_until(sock: socket.socket, wanted: bytes) -> None:
    data = b""
    while wanted not in data:
        piece = sock.recv(4096)
        assert piece, data
        data += piece


@pytest.mark.parametrize("leave", [close, half_close])
@pytest.mark.parametrize(("command", "seen"), [("begin hello", b'"content":"o"'), ("hang", b": keep-alive")])
def test_in_a_stream(
    server: Server, command: str, seen: bytes, leave: Callable[[socket.socket], None]
) -> None:
    sock = server.connect(command, stream=True)
    read_until(sock, seen)
    leave(sock)
    assert server.post("await-cancel").json()["choices"][0]["message"]["content"] == "cancelled"
    sock.close()


def test_before_the_first_byte(server: Server) -> None:
    sock = server.connect("hang")
    while server.http.get("/health/ready").json()["running"] == 0:
        pass
    sock.close()
    assert server.post("await-cancel").json()["choices"][0]["message"]["content"] == "cancelled"
