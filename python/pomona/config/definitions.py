"""What the schema says, read from it: for each setting its name, type and default, and how its value
is read from text or TOML, checked, and written.
"""

from __future__ import annotations

import difflib
import re
import sys
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from pomona.config import units
from pomona.config.errors import SettingsError
from pomona.config.schema import ServeSettings, Setting, WorkerOptions

PREFIX = "POMONA_"

# How None is written where nothing can be left out.
NONE = "none"
SWITCH_WORDS = {
    **dict.fromkeys(("true", "on", "yes", "1"), True),
    **dict.fromkeys(("false", "off", "no", "0"), False),
}

Kind = Literal["text", "integer", "number", "switch", "choice", "list"]
Value = str | int | float | bool | tuple[str, ...] | None
Struct = type[ServeSettings] | type[WorkerOptions]

_KINDS: dict[Any, Kind] = {str: "text", int: "integer", float: "number", bool: "switch"}


@dataclass(frozen=True, slots=True)
class Definition:
    """One setting."""

    name: str
    kind: Kind
    default: Value
    # Whether None is a value.
    optional: bool
    choices: tuple[str, ...]
    struct: Struct
    setting: Setting

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def type_text(self) -> str:
        """The type and its range, for people."""
        setting = self.setting
        if self.kind == "choice":
            return " | ".join(self.choices)
        text = {"switch": "true | false", "list": "a,b,..."}.get(self.kind, self.kind)
        if self.kind in ("integer", "number") and setting.unit:
            text = {"bytes": "size", "s": "seconds", "ms": "milliseconds"}.get(setting.unit, text)
        low, high = (None if bound is None else self._amount(bound) for bound in (setting.ge, setting.le))
        if low and high:
            return f"{text}, {low} to {high}"
        if low:
            return f"{text}, at least {low}"
        return text

    @property
    def default_text(self) -> str:
        if self.setting.home_file:
            return f"{self.setting.home_file} in POMONA_HOME"
        return self.setting.none_means if self.default is None else self.format(self.default) or "empty"

    def parse(self, text: str) -> Value:
        """From a flag or a variable. A ValueError is a phrase about what is wrong."""
        if self.optional and text.strip().lower() == NONE:
            return None
        return self._checked(self._read(text))

    def check(self, value: object) -> Value:
        """From a TOML file, where amounts may be texts too. Raises ValueError."""
        return self.parse(value) if isinstance(value, str) else self._checked(value)

    def format(self, value: Value) -> str:
        """Text that `parse` reads back as the same value."""
        match value:
            case None:
                return NONE
            case bool():
                return "true" if value else "false"
            case tuple():
                return ",".join(value)
            case int() | float():
                return self._amount(value)
        return value

    def to_toml(self, value: Value) -> str | int | float | bool | list[str]:
        """How it stands in the file: readable amounts, native types."""
        match value:
            case None:
                return NONE
            case tuple():
                return list(value)
            case int() if self.setting.unit == "bytes":
                return self._amount(value)
            case float() if value.is_integer():
                return int(value)
        return value

    def _read(self, text: str) -> object:
        unit, word = self.setting.unit, text.strip().lower()
        match self.kind:
            case "integer":
                return units.parse_bytes(text) if unit == "bytes" else units.parse_whole(text)
            case "number":
                return units.parse_seconds(text) if unit == "s" else units.parse_number(text)
            case "switch":
                return SWITCH_WORDS.get(word, text)
            case "choice":
                return word if word in self.choices else text
            case "list":
                return [item.strip() for item in text.split(",")] if word else []
        return text

    def _checked(self, value: object) -> Value:
        checked = self._typed(value)
        self._check_range(checked)
        self._check_effect(checked)
        return checked

    def _typed(self, value: object) -> Value:
        switch = isinstance(value, bool)
        match self.kind, value:
            case "text", str() if value.strip() and "\0" not in value:
                return value
            case "text", str():
                raise ValueError("it must not be empty")
            case "switch", bool():
                return value
            case "integer", int() if not switch:
                return value
            case "number", int() | float() if not switch:
                return units.parse_number(str(value))
            case "choice", str() if value in self.choices:
                return value
            case "list", list() | tuple():
                return tuple(self._item(item) for item in value)
        raise ValueError(f"{value!r} is not {self._wanted()}")

    def _item(self, item: object) -> str:
        # A comma would make it two items in a flag.
        if not isinstance(item, str) or "," in item or not re.fullmatch(self.setting.pattern, item):
            raise ValueError(f"{item!r} is not {self.setting.pattern_means}")
        return item

    def _wanted(self) -> str:
        if self.kind == "choice":
            return f"one of {', '.join(self.choices)}"
        if self.setting.unit == "bytes":
            return "a size such as 8GB"
        return {
            "text": "text",
            "integer": "a whole number",
            "number": "a number",
            "switch": "true or false",
            "list": "a list of texts",
        }[self.kind]

    def _check_range(self, value: Value) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        low, high = self.setting.ge, self.setting.le
        if low is not None and value < low:
            raise ValueError(f"{self._amount(value)} is too small: {self._amount(low)} or more")
        if high is not None and value > high:
            raise ValueError(f"{self._amount(value)} is too large: {self._amount(high)} or less")

    def _check_effect(self, value: Value) -> None:
        platform = self.setting.only_on
        if platform and not sys.platform.startswith(platform) and value != self.default:
            raise ValueError(f"it has no effect on this system, only on {platform}")

    def _amount(self, value: float) -> str:
        if self.setting.unit == "bytes":
            return units.exact_bytes(int(value))
        if isinstance(value, int):
            return str(value)
        return units.format_number(value) + ("s" if self.setting.unit == "s" else "")


def definition(name: str) -> Definition:
    """The setting of that name; hyphens count as underscores."""
    found = DEFINITIONS.get(name.replace("-", "_"))
    if found is None:
        raise SettingsError(
            f"There is no setting {name!r}{did_you_mean(name.replace('-', '_'), DEFINITIONS)}; "
            "`pomona config list` shows all."
        )
    return found


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """' (did you mean X?)', or nothing when nothing is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _definitions() -> dict[str, Definition]:
    found: dict[str, Definition] = {}
    structs: tuple[Struct, ...] = (ServeSettings, WorkerOptions)
    for struct in structs:
        hints = typing.get_type_hints(struct, include_extras=True)
        for field in msgspec.structs.fields(struct):
            base, *extras = typing.get_args(hints[field.name]) or (None,)
            for setting in extras:
                if isinstance(setting, Setting):
                    assert field.name not in found, f"{field.name} is declared twice"
                    found[field.name] = _define(field, base, struct, setting)
    groups = typing.get_args(typing.get_type_hints(Setting)["group"])
    return dict(sorted(found.items(), key=lambda item: groups.index(item[1].setting.group)))


def _define(field: msgspec.structs.FieldInfo, base: Any, struct: Struct, setting: Setting) -> Definition:
    # A field without a default is None until the command fills it in.
    default = None if field.default is msgspec.NODEFAULT else field.default
    if isinstance(base, types.UnionType):
        (base,) = (part for part in typing.get_args(base) if part is not types.NoneType)
    kind: Kind
    choices: tuple[str, ...] = ()
    if typing.get_origin(base) is Literal:
        kind, choices = "choice", typing.get_args(base)
    elif typing.get_origin(base) is tuple:
        kind = "list"
    else:
        kind = _KINDS[base]
    return Definition(field.name, kind, default, default is None, choices, struct, setting)


DEFINITIONS: dict[str, Definition] = _definitions()
