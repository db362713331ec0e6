"""Every setting, declared once: a field of one of these two structs with its `Setting` beside it.

Flags, POMONA_* variables, the TOML file, `pomona config` and docs/settings.md are made from this file
(see `definitions.py`); there is no second list. A field without a default is filled in by the command,
from the model. Both structs are frozen, and msgspec can send `WorkerOptions` to the worker process.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8642

MIB = 1024 * 1024
# A request body is text and inline images; this holds a full context of either.
DEFAULT_MAX_BODY_BYTES = 64 * MIB
DAY_S = 24 * 3600.0

Scope = Literal["global", "model", "request"]
Unit = Literal["bytes", "s", "ms", "tokens"]
Group = Literal["Server", "Limits", "Access", "Supervision", "Logs", "Model", "Cache and steps"]

Reader = Literal["auto", "paged", "gathered", "stock"]
FusedOps = Literal["auto", "off"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a setting has besides its name, type and default."""

    help: str
    group: Group
    # Who it applies to; "model" and "request" may differ between models or requests.
    scope: Scope = "global"
    # Whether a running server takes a change up; otherwise after a restart.
    live: bool = False
    unit: Unit | None = None
    ge: float | None = None
    le: float | None = None
    # What the default None stands for.
    none_means: str = "no limit"
    # The default is this file in POMONA_HOME, and relative paths start there.
    home_file: str | None = None
    # What each item of a list must look like, and the words for it.
    pattern: str = r".+"
    pattern_means: str = "text"
    # sys.platform where it has an effect; elsewhere setting it is an error.
    only_on: str | None = None
    # An argument of `serve`, not a flag.
    positional: bool = False


