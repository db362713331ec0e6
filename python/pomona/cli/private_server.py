"""A server of one's own for the time of a command: free port, a key nobody else has, ended with it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pomona.cli.errors import CommandError
from pomona.config.keys import KeyStore

READY = re.compile(r" at (http://\S+/v1)\b")
HOST = "127.0.0.1"
STOP_S = 15.0


@contextmanager
def private_server(model: str | None) -> Iterator[tuple[str, str]]:
    """Base URL and key of a new server, once it is ready. What it says on the way goes to the terminal."""
    with tempfile.TemporaryDirectory(prefix="pomona-") as folder:
        keys = Path(folder, "keys.json")
        _, key = KeyStore(keys).create("terminal")
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pomona", "serve", "--host", HOST, "--port", "0"),
                *("--allowed-hosts", HOST, "--api-keys-file", str(keys)),
                *(["--", model] if model else []),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C in the terminal stops an answer, not the server.
            process_group=0,
        )
        with _ended(process):
            assert process.stdout is not None
            found = READY.search(process.stdout.readline())
            if not found:
                raise CommandError("The server did not start; what it says above is the reason.")
            yield found[1], key


@contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """The process ends with the block, also when this process is told to end."""
    before = {
        number: signal.signal(number, lambda number, frame: sys.exit(128 + number))
        for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        process.terminate()
        try:
            with suppress(KeyboardInterrupt):
                process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            pass
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        for number, handler in before.items():
            signal.signal(number, handler)
