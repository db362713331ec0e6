"""`pomona config` and `pomona keys`: what they print."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from tests.config.test_round_trip import command

from pomona.config.definitions import DEFINITIONS
from pomona.config.keys import KeyStore


def test_set_get_unset(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("config", "set", "max-rows", "8") == 0
    assert capsys.readouterr().out == "max_rows = 8, at the next start of a server\n"
    assert command("config", "get", "max_rows") == 0
    assert capsys.readouterr().out == "8\n"
    assert command("config", "path") == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == home / "config.toml"
    assert path.read_text().splitlines()[1:] == ["max_rows = 8"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert command("config", "unset", "max_rows") == 0
    assert command("config", "unset", "max_rows") == 0
    assert capsys.readouterr().out == "max_rows was not set\n"
    assert command("config", "get", "max_rows") == 0
    assert capsys.readouterr().out == "64\n"


def test_an_unknown_line_can_be_got_rid_of(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir()
    (home / "config.toml").write_text("max-rows = 8\nold_name = 1\n")
    assert command("config", "list") == 1
    assert "pomona config unset max-rows" in capsys.readouterr().err
    assert command("config", "unset", "max-rows") == 0
    assert command("config", "unset", "old_name") == 0
    assert command("config", "list") == 0


def test_explain_says_where_a_value_comes_from(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("config", "explain", "keep_alive_s") == 0
    out = capsys.readouterr().out
    assert out.startswith("keep_alive_s = 10s\n")
    assert "the value comes from: the default" in out
    assert command("config", "set", "keep_alive_s", "500ms") == 0
    monkeypatch.setenv("POMONA_KEEP_ALIVE_S", "2")
    assert command("config", "set", "keep_alive_s", "1m") == 0
    assert "the variable POMONA_KEEP_ALIVE_S is set, and wins" in capsys.readouterr().err
    assert command("config", "explain", "keep-alive-s") == 0
    out = capsys.readouterr().out
    assert out.startswith("keep_alive_s = 2s\n")
    assert "type: seconds, 0.05s to 86400s" in out
    assert "the value comes from: the environment POMONA_KEEP_ALIVE_S" in out
    assert f"overridden: 60s from the file {home / 'config.toml'}" in out


def test_list_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("config", "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(DEFINITIONS)
    assert command("config", "list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [setting["name"] for setting in listed] == list(DEFINITIONS)
    assert {setting["source"] for setting in listed} == {"default"}


def test_keys(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("keys", "list") == 0
    assert "There are no keys" in capsys.readouterr().out
    assert command("keys", "create", "laptop") == 0
    said = capsys.readouterr()
    key = said.out.strip()
    assert "cannot be shown again" in said.err
    info = KeyStore(home / "keys.json").verify(key)
    assert info is not None
    assert command("keys", "create", "laptop") == 1
    assert "already a key named 'laptop'" in capsys.readouterr().err
    assert command("keys", "list") == 0
    out = capsys.readouterr().out
    assert info.id in out
    assert f"pomona-...{key[-4:]}" in out
    assert key not in out
    assert command("keys", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "laptop"
    assert command("keys", "revoke", info.id) == 0
    assert command("keys", "revoke", info.id) == 1
    assert KeyStore(home / "keys.json").empty
