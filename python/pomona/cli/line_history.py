"""Editing and history of typed lines, kept in POMONA_HOME, where Python has readline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pomona.config.errors import SettingsError
from pomona.config.home import history_file
from pomona.config.private_file import write_private

MAX_LINES = 1000


@contextmanager
def line_history() -> Iterator[None]:
    """Within the block, `input` has history; what was typed is kept."""
    try:
        import readline
    except ImportError:
        yield
        return
    path = history_file()
    readline.clear_history()
    readline.set_history_length(MAX_LINES)
    for line in _stored(path):
        readline.add_history(line)
    try:
        yield
    finally:
        lines = [
            readline.get_history_item(index) for index in range(1, readline.get_current_history_length() + 1)
        ]
        # A chat need not fail because its history cannot be kept.
        with suppress(SettingsError):
            text = "".join(f"{line}\n" for line in lines[-MAX_LINES:] if line and "\n" not in line)
            write_private(path, text.encode("utf-8", "replace"))


def _stored(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
