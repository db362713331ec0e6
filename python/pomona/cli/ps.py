"""`pomona ps`: what a running server does."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pomona.cli.client import Client, api_key, base_url
from pomona.cli.errors import CommandError
from pomona.config.resolve import resolve

Url = Annotated[
    str | None,
    typer.Option(
        help="Base URL of the server. Default: the configured host and port.",
        metavar="URL",
        show_default=False,
    ),
]


def ps(
    url: Url = None, as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False
) -> None:
    """Show a running server: health, model, requests, cache. Exits with 1 unless it is ready."""
    with closing(Client(base_url(url, resolve()), api_key())) as client:
        status, health = client.health()
        if "status" not in health:
            raise CommandError(
                f"What answers at {client.base_url} is not a pomona; give its address with --url."
            )
        ready = status == 200
        models = client.models() if ready else []
    if as_json:
        print(json.dumps({"url": client.base_url, "ready": ready, "models": models, "health": health}))
    else:
        table = Table("what", "value", show_header=False, box=None, pad_edge=False)
        for what, value in _rows(client.base_url, models, health):
            table.add_row(what, value)
        Console(highlight=False, markup=False).print(table)
    raise typer.Exit(0 if ready else 1)


def _rows(url: str, models: list[str], health: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("server", url), ("health", str(health["status"]))]
    if reason := health.get("reason"):
        rows.append(("reason", str(reason)))
    rows += [("model", model) for model in models]
    if "running" in health:
        rows.append(("requests", f"{health['running']} running, {health['waiting']} waiting"))
    pool = health.get("pool")
    if isinstance(pool, dict):
        counts = (f"{count} {name.replace('_', ' ')}" for name, count in pool.items())
        rows.append(("cache blocks", ", ".join(counts)))
    return rows
