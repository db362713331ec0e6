"""pomona in a process of its own: with a pseudo-terminal, as a person uses it, or with pipes."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from types import TracebackType

TIMEOUT_S = 60
CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\r")

# Run first in the new session: take the terminal, and Ctrl-C too where whoever runs the tests ignores it.
# (No fork in this process: others of its threads may hold locks at that moment.)
IN_THE_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """`pomona ARGUMENTS` in a terminal of its own."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.seen = ""
        self._at = 0
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", IN_THE_TERMINAL, sys.executable, "-m", "pomona", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "200", **environment},
        )
        os.close(slave)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str) -> str:
        """Wait for the text after what was expected before; what stood between the two."""
        deadline = time.monotonic() + TIMEOUT_S
        while (found := self.seen.find(text, self._at)) < 0:
            assert self._read(deadline), f"{text!r} never came; after {self.seen[self._at :]!r}"
        between = self.seen[self._at : found]
        self._at = found + len(text)
        return between

    def ask(self, line: str) -> None:
        """Type a line at the prompt."""
        self.expect(">>> ")
        self.type(line + "\r")

    def end(self) -> int:
        """The exit status."""
        deadline = time.monotonic() + TIMEOUT_S
        while self._read(deadline):
            pass
        return self._process.wait(TIMEOUT_S)

    def _read(self, deadline: float) -> bool:
        if not select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux, when the program has ended
            return False
        self.seen += CONTROL.sub("", data.decode(errors="replace"))
        return bool(data)


def command(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """`pomona ARGUMENTS` with pipes."""
    return subprocess.run(
        [sys.executable, "-m", "pomona", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
