"""Files that only their owner may read, replaced as a whole: a reader sees the old one or the new one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pomona.config.errors import SettingsError


def write_private(path: Path, data: bytes) -> None:
    """Replace the file, mode 0600. When it fails, the old one is still there."""
    try:
        path = path.resolve()  # a linked file stays a link
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # mkstemp makes it 0600 from the start.
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:  # no half-written file stays, whatever stops us; it goes on
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be written ({error.strerror or error}); "
            "make room or give yourself the right to write there."
        ) from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other processes out of a read-change-write of the file."""
    lock = path.with_name(f".{path.name}.lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be changed ({error.strerror or error}); give yourself the right to write there."
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
