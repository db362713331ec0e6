"""`pomona run`: a chat in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pomona.cli.chat import NUMBERS, TEXTS, Chat
from pomona.cli.client import Client, Delta, api_key, base_url
from pomona.cli.errors import CommandError
from pomona.cli.line_history import line_history
from pomona.cli.private_server import private_server
from pomona.config.errors import SettingsError
from pomona.config.resolve import resolve

PROMPT = ">>> "
EXIT_INTERRUPTED = 130
HELP = f"""\
/clear             forget the conversation
/system [TEXT]     set the system message; without a text, remove it
/set NAME VALUE    set a field of the request, or none for its default:
                   {", ".join((*NUMBERS[:5], *TEXTS))},
                   {", ".join(NUMBERS[5:])}
/show              show what is set
/save FILE         save the conversation as JSON
/exit              end; so does Ctrl-D
Ctrl-C stops an answer and keeps the chat."""


def run(
    model: Annotated[
        str | None,
        typer.Argument(help="A model folder or .gguf file to serve for this chat.", show_default=False),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Use the server at this base URL.", metavar="URL", show_default=False),
    ] = None,
) -> None:
    """Chat in the terminal.

    With --url, with that server. Otherwise with the one that runs at the configured host and port, or, when
    there is none or a MODEL is given, with a server that is started for this chat.
    """
    if model is not None and url is not None:
        raise CommandError("A MODEL is served here and --url is a server elsewhere; give one of the two.")
    with ExitStack() as stack:
        client = _connect(stack, model, url)
        models = client.models()
        if not models:
            raise CommandError(f"The server at {client.base_url} has no model; serve one.")
        Terminal(Chat(client, models[0])).talk()


def _connect(stack: ExitStack, model: str | None, url: str | None) -> Client:
    key = api_key()
    if url is not None or model is None:
        client = Client(base_url(url, resolve()), key)
        stack.callback(client.close)
        if url is not None or _answers(client):
            return client
    address, key = stack.enter_context(private_server(model))
    client = Client(address, key)
    stack.callback(client.close)
    return client


def _answers(client: Client) -> bool:
    """Whether a pomona is ready there. A key that is missing shows later, with its own sentence."""
    try:
        return client.health()[0] == 200
    except CommandError:
        return False


class Terminal:
    """Reads lines, writes answers. Without a terminal, standard input is one question."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._console = Console(highlight=False, markup=False, soft_wrap=True)
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: self._say(HELP),
            "/clear": self._clear,
            "/system": self._system,
            "/set": self._set,
            "/show": self._show,
            "/save": self._save,
        }

    def talk(self) -> None:
        if not self._is_terminal:
            if question := sys.stdin.read().strip():
                self._answer(question)
            return
        self._say(f"{self._chat.model} - /help for help")
        with line_history():
            while (line := self._read()) is not None:
                if line.startswith("/"):
                    if line in ("/exit", "/quit", "/bye"):
                        return
                    self._command(line)
                elif line:
                    with suppress(KeyboardInterrupt):
                        self._try(partial(self._answer, line))

    def _read(self) -> str | None:
        """A line, or None at the end."""
        try:
            return input(PROMPT).strip()
        except KeyboardInterrupt:
            self._say("\n/exit or Ctrl-D ends.")
            return ""
        except EOFError:
            print()
            return None

    def _answer(self, question: str) -> None:
        started = time.monotonic()
        writer = AnswerWriter(self._console)
        try:
            with closing(self._chat.ask(question)) as deltas:
                waiting = self._console.status("...") if self._is_terminal else ExitStack()
                with waiting:
                    first = next((delta for delta in deltas if delta.text or delta.reasoning), None)
                first_s = time.monotonic() - started
                if first is not None:
                    writer.write(first)
                    for delta in deltas:
                        writer.write(delta)
        except KeyboardInterrupt:
            writer.end()
            if not self._is_terminal:
                sys.exit(EXIT_INTERRUPTED)
            self._say("[stopped]")
            return
        writer.end()
        if self._is_terminal:
            self._statistics(first_s, time.monotonic() - started)

    def _statistics(self, first_s: float, whole_s: float) -> None:
        usage = self._chat.usage
        if usage is None:
            return
        parts = [f"{usage.completion_tokens} tokens", f"first after {first_s:.1f} s"]
        if usage.completion_tokens > 1 and whole_s > first_s:
            parts.append(f"{(usage.completion_tokens - 1) / (whole_s - first_s):.1f} tokens/s")
        if usage.cached_tokens is not None:
            parts.append(f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens reused")
        self._console.print(f"[{', '.join(parts)}]", style="dim")

    # ------------------------------------------------------------------------------------ commands

    def _command(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        command = self._commands.get(name)
        if command is None:
            self._say(f"There is no command {name}; /help shows all.")
        else:
            self._try(partial(command, argument.strip()))

    def _clear(self, _: str) -> None:
        self._chat.clear()
        self._say("The conversation is forgotten.")

    def _system(self, text: str) -> None:
        self._chat.system = text
        self._say("The system message is set." if text else "There is no system message now.")

    def _set(self, argument: str) -> None:
        name, _, value = argument.partition(" ")
        if not value.strip():
            raise CommandError("Write /set NAME VALUE, for example /set temperature 0.7.")
        self._chat.set(name, value.strip())
        self._say(f"{name} = {self._chat.fields.get(name, 'the default of the server')}")

    def _show(self, _: str) -> None:
        chat = self._chat
        self._say(f"model: {chat.model}")
        self._say(f"system: {chat.system or 'none'}")
        self._say(f"messages: {len(chat.messages)}")
        for name, value in chat.fields.items():
            self._say(f"{name}: {value}")

    def _save(self, argument: str) -> None:
        if not argument:
            raise CommandError("Write /save FILE.")
        path = Path(argument).expanduser()
        self._chat.save(path)
        self._say(f"Saved as {path}.")

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (CommandError, SettingsError) as error:
            self._say(str(error))

    def _say(self, text: str) -> None:
        self._console.print(text)


class AnswerWriter:
    """Writes an answer as it comes: reasoning dim, and nothing that could steer the terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._reasoning = False
        self._column = 0

    def write(self, delta: Delta) -> None:
        for text, reasoning in ((delta.reasoning, True), (delta.text, False)):
            shown = "".join(char for char in text if char.isprintable() or char in "\n\t")
            if not shown:
                continue
            if self._reasoning and not reasoning:
                self.end()
            self._reasoning = reasoning
            self._console.out(shown, end="", style="dim" if reasoning else None, highlight=False)
            self._console.file.flush()
            self._column = len(shown) - shown.rfind("\n") - 1 + (0 if "\n" in shown else self._column)

    def end(self) -> None:
        """The next output starts on a line of its own."""
        if self._column:
            self._console.out("")
            self._column = 0
