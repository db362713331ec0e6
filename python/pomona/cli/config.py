"""`pomona config`: read, change and explain settings."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pomona.config.definitions import DEFINITIONS, Definition, definition
from pomona.config.environment import check_names
from pomona.config.home import config_file
from pomona.config.resolve import Candidate, check_new_value, resolve
from pomona.config.toml_file import set_in_file, unset_in_file

config = typer.Typer(help="Read, change and explain settings.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The setting's name.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


@config.command("get")
def get(name: Name) -> None:
    """Print the value that holds."""
    setting = definition(name)
    print(setting.format(resolve().value(setting.name)))


@config.command("set")
def set_(
    name: Name, value: Annotated[str, typer.Argument(metavar="VALUE", help="Its value, or none.")]
) -> None:
    """Store a value in the settings file."""
    check_names(os.environ)
    setting, checked = check_new_value(name, value)
    set_in_file(config_file(), setting, checked)
    print(f"{setting.name} = {setting.format(checked)}, at the next start of a server")
    if setting.variable in os.environ:
        Console(stderr=True).print(f"pomona: the variable {setting.variable} is set, and wins.")


@config.command("unset")
def unset(name: Name) -> None:
    """Remove a value from the settings file, so that the default holds."""
    # Also for what is no setting (any more): that is how such a line is got rid of.
    stored = name if name in DEFINITIONS else name.replace("-", "_")
    if not unset_in_file(config_file(), stored) and not unset_in_file(config_file(), name):
        definition(name)
        print(f"{stored} was not set")


@config.command("list")
def list_(as_json: AsJson = False) -> None:
    """Show all settings with their values and where these come from."""
    resolved = resolve()
    if as_json:
        print(json.dumps([_described(d, resolved.candidates(d.name)[0]) for d in DEFINITIONS.values()]))
        return
    table = Table("setting", "value", "from", "what it is", box=None, pad_edge=False)
    for setting in DEFINITIONS.values():
        first = resolved.candidates(setting.name)[0]
        table.add_row(setting.name, _shown(setting, first), first.source, setting.setting.help)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 1000
    console.print(table)


@config.command("explain")
def explain(name: Name) -> None:
    """Say what a setting is, what it may be, and where its value comes from."""
    setting = definition(name)
    candidates = resolve().candidates(setting.name)
    about = setting.setting
    way = "the argument of serve" if about.positional else setting.flag
    print(f"{setting.name} = {_shown(setting, candidates[0])}")
    print(f"  {about.help}")
    print(f"  type: {setting.type_text}{', or none' if setting.optional else ''}")
    print(f"  default: {setting.default_text}")
    print(f"  scope: {about.scope}; a change takes effect {'at once' if about.live else 'after a restart'}")
    print(f"  ways to set it, strongest first: {way}, {setting.variable}, {config_file()}")
    print(f"  the value comes from: {_place(candidates[0])}")
    for candidate in candidates[1:]:
        if candidate.source != "default":
            print(f"  overridden: {setting.format(candidate.value)} from {_place(candidate)}")


@config.command("path")
def path() -> None:
    """Print where the settings file is, or would be."""
    print(config_file())


def _shown(setting: Definition, candidate: Candidate) -> str:
    if candidate.value is None:
        return f"none ({setting.default_text})"
    return setting.format(candidate.value) or "empty"


def _place(candidate: Candidate) -> str:
    return f"the {candidate.source} {candidate.place}".strip()


def _described(setting: Definition, candidate: Candidate) -> dict[str, Any]:
    return {
        "name": setting.name,
        "value": candidate.value,
        "source": candidate.source,
        "place": candidate.place or None,
        "default": setting.default,
        "type": setting.type_text,
        "scope": setting.setting.scope,
        "live": setting.setting.live,
        "help": setting.setting.help,
        "flag": None if setting.setting.positional else setting.flag,
        "variable": setting.variable,
    }
