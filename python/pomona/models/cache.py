"""Converted models in POMONA_HOME: models/<name>-<fingerprint of the source>.

A conversion is written into a temporary folder beside its final place and renamed when it is complete and
on disk, under a lock that other processes wait for. A folder with a final name is therefore always whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pomona.config.home import conversions_folder
from pomona.models.errors import ModelError
from pomona.models.folder import ModelFolder
from pomona.models.progress import Progress, Report

# Part of the fingerprint: raise it when the converter's output changes.
CONVERTER_VERSION = 1

# Kept free beyond what a conversion needs.
SPARE_BYTES = 256 * 1024 * 1024

Convert = Callable[[Path, Path], None]


def converted_folder(source: Path, name: str) -> Path:
    """Where the conversion of this state of the source belongs."""
    stat = source.stat()
    state = f"{stat.st_size}:{stat.st_mtime_ns}:{CONVERTER_VERSION}"
    fingerprint = hashlib.sha256(state.encode()).hexdigest()[:12]
    return conversions_folder() / f"{_file_name(name)}-{fingerprint}"


def convert_once(
    source: Path, name: str, needed_bytes: Callable[[], int], convert: Convert, report: Report
) -> Path:
    """The converted folder, made by `convert(source, folder)` unless it is there already.

    `needed_bytes` is asked only when there is something to convert.
    """
    final = converted_folder(source, name)
    if _is_whole(final):
        return final
    models = final.parent
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _lock(models / f".{final.name}.lock", report):
            _remove_leftovers(final)
            if not _is_whole(final):
                shutil.rmtree(final, ignore_errors=True)
                _check_space(models, needed_bytes())
                _convert_into(final, source, convert)
    except OSError as error:
        raise ModelError(
            f"The model cannot be stored in {models} ({error.strerror or error}); "
            "make room there or set POMONA_HOME to another folder."
        ) from error
    return final


def _convert_into(final: Path, source: Path, convert: Convert) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=_temporary_prefix(final), dir=final.parent))
    try:
        convert(source, temporary)
        temporary.chmod(0o755)
        _sync_tree(temporary)
        temporary.rename(final)
        _sync(final.parent)
    except BaseException:  # no half-made folder stays, whatever stops us; it goes on
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _remove_leftovers(final: Path) -> None:
    """Temporary folders of processes that died. The caller holds the lock, so no live one is among them."""
    for folder in final.parent.glob(_temporary_prefix(final) + "*"):
        shutil.rmtree(folder, ignore_errors=True)


def _temporary_prefix(final: Path) -> str:
    return f".{final.name}.part-"


def _is_whole(folder: Path) -> bool:
    """False also for a folder that somebody has emptied by hand."""
    try:
        ModelFolder.open(folder)
    except ModelError:
        return False
    return True


@contextmanager
def _lock(path: Path, report: Report) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(Progress("waiting for another pomona that converts this model"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file gives the lock back


def _check_space(folder: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + SPARE_BYTES:
        raise ModelError(
            f"Converting the model needs {(needed_bytes + SPARE_BYTES) / 1e9:.1f} GB in {folder}, where "
            f"{free / 1e9:.1f} GB are free; make room there or set POMONA_HOME to another folder."
        )


def _sync_tree(folder: Path) -> None:
    for file in folder.iterdir():
        _sync(file)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".") or "model"
