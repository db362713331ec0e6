"""Picks one token per row from its logits.

The order of a row's transforms: logit_bias, repetition penalty, presence and frequency penalty, the mask of
stop ids before min_tokens (all of these in `penalties`, for greedy rows too); then temperature, top_k, top_p,
min_p and the draw (here). top_k and top_p keep every token that ties with the last one kept.

Rows that ask for the same kinds of work are drawn together. A row's token depends on its own logits, sampling
and index alone, never on its neighbours: all operations are per row, its random numbers come from its seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from pomona.link.messages import Sampling
from pomona.worker.penalties import Shape

FAILED = -1
"""Stands for a token where a row's logits were not finite."""

GREEDY_BELOW = 1e-5
"""A temperature under this is greedy: no token but the likeliest has a chance in float32 then."""

PICK_BLOCK = 128
"""Tokens per block of the two-level draw. Sums of blocks keep small probabilities that one running sum over
a vocabulary in float32 would swallow."""

_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Draw:
    """One row's request for a token. `index` counts the tokens it has sampled before."""

    sampling: Sampling
    index: int
    shape: Shape | None = None
    """What happens to the raw logits first; applied by `penalties.shape_rows`, not by `sample`."""

    @property
    def greedy(self) -> bool:
        return self.sampling.temperature < GREEDY_BELOW or self.sampling.top_k == 1


@dataclass(frozen=True, slots=True)
class _Kind:
    """What rows have in common that are drawn together."""

    top_k: int
    """0: all tokens."""
    top_p: bool
    min_p: bool


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
    logits = logits.astype(mx.float32)
    # The largest logit is NaN or infinite as soon as one is; -inf elsewhere is a mask, not a fault.
    healthy = mx.isfinite(mx.max(logits, axis=-1))
    return mx.where(healthy, _choose(logits, draws), FAILED)


def _choose(logits: mx.array, draws: list[Draw]) -> mx.array:
    """Tokens by one argmax for the greedy rows and one draw for each kind of the others."""
    groups: dict[_Kind, list[int]] = {}
    for i, draw in enumerate(draws):
        if not draw.greedy:
            groups.setdefault(_kind(draw.sampling, logits.shape[-1]), []).append(i)
    if not groups:
        return mx.argmax(logits, axis=-1).astype(mx.int32)
    if len(groups) == 1:
        ((kind, rows),) = groups.items()
        if len(rows) == len(draws):
            return _draw_group(logits, kind, draws)
    parts: list[mx.array] = []
    place = list(range(len(draws)))
    at = 0
    if any(draw.greedy for draw in draws):
        parts.append(mx.argmax(logits, axis=-1).astype(mx.int32))
        at = len(draws)
    for kind, rows in groups.items():
        parts.append(_draw_group(logits[mx.array(rows)], kind, [draws[i] for i in rows]))
        for row in rows:
            place[row] = at
            at += 1
    return mx.concatenate(parts)[mx.array(place)]


def _kind(sampling: Sampling, vocab_size: int) -> _Kind:
    top_k = sampling.top_k if sampling.top_k < vocab_size else 0
    return _Kind(top_k, sampling.top_p < 1.0, sampling.min_p > 0.0)


def _draw_group(logits: mx.array, kind: _Kind, draws: list[Draw]) -> mx.array:
    """Tokens int32 [G] for rows [G, V] of one kind."""
    p = mx.softmax(logits / _column([d.sampling.temperature for d in draws]), axis=-1)
    least = _least_kept(p, kind, draws)
    if least is not None:
        p = p * (p >= least)
    uniforms = np.array([_uniforms(d) for d in draws], np.float32)
    return _pick(p, mx.array(uniforms[:, :1]), mx.array(uniforms[:, 1:]))


def _least_kept(p: mx.array, kind: _Kind, draws: list[Draw]) -> mx.array | None:
    """The smallest probability [G, 1] that top_k, top_p and min_p keep; None when they keep all."""
    bounds: list[mx.array] = []
    if kind.top_p:
        top_p = _column([d.sampling.top_p for d in draws])
        likely, total = _likely(p, kind.top_k, top_p)
        before = mx.cumsum(likely, axis=-1) - likely
        kept = mx.where(before < top_p * total, likely, likely[:, :1])
        bounds.append(mx.min(kept, axis=-1, keepdims=True))
    elif kind.top_k:
        bounds.append(mx.min(mx.topk(p, kind.top_k, axis=-1), axis=-1, keepdims=True))
    if kind.min_p:
        min_p = _column([d.sampling.min_p for d in draws])
        bounds.append(min_p * mx.max(p, axis=-1, keepdims=True))
    if not bounds:
        return None
    return bounds[0] if len(bounds) == 1 else mx.maximum(*bounds)


def _likely(p: mx.array, top_k: int, top_p: mx.array) -> tuple[mx.array, mx.array | float]:
    """Probabilities in falling order that hold the whole nucleus, and the sum that top_p is a part of."""
    if top_k:
        likely = -mx.sort(-mx.topk(p, top_k, axis=-1), axis=-1)
        return likely, mx.cumsum(likely, axis=-1)[:, -1:]
    # Tokens less likely than (1 - top_p) / V together weigh less than 1 - top_p: none is in the nucleus. As
    # equal zeros they sort many times faster.
    possible = p * (p >= (1.0 - top_p) / p.shape[-1])
    return -mx.sort(-possible, axis=-1), 1.0


def _pick(p: mx.array, u: mx.array, v: mx.array) -> mx.array:
    """A token per row with probability in proportion to `p` [G, V]: `u` chooses a block, `v` within it."""
    rows, vocab_size = p.shape
    if vocab_size % PICK_BLOCK:
        p = mx.pad(p, [(0, 0), (0, PICK_BLOCK - vocab_size % PICK_BLOCK)])
    blocks = p.reshape(rows, -1, PICK_BLOCK)
    block = _inverse(mx.sum(blocks, axis=-1), u)
    within = _inverse(mx.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0], v)
    return (block * PICK_BLOCK + within).astype(mx.int32)


def _inverse(weights: mx.array, u: mx.array) -> mx.array:
    """The first index [G] at which the running sum exceeds u of the total; its weight is not zero."""
    sums = mx.cumsum(weights, axis=-1)
    return mx.argmax(sums > u * sums[:, -1:], axis=-1)


def _column(values: list[float]) -> mx.array:
    return mx.array(np.array(values, np.float32)[:, None])


def _uniforms(draw: Draw) -> tuple[float, float]:
    """Two numbers in [0, 1) for one draw, of 24 bits each: splitmix64 over seed and index (Steele, Lea and
    Flood, 2014).
    """
    z = (draw.sampling.seed + (draw.index + 1) * 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    z ^= z >> 31
    return (z >> 40) / (1 << 24), (z >> 16 & 0xFFFFFF) / (1 << 24)


def _usable(value: float) -> bool:
    """Whether it is a number with which float32 does not overflow."""
    return abs(value) < 1e30
