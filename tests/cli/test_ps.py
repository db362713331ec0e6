"""`pomona ps` and `pomona models`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import tiny_tokenizer
from tests.cli.terminal import command
from tests.server.conftest import Server

from pomona.config.keys import KeyStore


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A server that wants a key, and the key."""
    folder = tmp_path_factory.mktemp("models")
    _, key = KeyStore(folder / "keys.json").create("test")
    server = Server(tiny_tokenizer.build(folder / "tiny"), api_keys_file=str(folder / "keys.json"))
    yield server, key
    server.terminate()


def test_a_running_server(keyed: tuple[Server, str], monkeypatch: pytest.MonkeyPatch) -> None:
    server, key = keyed
    child = command("ps", "--url", server.root)
    assert child.returncode == 1
    assert "wants an API key; put one into POMONA_API_KEY" in child.stderr
    assert "wants an API key" in command("run", "--url", server.root, stdin="hello").stderr
    assert "wants an API key" in command("bench", "--url", server.root).stderr
    monkeypatch.setenv("POMONA_API_KEY", key)
    child = command("ps", "--url", server.root)
    assert (child.returncode, child.stderr) == (0, "")
    for words in ("health", "ready", "org/tiny", "0 running, 0 waiting", "10 capacity"):
        assert words in child.stdout
    report = json.loads(command("ps", "--url", server.root, "--json").stdout)
    assert report["ready"]
    assert report["models"] == ["org/tiny"]
    assert command("run", "--url", server.root, stdin="say hello").stdout == "hello\n"


def test_no_server() -> None:
    child = command("ps", "--url", "127.0.0.1:1")
    assert child.returncode == 1
    assert "No server answers at http://127.0.0.1:1/v1" in child.stderr
    assert child.stderr.count("\n") == 1


def test_models_that_are_known(
    home: Path, tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    shutil.copytree(tiny_model("llama"), hub / "models--org--tiny" / "snapshots" / "abc")
    (hub / "models--org--bert" / "snapshots" / "abc").mkdir(parents=True)
    shutil.copytree(tiny_model("llama"), home / "models" / "tiny-123")
    (home / "models" / ".tiny-456.part-x").mkdir()
    monkeypatch.setenv("POMONA_MODEL", "/no/such/model")
    found = {
        (model["kind"], model["name"]): model for model in json.loads(command("models", "--json").stdout)
    }
    assert found[("configured", "model")]["problem"]
    assert found[("conversion", "tiny-123")]["size_bytes"] > 1000
    assert not found[("hub cache", "org/tiny")]["problem"]
    assert ("unfinished", ".tiny-456.part-x") in found
    assert ("hub cache", "org/bert") not in found
    table = command("models").stdout
    assert "org/tiny" in table
    assert "There is no folder /no/such/model" in table
