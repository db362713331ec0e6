"""`pomona keys`: make, show and revoke API keys."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from pomona.config.keys import KeyStore
from pomona.config.resolve import resolve

keys = typer.Typer(help="Make, show and revoke API keys.", no_args_is_help=True)

DEFAULT_NAME = "default"


@keys.command("create")
def create(
    name: Annotated[str, typer.Argument(help="What you will know it by.")] = DEFAULT_NAME,
) -> None:
    """Make a key and print it. It is shown this once only."""
    info, key = _store().create(name)
    print(key)
    # Standard output is the key alone, for scripts.
    print(f"pomona: this is key {info.id} ({info.name}); it cannot be shown again.", file=sys.stderr)


@keys.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """Show the keys, without what would let anybody use them."""
    infos = _store().list()
    if as_json:
        print(json.dumps(msgspec.to_builtins(infos)))
        return
    if not infos:
        print("There are no keys: any program on this machine may use the server. See `pomona keys create`.")
        return
    table = Table("id", "name", "created", "key", box=None, pad_edge=False)
    for info in infos:
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.created))
        table.add_row(info.id, info.name, created, f"pomona-...{info.last}")
    Console(highlight=False, markup=False).print(table)


@keys.command("revoke")
def revoke(key: Annotated[str, typer.Argument(metavar="ID|NAME", help="Which one.")]) -> None:
    """Remove a key. A running server refuses it from then on."""
    info = _store().revoke(key)
    print(f"revoked {info.id} ({info.name})")


def _store() -> KeyStore:
    return KeyStore(Path(resolve().value("api_keys_file")))
