"""$POMONA_HOME/config.toml: one line per setting. Changes keep comments and order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import tomlkit
from tomlkit.exceptions import TOMLKitError

from pomona.config.definitions import DEFINITIONS, Definition, Value, did_you_mean
from pomona.config.errors import SettingsError
from pomona.config.private_file import locked, write_private

HEADER = "Settings of pomona; `pomona config list` shows all, docs/settings.md explains them."


def read_file(path: Path) -> dict[str, Value]:
    """The settings in the file, by name. Raises SettingsError for unknown and wrong ones."""
    values: dict[str, Value] = {}
    for name, value in _load(path).unwrap().items():
        definition = DEFINITIONS.get(name)
        if definition is None:
            raise SettingsError(
                f"{path} sets {name!r}, which is not a setting{did_you_mean(name, DEFINITIONS)}; "
                f"remove it with `pomona config unset {name}`."
            )
        try:
            values[name] = definition.check(value)
        except ValueError as error:
            raise SettingsError(f"{path} sets {name} wrong: {error}.") from error
    return values


def set_in_file(path: Path, definition: Definition, value: Value) -> None:
    def change(document: tomlkit.TOMLDocument) -> None:
        if not document.as_string():
            document.add(tomlkit.comment(HEADER))
        document[definition.name] = definition.to_toml(value)

    _change(path, change)


def unset_in_file(path: Path, name: str) -> bool:
    """Whether it was set there. Takes names that are not settings, to get rid of them."""
    was_set = name in _load(path)
    if was_set:
        _change(path, lambda document: document.pop(name, None))
    return was_set


def _change(path: Path, change: Callable[[tomlkit.TOMLDocument], object]) -> None:
    with locked(path):
        document = _load(path)
        change(document)
        write_private(path, document.as_string().encode())


def _load(path: Path) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(path.read_bytes())
    except FileNotFoundError:
        return tomlkit.document()
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML ({error}); correct or remove it.") from error
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be read ({error.strerror or error}); give yourself the right to read it."
        ) from error
