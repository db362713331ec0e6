"""Which value wins: flag, then environment, then file, then default; and the structs made of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pomona.config.definitions import DEFINITIONS, Definition, Value, definition
from pomona.config.environment import read_environment
from pomona.config.errors import SettingsError
from pomona.config.home import config_file, home
from pomona.config.schema import ServeSettings, WorkerOptions
from pomona.config.toml_file import read_file

Source = Literal["flag", "environment", "file", "default"]


class Candidate(NamedTuple):
    """A value and where it stands."""

    value: Value
    source: Source
    # The flag, the variable or the file; empty for a default.
    place: str


class Resolved:
    """All settings with the values that hold."""

    def __init__(self, flags: Mapping[str, Value], environment: Mapping[str, Value], file: Path) -> None:
        in_file = read_file(file)
        self._candidates = {
            name: [
                *([Candidate(flags[name], "flag", _on_command_line(setting))] if name in flags else []),
                *(
                    [Candidate(environment[name], "environment", setting.variable)]
                    if name in environment
                    else []
                ),
                *([Candidate(in_file[name], "file", str(file))] if name in in_file else []),
                Candidate(setting.default, "default", ""),
            ]
            for name, setting in DEFINITIONS.items()
        }
        self._check_together()

    def candidates(self, name: str) -> list[Candidate]:
        """Every value that was given; the first one holds."""
        return self._candidates[name]

    def value(self, name: str) -> Any:
        """The value that holds; of files that are None, their place in POMONA_HOME."""
        value = self._candidates[name][0].value
        file = DEFINITIONS[name].setting.home_file
        return value if file is None else str(home() / Path(str(value or file)).expanduser())

    def is_set(self, name: str) -> bool:
        return self._candidates[name][0].source != "default"

    def serve_settings(self, model: str, model_name: str) -> ServeSettings:
        """`model` is the folder that was found, `model_name` what clients call it."""
        values = {name: self.value(name) for name in DEFINITIONS}
        values |= {"model": model, "model_name": model_name}
        of_worker = {name: values.pop(name) for name, d in DEFINITIONS.items() if d.struct is WorkerOptions}
        return ServeSettings(worker=WorkerOptions(**of_worker), **values)

    def _check_together(self) -> None:
        """What is wrong, or without effect, beside another value."""
        pool, block = self.value("pool_tokens"), self.value("block_size")
        if pool is not None and pool < block:
            self._refuse("pool_tokens", f"{pool} tokens are less than one block of {block} (block_size)")
        if self.is_set("restart_backoff_s") and self.value("restart_limit") == 0:
            self._refuse("restart_backoff_s", "it has no effect, because restart_limit is 0")

    def _refuse(self, name: str, reason: str) -> None:
        place = self._candidates[name][0].place
        raise SettingsError(f"The setting {name} ({place}) is wrong: {reason}; change one of the two.")


def resolve(flags: Mapping[str, Value] | None = None) -> Resolved:
    """The settings of this process. Raises SettingsError."""
    return Resolved(flags or {}, read_environment(os.environ), config_file())


def check_new_value(name: str, text: str) -> tuple[Definition, Value]:
    """The setting and its value, as somebody wants to store it. Raises SettingsError."""
    setting = definition(name)
    try:
        return setting, setting.parse(text)
    except ValueError as error:
        raise SettingsError(f"{setting.name} cannot be {text!r}: {error}.") from error


def _on_command_line(setting: Definition) -> str:
    return "argument" if setting.setting.positional else setting.flag
