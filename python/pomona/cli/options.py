"""Flags made from the settings: a command that takes `given` gets one for each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from pomona.config.definitions import DEFINITIONS, Definition, Value

# Leaves out of help what the shape already says.
METAVARS = {"bytes": "SIZE", "s": "SECONDS", "ms": "MS", "tokens": "TOKENS"}


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a flag for every setting. It is called with `given`: the settings that were named
    on the command line, by name; other parameters are its own."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]

    def with_flags(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in DEFINITIONS}
        command(given=_typed({name: text for name, text in given.items() if text is not None}), **arguments)

    parameters = [*map(_parameter, DEFINITIONS.values()), *own]
    # Arguments come before flags in the help.
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    with_flags.__annotations__ = {p.name: p.annotation for p in parameters}
    with_flags.__name__, with_flags.__doc__ = command.__name__, command.__doc__
    return with_flags


def _parameter(definition: Definition) -> inspect.Parameter:
    annotation: Any = bool | None if definition.kind == "switch" else str | None
    return inspect.Parameter(
        definition.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[annotation, _info(definition)],
    )


def _info(definition: Definition) -> Any:
    text = f"{definition.setting.help} Default: {definition.default_text}."
    if definition.setting.positional:
        return typer.Argument(help=text, show_default=False)
    if definition.kind == "switch":
        return typer.Option(f"{definition.flag}/--no-{definition.flag[2:]}", help=text, show_default=False)
    return typer.Option(
        definition.flag,
        help=text,
        show_default=False,
        metavar=_metavar(definition),
        rich_help_panel=definition.setting.group,
    )


def _metavar(definition: Definition) -> str:
    if definition.kind == "choice":
        return "|".join(definition.choices)
    return METAVARS.get(definition.setting.unit or "", {"list": "A,B,..."}.get(definition.kind, "VALUE"))


def _typed(given: Mapping[str, str | bool]) -> dict[str, Value]:
    values = {}
    for name, text in given.items():
        definition = DEFINITIONS[name]
        try:
            values[name] = definition.check(text)
        except ValueError as error:
            hint = "'MODEL'" if definition.setting.positional else f"'{definition.flag}'"
            raise typer.BadParameter(f"{error}.", param_hint=hint) from error
    return values
