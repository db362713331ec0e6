"""Every setting through flag, variable and file: made from the schema, so that none can be forgotten."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import tomlkit

from pomona.cli import main
from pomona.config import ServeSettings, WorkerOptions
from pomona.config.definitions import DEFINITIONS, Definition, Value
from pomona.config.errors import SettingsError
from pomona.config.home import config_file
from pomona.config.resolve import Resolved, resolve

Give = Callable[[Definition, Value], Resolved]


class CapturedError(Exception):
    """Ends `serve` where the server would start."""


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def samples(setting: Definition) -> list[Value]:
    """Values of the setting's type, none of them the default, and its limits."""
    low, high = setting.setting.ge, setting.setting.le
    found: list[Value] = {
        "text": ["plain", "with space, comma and = #", "ü\N{GRINNING FACE}", "-dash"],
        "integer": [3000, 1_234_567, 10**13 + 1, 8 * 10**9, 6 * 2**30, low, high],
        "number": [0.1, 7.0, 12.345678901234567, 1e-3, 250.5, low, high],
        "switch": [not setting.default],
        "choice": list(setting.choices),
        "list": [(), ("a.example",), ("a.example", "b.example"), ("*",)],
    }[setting.kind]
    if setting.name == "cors_origins":
        found = [(), ("https://a.example",), ("http://a.example:8080", "app://b"), ("*",)]
    if setting.name == "pool_tokens":
        low = 64  # one block
    if setting.kind in ("integer", "number"):
        cast = int if setting.kind == "integer" else float
        numbers = [cast(value) for value in found if isinstance(value, int | float)]
        found = [n for n in numbers if (low is None or n >= low) and (high is None or n <= high)]
    if setting.optional:
        found.append(None)
    return found


def by_flag(setting: Definition, value: Value) -> Resolved:
    found: list[Resolved] = []

    def capture(resolved: Resolved) -> ServeSettings:
        found.append(resolved)
        raise CapturedError

    text = setting.format(value)
    if setting.setting.positional:
        arguments = ["--", text]
    elif setting.kind == "switch":
        arguments = [setting.flag if value else f"--no-{setting.flag[2:]}"]
    else:
        arguments = [f"{setting.flag}={text}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pomona.cli.serve.prepare", capture)
        patch.setattr(sys, "argv", ["pomona", "serve", *arguments])
        patch.setenv("POMONA_TRACEBACK", "1")
        with pytest.raises(CapturedError):
            main()
    return found[0]


def by_variable(setting: Definition, value: Value) -> Resolved:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(setting.variable, setting.format(value))
        return resolve()


def by_file(setting: Definition, value: Value) -> Resolved:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pomona", "config", "set", setting.name, "--", setting.format(value)])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0
    return resolve()


def by_hand(setting: Definition, value: Value) -> Resolved:
    """As people write it into the file: native TOML types."""
    native: object = "none" if value is None else list(value) if isinstance(value, tuple) else value
    config_file().parent.mkdir(exist_ok=True)
    config_file().write_text(tomlkit.dumps({setting.name: native}))
    return resolve()


WAYS = {"flag": by_flag, "environment": by_variable, "file": by_file, "hand": by_hand}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_value_arrives_unchanged(name: str, way: str) -> None:
    setting = DEFINITIONS[name]
    for value in samples(setting):
        resolved = WAYS[way](setting, value)
        candidate = resolved.candidates(name)[0]
        assert candidate.value == value
        assert type(candidate.value) is type(value)
        assert candidate.source == ("file" if way == "hand" else way)
        settings = resolved.serve_settings("/model", "served")
        arrived = getattr(settings if setting.struct is ServeSettings else settings.worker, name)
        if name in ("model", "model_name"):
            assert arrived == {"model": "/model", "model_name": "served"}[name]
        elif setting.setting.home_file is None:
            assert arrived == value
        # And it survives the way to another process.
        assert msgspec.json.decode(msgspec.json.encode(settings), type=ServeSettings) == settings


@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_strongest_place_wins(name: str) -> None:
    setting = DEFINITIONS[name]
    first, *others = samples(setting)
    second = others[0] if others else setting.default
    by_file(setting, second)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(setting.variable, setting.format(first))
        assert resolve().candidates(name)[0].value == first
        assert [c.source for c in resolve().candidates(name)] == ["environment", "file", "default"]
        assert by_flag(setting, second).candidates(name)[0].value == second