class WorkerOptions(msgspec.Struct, frozen=True):
    """What one worker process is told at its start."""

    model: Annotated[
        str,
        Setting(
            help="A model folder or a .gguf file.",
            group="Model",
            none_means="the embedded SmolLM2-135M-Instruct",
            positional=True,
        ),
    ]
    block_size: Annotated[
        int,
        Setting(
            help="Tokens in one block of keys and values.",
            group="Cache and steps",
            scope="model",
            unit="tokens",
            ge=1,
            le=4096,
        ),
    ] = 64
    pool_tokens: Annotated[
        int | None,
        Setting(
            help="Tokens that the key-value cache can hold.",
            group="Cache and steps",
            scope="model",
            unit="tokens",
            ge=1,
            none_means="by the memory of the machine",
        ),
    ] = None
    kv_memory_bytes: Annotated[
        int | None,
        Setting(
            help="The same limit as memory, for example 8GB; the smaller of the two wins.",
            group="Cache and steps",
            scope="model",
            unit="bytes",
            ge=1,
            none_means="by the memory of the machine",
        ),
    ] = None
    reserve_tokens: Annotated[
        int,
        Setting(
            help="New tokens that an admitted request has room reserved for, beside its prompt.",
            group="Cache and steps",
            scope="model",
            unit="tokens",
            ge=1,
        ),
    ] = 1024
    prefill_budget_ms: Annotated[
        float,
        Setting(
            help="How long one step of prefill may hold up running answers.",
            group="Cache and steps",
            scope="model",
            unit="ms",
            ge=1.0,
            le=60_000.0,
        ),
    ] = 250.0
    look_ahead: Annotated[
        bool,
        Setting(help="Start a step before the previous one is read.", group="Cache and steps", scope="model"),
    ] = True
    blas: Annotated[
        bool,
        Setting(
            help="Load an optimized BLAS before mlx.",
            group="Cache and steps",
            scope="model",
            only_on="linux",
        ),
    ] = True
    max_rows: Annotated[
        int,
        Setting(help="Answers computed at once.", group="Cache and steps", scope="model", ge=1, le=4096),
    ] = 64
    reader: Annotated[
        Reader,
        Setting(
            help="How attention reads blocks; auto lets a probe choose when the model is loaded.",
            group="Cache and steps",
            scope="model",
        ),
    ] = "auto"
    fused_ops: Annotated[
        FusedOps,
        Setting(
            help="Whether the CPU runs whole layers as one op where trials at load show that they are equal.",
            group="Cache and steps",
            scope="model",
            only_on="linux",
        ),
    ] = "auto"
    log_level: Annotated[
        LogLevel, Setting(help="The least serious messages that are logged.", group="Logs")
    ] = "warning"
    log_format: Annotated[
        LogFormat, Setting(help="Log lines for people, or one JSON object per line.", group="Logs")
    ] = "text"


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one server process is told at its start."""

    model_name: Annotated[
        str,
        Setting(
            help="The name that clients use for the model.",
            group="Model",
            scope="model",
            none_means="the model's own",
        ),
    ]
    worker: WorkerOptions

    host: Annotated[str, Setting(help="Address to listen on.", group="Server")] = DEFAULT_HOST
    port: Annotated[
        int, Setting(help="Port to listen on; 0 takes a free one.", group="Server", ge=0, le=65535)
    ] = DEFAULT_PORT
    keep_alive_s: Annotated[
        float,
        Setting(
            help="Silence on a stream after which a comment keeps the connection open.",
            group="Server",
            unit="s",
            ge=0.05,
            le=DAY_S,
        ),
    ] = 10.0
    shutdown_grace_s: Annotated[
        float,
        Setting(
            help="How long running answers may take to finish when the server is told to stop.",
            group="Server",
            unit="s",
            ge=0.0,
            le=DAY_S,
        ),
    ] = 30.0

    max_body_bytes: Annotated[
        int, Setting(help="Largest request body.", group="Limits", unit="bytes", ge=1024)
    ] = DEFAULT_MAX_BODY_BYTES
    max_header_bytes: Annotated[
        int,
        Setting(
            help="Largest head of a request: its line and headers.",
            group="Limits",
            unit="bytes",
            ge=1024,
            le=16 * MIB,
        ),
    ] = 32 * 1024
    max_json_depth: Annotated[
        int, Setting(help="Deepest nesting of a JSON body.", group="Limits", ge=4, le=512)
    ] = 64
    max_array_items: Annotated[
        int, Setting(help="Most items in any one array of a JSON body.", group="Limits", ge=16)
    ] = 100_000
    max_prompt_tokens: Annotated[
        int | None,
        Setting(
            help="Longest prompt.",
            group="Limits",
            unit="tokens",
            ge=1,
            none_means="what the model and the cache can hold",
        ),
    ] = None
    max_choices: Annotated[
        int, Setting(help="Most answers to one prompt (n, best_of).", group="Limits", ge=1, le=1024)
    ] = 128
    request_timeout_s: Annotated[
        float | None,
        Setting(help="Longest time that one request may take.", group="Limits", unit="s", ge=0.1),
    ] = None
    receive_timeout_s: Annotated[
        float,
        Setting(
            help="Longest time that a request's headers may take to arrive, and longest pause in its body.",
            group="Limits",
            unit="s",
            ge=0.1,
            le=DAY_S,
        ),
    ] = 30.0
    max_queue: Annotated[
        int, Setting(help="Most requests that are open at once, running or waiting.", group="Limits", ge=1)
    ] = 1024

    allow_remote: Annotated[
        bool,
        Setting(help="Listen beyond this machine although there is no API key.", group="Access"),
    ] = False
    api_keys_file: Annotated[
        str | None,
        Setting(
            help="The file with the API keys that `pomona keys` makes.", group="Access", home_file="keys.json"
        ),
    ] = None
    allowed_hosts: Annotated[
        tuple[str, ...],
        Setting(
            help="Host names that requests may be addressed to; * is any. Holds off DNS rebinding.",
            group="Access",
            pattern=r"\*|[A-Za-z0-9._-]+|\[?[0-9A-Fa-f:]+\]?",
            pattern_means="a host name or address, without scheme and port",
        ),
    ] = ("localhost", "127.0.0.1", "::1")
    cors_origins: Annotated[
        tuple[str, ...],
        Setting(
            help="Origins whose web pages may call the server, such as https://chat.example; * is any.",
            group="Access",
            pattern=r"\*|[a-z][a-z0-9+.-]*://[^/\s]+",
            pattern_means="an origin such as https://chat.example, without a path",
        ),
    ] = ()

    restart_backoff_s: Annotated[
        float,
        Setting(
            help="Pause before a dead worker is started again; doubled each time in a row.",
            group="Supervision",
            unit="s",
            ge=0.0,
            le=DAY_S,
        ),
    ] = 1.0
    restart_limit: Annotated[
        int,
        Setting(
            help="Restarts within ten minutes after which the server gives up; 0 starts no worker again.",
            group="Supervision",
            ge=0,
        ),
    ] = 5
    heartbeat_limit_s: Annotated[
        float,
        Setting(
            help="Silence after which a worker counts as hung.",
            group="Supervision",
            unit="s",
            ge=2.0,
            le=DAY_S,
        ),
    ] = 10.0
    wedge_limit_s: Annotated[
        float,
        Setting(
            help="Time without a finished step after which a worker with work counts as hung.",
            group="Supervision",
            unit="s",
            ge=5.0,
            le=DAY_S,
        ),
    ] = 120.0

    log_prompts: Annotated[
        bool, Setting(help="Write the text of prompts and answers to the log.", group="Logs")
    ] = False

    @property
    def log_level(self) -> LogLevel:
        """The worker's too, and therefore with its options."""
        return self.worker.log_level

    @property
    def log_format(self) -> LogFormat:
        return self.worker.log_format
