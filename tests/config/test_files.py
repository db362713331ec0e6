"""Files in POMONA_HOME: private, whole at every moment, comments kept; and the generated page."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pomona.config.definitions import DEFINITIONS
from pomona.config.errors import SettingsError
from pomona.config.home import config_file
from pomona.config.private_file import write_private
from pomona.config.reference import reference
from pomona.config.toml_file import read_file, set_in_file, unset_in_file

PORT = DEFINITIONS["port"]

BY_HAND = """\
# Mine.
port = 9000  # the old one's

# Room for a long book.
kv_memory_bytes = "8GB"
"""


def test_changes_keep_comments_and_order(home: Path) -> None:
    home.mkdir()
    config_file().write_text(BY_HAND)
    set_in_file(config_file(), PORT, 9001)
    assert config_file().read_text() == BY_HAND.replace("9000", "9001")
    set_in_file(config_file(), DEFINITIONS["host"], "::1")
    assert config_file().read_text() == BY_HAND.replace("9000", "9001") + 'host = "::1"\n'
    assert unset_in_file(config_file(), "port")
    assert not unset_in_file(config_file(), "port")
    assert "# Room for a long book." in config_file().read_text()
    assert read_file(config_file()) == {"kv_memory_bytes": 8 * 10**9, "host": "::1"}


def test_a_file_is_private_whatever_the_umask_and_however_it_was(home: Path) -> None:
    old = os.umask(0)
    try:
        set_in_file(config_file(), PORT, 9001)
    finally:
        os.umask(old)
    assert stat.S_IMODE(config_file().stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    config_file().chmod(0o644)
    set_in_file(config_file(), PORT, 9002)
    assert stat.S_IMODE(config_file().stat().st_mode) == 0o600


def test_a_linked_file_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "dotfiles.toml", tmp_path / "config.toml"
    target.write_text("")
    link.symlink_to(target)
    set_in_file(link, PORT, 9001)
    assert link.is_symlink()
    assert read_file(target) == {"port": 9001}


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.toml"
    write_private(path, b"old")

    def fail(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(SettingsError, match=r"config.toml cannot be written \(No space left on device\)"):
        write_private(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_grow_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    write_private(path, b"old")
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from pomona.config.private_file import write_private\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "write_private(Path(sys.argv[1]), bytes(300_000))"
    )
    child = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert "config.toml cannot be written (File too large)" in child.stderr
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_kill_in_the_middle_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    code = (
        "import sys; from pathlib import Path; from pomona.config.private_file import write_private\n"
        "print(flush=True)\n"
        "while True:\n"
        "    for byte in b'ab': write_private(Path(sys.argv[1]), bytes([byte]) * 300_000)"
    )
    for milliseconds in (0, 1, 2, 3, 5, 8, 13, 21):
        with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            while not path.exists():
                pass
            try:
                child.wait(milliseconds / 1000)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
        data = path.read_bytes()
        assert data in (b"a" * 300_000, b"b" * 300_000)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port = ", "is not TOML"),
        ("port = 1\nport = 2", "is not TOML"),
        ("\udcff", "is not TOML"),
        ("prot = 1", r"sets 'prot', which is not a setting \(did you mean port\?\)"),
    ],
)
def test_a_broken_file_is_a_sentence_and_stays(home: Path, text: str, words: str) -> None:
    home.mkdir()
    config_file().write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(SettingsError, match=words):
        read_file(config_file())
    assert config_file().read_bytes() == text.encode("utf-8", "surrogateescape")


def test_the_page_of_settings_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "settings.md"
    assert page.read_text() == reference(), "run: python -m pomona.config.reference > docs/settings.md"