WRONG: dict[str, list[str]] = {
    "text": ["", "  "],
    "integer": ["", "x", "1.5", "-1", "0x10", "nan", "1e3"],
    "number": ["", "x", "nan", "inf", "-inf", "-1", "1e999"],
    "switch": ["", "maybe", "2", "truee"],
    "choice": ["", "fastest", "none"],
    "list": [",", "a,,b", "a b", "https://a.example/path", "a/b"],
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_wrong_value_is_refused_everywhere(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    setting = DEFINITIONS[name]
    wrong = [text for text in WRONG[setting.kind] if (setting.setting.unit, text) != ("bytes", "1.5")]
    for bound, beyond in ((setting.setting.ge, -1), (setting.setting.le, 1)):
        if bound is not None:
            wrong.append(str(bound + beyond))
    for text in wrong:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(setting.variable, text)
            with pytest.raises(SettingsError, match=setting.variable):
                resolve()
        if setting.kind != "switch" and not setting.setting.positional:
            assert command("serve", f"{setting.flag}={text}") == 2
            assert setting.flag in capsys.readouterr().err
        assert command("config", "set", name, "--", text) == 1
        assert name in capsys.readouterr().err
        assert not resolve().is_set(name)


@pytest.mark.parametrize("value", [True, [1], {"a": 1}, 1.5, "1970-01-01T00:00:00Z"])
@pytest.mark.parametrize("name", ["port", "host", "look_ahead", "reader", "keep_alive_s", "allowed_hosts"])
def test_a_wrong_type_in_the_file_is_refused(name: str, value: object, home: Path) -> None:
    fitting = [("look_ahead", True), ("keep_alive_s", 1.5), ("host", "1970-01-01T00:00:00Z")]
    if (name, value) in fitting:
        return
    home.mkdir()
    (home / "config.toml").write_text(tomlkit.dumps({name: value}))
    with pytest.raises(SettingsError, match=f"sets {name} wrong"):
        resolve()


def test_an_unknown_name_is_refused_everywhere(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("serve", "--prot", "9") == 2
    assert "No such option: --prot" in capsys.readouterr().err
    for arguments in (["get", "prot"], ["set", "prot", "9"], ["unset", "prot"], ["explain", "prot"]):
        assert command("config", *arguments) == 1
        assert "no setting 'prot' (did you mean port?)" in capsys.readouterr().err
    assert not (home / "config.toml").exists()
    home.mkdir(exist_ok=True)
    for text in ("prot = 9", "[port]\nx = 1", "[server]\nport = 9"):
        (home / "config.toml").write_text(text)
        for arguments in (["serve"], ["config", "list"], ["config", "get", "port"]):
            assert command(*arguments) == 1
            err = capsys.readouterr().err
            assert "config.toml sets" in err
            assert err.count("\n") == 1
    (home / "config.toml").unlink()
    monkeypatch.setenv("POMONA_PROT", "9")
    for arguments in (["serve"], ["config", "list"], ["config", "set", "port", "9"], ["keys", "list"]):
        assert command(*arguments) == 1
        assert "POMONA_PROT is not a setting (did you mean POMONA_PORT?)" in capsys.readouterr().err


def test_values_without_effect_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="no effect, because restart_limit is 0"):
        resolve({"restart_backoff_s": 2.0, "restart_limit": 0})
    with pytest.raises(SettingsError, match="less than one block"):
        resolve({"pool_tokens": 10})
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("POMONA_BLAS", "off")
    with pytest.raises(SettingsError, match="no effect on this system, only on linux"):
        resolve()


def test_every_field_is_a_setting() -> None:
    fields = {*ServeSettings.__struct_fields__, *WorkerOptions.__struct_fields__} - {"worker"}
    assert fields == set(DEFINITIONS)
    for setting in DEFINITIONS.values():
        assert setting.setting.help.endswith(".")
        if setting.default is not None:
            assert setting.parse(setting.format(setting.default)) == setting.default


def test_paths_start_in_the_home(home: Path) -> None:
    assert resolve().value("api_keys_file") == str(home / "keys.json")
    assert resolve({"api_keys_file": "other.json"}).value("api_keys_file") == str(home / "other.json")
    assert resolve({"api_keys_file": "/etc/keys"}).value("api_keys_file") == "/etc/keys"


def command(*arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pomona", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
    return int(end.value.code or 0)
