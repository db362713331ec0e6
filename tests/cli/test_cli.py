"""The command line: settings from flags, errors in a sentence, doctor's findings."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest
from tests.tiny_models import tiny_model as build_tiny_model

from pomona import __version__
from pomona.cli import main
from pomona.cli.client import parse_line
from pomona.cli.errors import CommandError
from pomona.cli.progress import shown_progress
from pomona.config import ServeSettings, WorkerOptions
from pomona.config.environment import TRACEBACK_VARIABLE
from pomona.models import Progress


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServeSettings]:
    """Stands in for the server, which ends with status 3: what `run` was called with."""
    calls: list[ServeSettings] = []

    def run(settings: ServeSettings) -> int:
        calls.append(settings)
        return 3

    module = types.ModuleType("pomona.server.main")
    monkeypatch.setattr(module, "run", run, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["pomona", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "from pomona.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"pomona {__version__}\n"


def test_serve_without_flags_has_the_default_settings(
    monkeypatch: pytest.MonkeyPatch, served: list[ServeSettings], home: Path
) -> None:
    path = build_tiny_model("llama")
    assert run(monkeypatch, "serve", str(path)) == 3
    (settings,) = served
    assert settings == ServeSettings(
        model_name="tiny-llama", worker=WorkerOptions(model=str(path)), api_keys_file=str(home / "keys.json")
    )


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["serve", "/no/such/folder"], 1, "There is no folder or .gguf file /no/such/folder"),
        (["serve", "owner/model"], 1, "does not download models from a hub yet"),
        (["serve", __file__], 1, "give a model folder or a .gguf file"),
        (["serve", str(Path(__file__).parent)], 1, "has no config.json"),
        (["serve", "--port", "70000"], 2, "65535"),
        (["serve", "--kv-memory-bytes", "much"], 2, "'much' is not a size; write for example 800MB or 8GB."),
        (["serve", "--reader", "fast"], 2, "one of auto, paged, gathered"),
        (["serve", "--unknown"], 2, "No such option: --unknown"),
        (["bake"], 2, "No such command 'bake'"),
    ],
)
def test_errors_are_a_sentence(arguments: list[str], status: int, words: str) -> None:
    child = process(*arguments)
    assert child.returncode == status
    assert words in child.stderr
    assert "Traceback" not in child.stderr
    assert child.stdout == ""
    if status == 1:
        assert child.stderr.startswith("pomona: ")
        assert child.stderr.count("\n") == 1


def test_an_unexpected_error_is_a_sentence_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("the moon is full")

    monkeypatch.setattr("pomona.cli.serve.resolve_model", fail)
    monkeypatch.delenv(TRACEBACK_VARIABLE, raising=False)
    assert run(monkeypatch, "serve") == 1
    assert "Unexpected RuntimeError: the moon is full." in capsys.readouterr().err
    monkeypatch.setenv(TRACEBACK_VARIABLE, "1")
    monkeypatch.setattr(sys, "argv", ["pomona", "serve"])
    with pytest.raises(RuntimeError):
        main()


def test_a_port_in_use_is_said_before_the_model_is_prepared(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = str(held.getsockname()[1])
        child = process("serve", "--port", port, POMONA_HOME=str(tmp_path))
    assert child.returncode == 1
    assert child.stderr.startswith(f"pomona: Port {port} cannot be opened on 127.0.0.1 (")
    assert "--port" in child.stderr
    assert not list(tmp_path.iterdir())


def test_progress_without_a_terminal_is_a_line_per_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_progress("preparing") as report:
        for progress in (Progress("reading"), Progress("converting", 1, 2), Progress("converting", 2, 2)):
            report(progress)
    assert capsys.readouterr().err == "pomona: preparing: reading\npomona: preparing: converting\n"


def test_the_error_of_a_server_cannot_steer_the_terminal() -> None:
    with pytest.raises(CommandError) as error:
        parse_line('data: {"error": {"message": "no\\u001b[2J\\nroom"}}')
    assert str(error.value) == "The server ended the answer: no [2J room"
