"""The settings of one server and of one worker.

Values only: where they come from (flags, later variables and a file) is the caller's business. Both
structs are frozen, so they can be handed down without copies, and msgspec can send `WorkerOptions` to
the worker process.
"""

from typing import Literal

import msgspec

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8642

# A request body is text and inline images; 64 MiB holds a full context of either.
DEFAULT_MAX_BODY_BYTES = 64 * 1024 * 1024

Reader = Literal["auto", "paged", "gathered", "stock"]


class WorkerOptions(msgspec.Struct, frozen=True):
    """What one worker process is told at its start."""

    # The model folder: config.json, weights and tokenizer.
    model: str
    # Tokens in one block of keys and values.
    block_size: int = 64
    # Tokens the pool can hold; None: sized from the memory of the machine.
    pool_tokens: int | None = None
    # The same limit in bytes, for people who think in memory; the smaller of the two wins.
    kv_memory_bytes: int | None = None
    # An admitted request reserves room for its prompt and this many new tokens.
    reserve_tokens: int = 1024
    # How long prefill may hold up the running rows in one step.
    prefill_budget_ms: float = 250.0
    # Dispatch the next forward before the CPU work of the previous step.
    look_ahead: bool = True
    # Load an optimized BLAS before mlx (Linux).
    blas: bool = True
    # Rows in one step.
    max_rows: int = 64
    # How attention reads blocks; "auto" lets the probe choose at load.
    reader: Reader = "auto"


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one server process is told at its start."""

    # The name clients use in `model`.
    model_name: str
    worker: WorkerOptions
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    # Silence on a stream after which a comment is sent to keep the connection open.
    keep_alive_s: float = 10.0
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    # How long running answers may take to finish after a request to stop.
    shutdown_grace_s: float = 30.0
