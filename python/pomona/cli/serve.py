"""`pomona serve`: from flags to settings, from the model argument to a folder, then the server."""

from __future__ import annotations

from typing import Annotated

import typer

from pomona.cli.ports import why_unavailable
from pomona.cli.progress import shown_progress
from pomona.cli.sizes import parse_bytes
from pomona.config import ServeSettings, WorkerOptions
from pomona.config.schema import Reader
from pomona.conversation.errors import PomonaError
from pomona.models import resolve_model

# Only for their default values.
ENGINE = WorkerOptions(model="")
SERVER = ServeSettings(model_name="", worker=ENGINE)


def serve(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A model folder or a .gguf file. Without one: the embedded SmolLM2-135M-Instruct."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = SERVER.host,
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = SERVER.port,
    name: Annotated[
        str | None, typer.Option(help="The name clients use for the model. Default: its own.")
    ] = None,
    keep_alive: Annotated[
        float, typer.Option(help="Seconds of silence on a stream before a comment is sent.", min=0.1)
    ] = SERVER.keep_alive_s,
    max_body: Annotated[
        int, typer.Option(help="Largest request body.", metavar="SIZE", parser=parse_bytes)
    ] = SERVER.max_body_bytes,
    shutdown_grace: Annotated[
        float, typer.Option(help="Seconds that running answers get to finish when the server stops.", min=0.0)
    ] = SERVER.shutdown_grace_s,
    kv_memory: Annotated[
        int | None,
        typer.Option(
            help="Memory for the key-value cache, for example 8GB. Default: by the machine's memory.",
            metavar="SIZE",
            parser=parse_bytes,
        ),
    ] = ENGINE.kv_memory_bytes,
    pool_tokens: Annotated[
        int | None, typer.Option(help="The same limit in tokens; the smaller one wins.", min=1)
    ] = ENGINE.pool_tokens,
    block_size: Annotated[
        int, typer.Option(help="Tokens in one cache block.", min=1, max=4096)
    ] = ENGINE.block_size,
    reserve_tokens: Annotated[
        int, typer.Option(help="New tokens an admitted request has room reserved for.", min=1)
    ] = ENGINE.reserve_tokens,
    prefill_budget_ms: Annotated[
        float, typer.Option(help="How long one step of prefill may hold up running answers.", min=1.0)
    ] = ENGINE.prefill_budget_ms,
    max_rows: Annotated[int, typer.Option(help="Requests computed at once.", min=1)] = ENGINE.max_rows,
    look_ahead: Annotated[
        bool, typer.Option(help="Start a step before the previous one is read.")
    ] = ENGINE.look_ahead,
    blas: Annotated[bool, typer.Option(help="Load an optimized BLAS (Linux).")] = ENGINE.blas,
    reader: Annotated[Reader, typer.Option(help="How attention reads the cache.")] = ENGINE.reader,
) -> None:
    """Serve a model on http://HOST:PORT/v1."""
    if reason := why_unavailable(host, port):
        raise PomonaError(
            f"Port {port} cannot be opened on {host} ({reason}); stop the program that has it "
            "or choose another port with --port."
        )
    with shown_progress("preparing the model") as report:
        folder = resolve_model(model, report)
    settings = ServeSettings(
        model_name=name or folder.name,
        host=host,
        port=port,
        keep_alive_s=keep_alive,
        max_body_bytes=max_body,
        shutdown_grace_s=shutdown_grace,
        worker=WorkerOptions(
            model=str(folder.path),
            block_size=block_size,
            pool_tokens=pool_tokens,
            kv_memory_bytes=kv_memory,
            reserve_tokens=reserve_tokens,
            prefill_budget_ms=prefill_budget_ms,
            look_ahead=look_ahead,
            blas=blas,
            max_rows=max_rows,
            reader=reader,
        ),
    )
    # Here, so that the other commands and the errors above need not wait for the web framework.
    from pomona.server.main import run

    raise typer.Exit(run(settings))
