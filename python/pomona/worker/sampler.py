"""Picks one token per row from its logits.

The order of a row's transforms: logit_bias, repetition penalty, presence and frequency penalty, the mask of
stop ids before min_tokens (all of these in `penalties`, for greedy rows too); then temperature, top_k, top_p,
min_p and the draw (in `_ops.choose`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mlx.core as mx

from pomona import _ops
from pomona.link.messages import Sampling
from pomona.worker.penalties import Shape

FAILED = -1
"""Stands for a token where a row's logits were not finite."""

GREEDY = _ops.DrawRule(temperature=0.0)

_MASK64 = (1 << 64) - 1
_MOST_TOKENS = (1 << 31) - 1


@dataclass(slots=True)
class Draw:
    """One row's request for a token. `index` counts the tokens it has sampled before."""

    rule: _ops.DrawRule
    index: int
    shape: Shape | None = None
    """What happens to the raw logits first; applied by `penalties.shape_rows`, not by `sample`."""


def rule_of(sampling: Sampling) -> _ops.DrawRule:
    return _ops.DrawRule(
        sampling.temperature,
        min(sampling.top_k, _MOST_TOKENS),
        sampling.top_p,
        sampling.min_p,
        sampling.seed & _MASK64,
    )


def problem_with(sampling: Sampling, stop_ids: frozenset[int], vocab_size: int) -> str | None:
    """Why a row can't be sampled this way, as a sentence; None when it can."""
    s = sampling
    outside = [token for token in s.logit_bias if not 0 <= token < vocab_size]
    free = not s.min_tokens or any(token not in stop_ids for token in range(vocab_size))
    checks = [
        (0 <= s.temperature < math.inf, "temperature must be a number from 0 on"),
        (0 <= s.top_p <= 1, "top_p must lie between 0 and 1"),
        (s.top_k >= 0, "top_k must not be negative (0 keeps all tokens)"),
        (0 <= s.min_p <= 1, "min_p must lie between 0 and 1"),
        (1e-30 < s.repetition_penalty < 1e30, "repetition_penalty must be above 0"),
        (_usable(s.presence_penalty), "presence_penalty must be a number"),
        (_usable(s.frequency_penalty), "frequency_penalty must be a number"),
        (all(map(_usable, s.logit_bias.values())), "the values of logit_bias must be numbers"),
        (not outside, f"logit_bias has ids outside the model's vocabulary of {vocab_size}: {outside[:3]}"),
        (s.min_tokens >= 0, "min_tokens must not be negative"),
        (free, "min_tokens leaves no token to choose: every one of the vocabulary is a stop id"),
        (s.logprobs is None or s.logprobs >= 0, "logprobs must not be negative"),
    ]
    return next((message for holds, message in checks if not holds), None)


def sample(logits: mx.array, draws: list[Draw]) -> mx.array:
    """Tokens int32 [W] for logits [W, V], lazily; FAILED where a row holds NaN, +inf or nothing but -inf."""
    return _ops.choose(logits, [draw.rule for draw in draws], [draw.index for draw in draws])


def _usable(value: float) -> bool:
    """Whether it is a number with which float32 does not overflow."""
    return abs(value) < 1e30
