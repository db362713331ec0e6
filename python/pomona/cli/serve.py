"""`pomona serve`: from settings and the model argument to a folder, then the server."""

from __future__ import annotations

import os
from collections.abc import Mapping

import typer

from pomona.cli.options import with_settings
from pomona.cli.ports import why_unavailable
from pomona.cli.progress import shown_progress
from pomona.config.definitions import DEFINITIONS, Value
from pomona.config.resolve import Resolved, resolve
from pomona.config.schema import ServeSettings
from pomona.conversation.errors import PomonaError
from pomona.models import resolve_model


@with_settings
def serve(given: Mapping[str, Value]) -> None:
    """Serve a model on http://HOST:PORT/v1.

    Every option is a setting: `pomona config` stores it, and a variable POMONA_NAME sets it too.
    """
    settings = prepare(resolve(given))
    # From here on the settings say it all; a variable must not speak to the worker past a flag.
    for definition in DEFINITIONS.values():
        os.environ.pop(definition.variable, None)
    # Here, so that the other commands and the errors above need not wait for the web framework.
    from pomona.server.main import run

    raise typer.Exit(run(settings))


def prepare(resolved: Resolved) -> ServeSettings:
    """Everything that can fail before a server is started, the quick things first."""
    host, port = resolved.value("host"), resolved.value("port")
    if reason := why_unavailable(host, port):
        raise PomonaError(
            f"Port {port} cannot be opened on {host} ({reason}); stop the program that has it "
            "or choose another port with --port."
        )
    with shown_progress("preparing the model") as report:
        folder = resolve_model(resolved.value("model"), report)
    return resolved.serve_settings(str(folder.path), resolved.value("model_name") or folder.name)
