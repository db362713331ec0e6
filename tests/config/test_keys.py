"""API keys: hashed on disk, shown once, taken up and refused at once."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pomona.config.errors import SettingsError
from pomona.config.keys import PREFIX, KeyStore


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path / "home" / "keys.json")


def test_a_new_key_is_accepted_and_others_are_not(store: KeyStore) -> None:
    assert store.empty
    assert store.verify("") is None
    info, key = store.create("laptop")
    assert re.fullmatch(PREFIX + r"[A-Za-z0-9_-]{43}", key)
    assert not store.empty
    assert store.verify(key) == info
    for wrong in ("", "none", key[:-1], key + "a", key.removeprefix(PREFIX), key.upper(), "\ud800", "ä"):
        assert store.verify(wrong) is None


def test_the_file_is_private_and_does_not_hold_the_key(store: KeyStore) -> None:
    old = os.umask(0)
    try:
        info, key = store.create("laptop")
    finally:
        os.umask(old)
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    text = store.path.read_text()
    assert key not in text
    assert key.removeprefix(PREFIX)[:20] not in text
    assert info.last == key[-4:]


def test_a_running_server_sees_changes(store: KeyStore) -> None:
    server = KeyStore(store.path)
    assert server.empty
    _, first = store.create("first")
    info, second = store.create("second")
    assert server.verify(first)
    assert server.verify(second) == info
    store.revoke("first")
    assert server.verify(first) is None
    store.revoke(info.id)
    assert server.empty
    store.path.unlink()
    assert server.empty


def test_names_are_unique_and_unknown_ones_are_refused(store: KeyStore) -> None:
    store.create("laptop")
    with pytest.raises(SettingsError, match="already a key named 'laptop'"):
        store.create("laptop")
    with pytest.raises(SettingsError, match="no key with the id or name 'desk'"):
        store.revoke("desk")


def test_a_broken_file_never_opens_the_door(store: KeyStore) -> None:
    _, key = store.create("laptop")
    for broken in ("", "{", "[]", '{"version": 1, "keys": [{}]}'):
        store.path.write_text(broken)
        for ask in (lambda: store.empty, lambda: store.verify(key), lambda: store.create("new")):
            with pytest.raises(SettingsError, match="does not hold API keys"):
                ask()
        assert store.path.read_text() == broken


def test_keys_made_at_the_same_time_are_all_kept(store: KeyStore) -> None:
    code = (
        "import sys; from pathlib import Path; from pomona.config.keys import KeyStore\n"
        "for i in range(10): KeyStore(Path(sys.argv[1])).create(f'{sys.argv[2]}-{i}')"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(store.path), name]) for name in ("a", "b", "c")
    ]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    assert len(store.list()) == 30
