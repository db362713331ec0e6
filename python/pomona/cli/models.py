"""`pomona models`: what can be served from this machine's disk."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pomona.config.resolve import resolve
from pomona.config.units import format_bytes
from pomona.models.inventory import known_models


def models(as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """Show the models on this machine, with their sizes."""
    found = list(known_models(resolve().value("model")))
    if as_json:
        fields = ("name", "kind", "size_bytes", "problem")
        print(json.dumps([{f: getattr(m, f) for f in fields} | {"path": str(m.path)} for m in found]))
        return
    if not found:
        print("There are no models here; give `pomona serve` a model folder or a .gguf file.")
        return
    table = Table("model", "kind", "size", "path", "problem", box=None, pad_edge=False)
    for model in found:
        size = format_bytes(model.size_bytes)
        table.add_row(model.name, model.kind, size, str(model.path), model.problem)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 1000
    console.print(table)
