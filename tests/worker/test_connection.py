"""The worker's end of the link."""

from __future__ import annotations

import fcntl
import resource
import socket
from collections.abc import Iterator

import pytest

from pomona.link.framing import encode
from pomona.link.messages import Stop
from pomona.worker.connection import Connection, ConnectionLostError

HIGH = 1500


@pytest.fixture
def many_files() -> Iterator[None]:
    """Descriptors above 1023 for the time of a test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft <= HIGH:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (HIGH + 100, hard))
        except ValueError:
            pytest.skip("the system allows too few open files")
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_descriptor_may_have_any_number(many_files: None) -> None:
    """A server with many connections starts a worker with a high one."""
    server, worker = socket.socketpair()
    with server, socket.socket(fileno=fcntl.fcntl(worker, fcntl.F_DUPFD_CLOEXEC, HIGH)) as high:
        worker.close()
        connection = Connection(high)
        assert connection.receive(0.0) == []
        assert connection.receive(0.001) == []
        server.sendall(encode(Stop()))
        assert connection.receive(60.0) == [Stop()]
        server.close()
        with pytest.raises(ConnectionLostError):
            connection.receive(60.0)
