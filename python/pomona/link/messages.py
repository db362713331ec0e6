"""Frames between the server and a worker process: msgspec structs, msgpack on a socketpair.

One frame is a 4-byte little-endian length followed by the msgpack bytes (see `framing`). The worker sends
one `StepOutput` per engine step for all rows; nothing here is sent per token.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
import numpy as np
from numpy.typing import NDArray


class FinishReason(StrEnum):
    STOP = "stop"  # a stop id was sampled
    LENGTH = "length"  # max_tokens, the model's context or the pool's size was reached
    ERROR = "error"  # this row failed; `RowUpdate.error` says why


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a row's tokens are drawn. temperature 0 is greedy; the seed fixes the row's random numbers in
    any batch. The defaults change nothing.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and answer, by division (Keskar et al., 2019)
    presence_penalty: float = 0.0  # over the answer, as OpenAI defines it
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int = 0
    min_tokens: int = 0  # stop ids can't be drawn before
    logprobs: int | None = None  # None: off; k: the drawn token's and the k most likely ones'


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities of the model's own distribution (before temperature, penalties and bias)."""

    token: int
    logprob: float
    top: list[tuple[int, float]] = []  # most likely first


# ---------------------------------------------------------------- server to worker


class Submit(msgspec.Struct, tag="submit", frozen=True):
    """Start a row. `tokens` and `boundaries` are packed little-endian int32."""

    id: int
    tokens: bytes
    sampling: Sampling
    max_tokens: int
    stop_ids: list[int]
    boundaries: bytes = b""  # prompt positions where a message ends, ascending
    prompt_logprobs: int | None = None  # as Sampling.logprobs, for the prompt's own tokens
    request_id: str = ""  # for the log

    @staticmethod
    def pack(ids: list[int]) -> bytes:
        return np.asarray(ids, dtype="<i4").tobytes()

    @property
    def prompt_tokens(self) -> int:
        return len(self.tokens) // 4

    def prompt(self) -> NDArray[np.int32]:
        return np.frombuffer(self.tokens, dtype="<i4").astype(np.int32)


class Cancel(msgspec.Struct, tag="cancel", frozen=True):
    """Forget a row. An unknown id is ignored: the row may just have ended."""

    id: int


class Stop(msgspec.Struct, tag="stop", frozen=True):
    """Finish the step in flight and exit."""


ToWorker = Submit | Cancel | Stop

# ---------------------------------------------------------------- worker to server


class ModelInfo(msgspec.Struct, frozen=True):
    """What the worker found when it loaded the model."""

    model_type: str
    context_tokens: int  # the model's own window
    pool_tokens: int  # tokens the KV pool can hold
    block_size: int
    reader: str  # "paged" or "gathered"
    recurrent: bool
    dtype: str
    vocab_size: int  # width of the head
    weights_bytes: int
    kv_bytes_per_token: int
    look_ahead: bool
    blas: str  # the BLAS in use, or why none was loaded
    notes: list[str] = []

    @property
    def row_limit_tokens(self) -> int:
        """Prompt and answer of one row together."""
        return min(self.context_tokens, self.pool_tokens)


class Loaded(msgspec.Struct, tag="loaded", frozen=True):
    info: ModelInfo


class LoadFailed(msgspec.Struct, tag="load_failed", frozen=True):
    message: str


class RowUpdate(msgspec.Struct, frozen=True, omit_defaults=True):
    """News of one row. Sent when it starts, as its prefill advances, with new tokens, at its end."""

    id: int
    tokens: list[int] = []
    prompt_done: int = 0  # prompt tokens computed or reused so far
    cached_tokens: int = 0  # of them reused from the prefix cache
    finish: FinishReason | None = None
    error: str | None = None
    logprobs: list[TokenLogprobs] = []  # one for each of `tokens`, when asked for
    prompt_logprobs: list[TokenLogprobs] = []  # of the prompt tokens from position 1 on, in order


class StepOutput(msgspec.Struct, tag="step", frozen=True):
    rows: list[RowUpdate]


class PoolStats(msgspec.Struct, frozen=True):
    capacity: int
    in_use: int
    idle: int
    free: int
    quarantined: int


class Heartbeat(msgspec.Struct, tag="heartbeat", frozen=True):
    """Sent every second. `idle_s` is the time since the engine thread last made progress."""

    idle_s: float
    running: int
    waiting: int
    pool: PoolStats
    steps: int
    prefill_tokens: int
    decode_tokens: int
    parked: int


FromWorker = Loaded | LoadFailed | StepOutput | Heartbeat
