"""API keys: made here, shown once, stored as hashes in a private file.

A key is 256 random bits, so one round of SHA-256 is enough: there is no dictionary to try. The server
takes up a changed file with the next request.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from pathlib import Path
from typing import Literal

import msgspec

from pomona.config.errors import SettingsError
from pomona.config.private_file import locked, write_private

PREFIX = "pomona-"
SECRET_BYTES = 32
SHOWN_CHARACTERS = 4

# Modification time, size and inode of a file; None while there is none.
FileState = tuple[int, int, int] | None


class KeyInfo(msgspec.Struct, frozen=True):
    """A key, without what would let anybody use it."""

    id: str
    name: str
    # Seconds since the epoch.
    created: int
    # The end of the key, to tell keys apart.
    last: str


class _StoredKey(msgspec.Struct, frozen=True):
    info: KeyInfo
    sha256: str


class _KeyFile(msgspec.Struct, frozen=True):
    version: Literal[1] = 1
    keys: tuple[_StoredKey, ...] = ()


class KeyStore:
    """The keys in one file. A missing file is an empty store; an unreadable one is an error, so that a
    broken file never opens the door."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: FileState = None
        self._keys: tuple[_StoredKey, ...] = ()

    @property
    def path(self) -> Path:
        return self._path

    @property
    def empty(self) -> bool:
        """Whether there is no key at all, as the file says now."""
        return not self._read()

    def verify(self, key: str) -> KeyInfo | None:
        """The key's own record, or None. Takes the same time for every wrong key."""
        digest = _digest(key)
        found = None
        for stored in self._read():
            if hmac.compare_digest(stored.sha256, digest):
                found = stored.info
        return found

    def list(self) -> tuple[KeyInfo, ...]:
        return tuple(stored.info for stored in self._read())

    def create(self, name: str) -> tuple[KeyInfo, str]:
        """A new key and its record. The key itself cannot be had again."""
        key = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        with locked(self._path):
            keys = self._read()
            if any(stored.info.name == name for stored in keys):
                raise SettingsError(
                    f"There is already a key named {name!r}; choose another name or revoke that one."
                )
            info = KeyInfo(
                id=secrets.token_hex(4), name=name, created=int(time.time()), last=key[-SHOWN_CHARACTERS:]
            )
            self._write((*keys, _StoredKey(info, _digest(key))))
        return info, key

    def revoke(self, id_or_name: str) -> KeyInfo:
        """Remove a key; the server refuses it from the next request on."""
        with locked(self._path):
            keys = self._read()
            # The id first: a name could look like another key's id.
            matching = [stored for stored in keys if stored.info.id == id_or_name]
            matching = matching or [stored for stored in keys if stored.info.name == id_or_name]
            if matching:
                self._write(tuple(stored for stored in keys if stored is not matching[0]))
                return matching[0].info
        raise SettingsError(
            f"There is no key with the id or name {id_or_name!r}; `pomona keys list` shows them."
        )

    def _read(self) -> tuple[_StoredKey, ...]:
        try:
            state = _file_state(self._path)
            if state != self._state:
                # The state first: a change between the two is then seen the next time.
                self._keys = _parse(self._path) if state else ()
                self._state = state
        except FileNotFoundError:  # removed in between
            self._keys, self._state = (), None
        except OSError as error:
            raise SettingsError(
                f"The API keys in {self._path} cannot be read ({error.strerror or error}); "
                "give the server's user the right to read the file."
            ) from error
        return self._keys

    def _write(self, keys: tuple[_StoredKey, ...]) -> None:
        data = msgspec.json.format(msgspec.json.encode(_KeyFile(keys=keys)), indent=1)
        write_private(self._path, data + b"\n")


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _file_state(path: Path) -> FileState:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _parse(path: Path) -> tuple[_StoredKey, ...]:
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_KeyFile)
    except msgspec.DecodeError as error:
        raise SettingsError(
            f"{path} does not hold API keys as pomona writes them ({error}); "
            "restore it, or remove it and make new keys."
        ) from error
    return file.keys
