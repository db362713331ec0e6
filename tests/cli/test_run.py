"""`pomona run` as a person uses it: a pseudo-terminal before a real server with a scripted worker."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import tiny_tokenizer
from tests.cli.terminal import Terminal, command
from tests.server.conftest import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tiny_tokenizer.build(tmp_path_factory.mktemp("models") / "tiny"))
    yield server
    status, _, err = server.terminate()
    assert status == 0
    assert "Traceback" not in err


@pytest.fixture
def terminal(server: Server, home: Path) -> Iterator[Terminal]:
    with Terminal("run", "--url", server.root) as terminal:
        yield terminal
        assert "Traceback" not in terminal.seen


def test_a_chat(terminal: Terminal, home: Path) -> None:
    terminal.expect("org/tiny - /help for help")
    terminal.ask("say good morning")
    terminal.expect("good morning")
    terminal.expect("prompt tokens reused]")
    terminal.ask("say good night")
    terminal.expect("good night")
    terminal.ask("/show")
    terminal.expect("messages: 4")
    terminal.ask("/clear")
    terminal.ask("/show")
    terminal.expect("messages: 0")
    terminal.ask("/exit")
    assert terminal.end() == 0
    history = home / "history"
    assert history.read_text().splitlines()[:2] == ["say good morning", "say good night"]
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_ctrl_c_stops_the_answer_and_keeps_the_chat(terminal: Terminal) -> None:
    terminal.ask("begin a long story")
    terminal.expect("a long story")
    terminal.expect("a long story")  # the first was the echo of what was typed
    terminal.type("\x03")
    terminal.expect("[stopped]")
    terminal.ask("/show")
    terminal.expect("messages: 2")
    terminal.ask("say still here")
    terminal.expect("prompt tokens reused]")
    # Before the first token, too.
    terminal.ask("hang")
    terminal.expect("...")
    terminal.type("\x03")
    terminal.expect("[stopped]")
    terminal.ask("/show")
    terminal.expect("messages: 4")
    terminal.expect(">>> ")
    terminal.type("half a line\x03")
    terminal.expect("/exit or Ctrl-D ends.")
    terminal.expect(">>> ")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_sampling_and_system_are_sent(terminal: Terminal) -> None:
    terminal.ask("/set temperature 0.25")
    terminal.expect("temperature = 0.25")
    terminal.ask("/set max_tokens 7")
    terminal.ask("/set temprature 1")
    terminal.expect("nothing to set named 'temprature' (did you mean temperature?)")
    terminal.ask("/set seed soon")
    terminal.expect("seed is a number, not 'soon'.")
    terminal.ask("/set max_tokens none")
    terminal.expect("max_tokens = the default of the server")
    terminal.ask("/system Be brief.")
    terminal.ask("sampling")
    terminal.expect('"temperature": 0.25')
    # The server's own sentence about a value it refuses, and the chat goes on.
    terminal.ask("/set temperature 99")
    terminal.ask("say hello")
    terminal.expect("The server refused with status 400")
    terminal.ask("/show")
    terminal.expect("system: Be brief.")
    terminal.expect("messages: 2")
    terminal.ask("/nonsense")
    terminal.expect("There is no command /nonsense")
    terminal.ask("/help")
    terminal.expect("/save FILE")


def test_a_chat_is_saved_and_not_over_a_file(terminal: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    terminal.ask("say hi")
    terminal.expect("reused]")
    terminal.ask(f"/save {path}")
    terminal.expect("Saved as")
    saved = json.loads(path.read_text())
    assert saved["messages"] == [
        {"role": "user", "content": "say hi"},
        {"role": "assistant", "content": "hi"},
    ]
    terminal.ask(f"/save {path}")
    terminal.expect("exists already")


def test_an_answer_cannot_steer_the_terminal(terminal: Terminal) -> None:
    terminal.ask("say a[bold]b :smile: \x16\x1b[2Jc")
    terminal.expect("reused]")
    assert "[bold]" in terminal.seen
    assert ":smile:" in terminal.seen


def test_an_error_in_the_answer_keeps_the_chat(terminal: Terminal) -> None:
    terminal.ask("fail")
    terminal.expect("The server ended the answer: The request failed in the engine")
    terminal.ask("/show")
    terminal.expect("messages: 0")


def test_the_history_comes_back(server: Server, home: Path) -> None:
    home.mkdir()
    (home / "history").write_text("say an old line\n")
    with Terminal("run", "--url", server.root) as terminal:
        terminal.expect(">>> ")
        terminal.type("\x1b[A\r")
        terminal.expect("reused]")
        assert "an old line" in terminal.seen


def test_without_a_terminal_standard_input_is_one_question(server: Server) -> None:
    child = command("run", "--url", server.root, stdin="say one\n")
    assert (child.returncode, child.stdout, child.stderr) == (0, "one\n", "")
    child = command("run", "--url", server.root, stdin="fail\n")
    assert (child.returncode, child.stdout) == (1, "")
    assert child.stderr.startswith("pomona: The server ended the answer: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--url", "http://127.0.0.1:1"], "No server answers at http://127.0.0.1:1/v1"),
        (["--url", "ftp://x"], "is not a base URL"),
        (["model", "--url", "http://127.0.0.1:1"], "give one of the two"),
        (["/no/such/model"], "There is no folder or .gguf file /no/such/model"),
    ],
)
def test_errors_are_a_sentence(arguments: list[str], words: str) -> None:
    child = command("run", *arguments, stdin="hello")
    assert child.returncode == 1
    assert words in child.stderr
    assert "Traceback" not in child.stderr


def test_a_server_of_its_own_ends_with_the_chat(tiny_model: Callable[[str], Path], home: Path) -> None:
    with Terminal("run", str(tiny_model("llama"))) as terminal:
        terminal.ask("/set max_tokens 4")
        terminal.ask("Hello!")
        terminal.expect("reused]")
        children = children_of(terminal.pid)
        assert len(children) == 1
        # Ctrl-C belongs to the chat, not to the server.
        terminal.expect(">>> ")
        terminal.type("\x03")
        terminal.expect("/exit or Ctrl-D ends.")
        terminal.ask("Still there?")
        terminal.expect("reused]")
        terminal.ask("/exit")
        assert terminal.end() == 0
    assert not alive(children[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_server_of_its_own_ends_when_the_chat_is_told_to(
    number: signal.Signals, tiny_model: Callable[[str], Path]
) -> None:
    with Terminal("run", str(tiny_model("llama"))) as terminal:
        terminal.expect(">>> ")
        children = children_of(terminal.pid)
        os.kill(terminal.pid, number)
        assert terminal.end() == 128 + number
    assert len(children) == 1
    assert not alive(children[0])


def children_of(pid: int) -> list[int]:
    text = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    return [int(word) for word in text.split()]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
