"""Picks one token per row from its logits: greedy, or temperature and top-p with the row's own seed."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from pomona.link.messages import Sampling

FAILED = -1
"""Stands for a token where a row's logits were not finite."""

_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Draw:
    """One row's request for a token. `index` counts the tokens it has sampled before."""

    sampling: Sampling
    index: int


def sample(logits: mx.array, draws: list[Draw]) -> mx.array:
    """Tokens int32 [W] for logits [W, V], lazily; FAILED where a row's logits hold NaN or only -inf.

    A row's token depends on its own logits, seed and index alone, never on its neighbours.
    """
    logits = logits.astype(mx.float32)
    tokens = mx.argmax(logits, axis=-1).astype(mx.int32)
    if any(draw.sampling.temperature > 0 for draw in draws):
        tokens = mx.stack(
            [
                _sample_row(logits[i], draw) if draw.sampling.temperature > 0 else tokens[i]
                for i, draw in enumerate(draws)
            ]
        )
    # The sum of a row is NaN or infinite as soon as one logit is; -inf alone is a mask, not a fault.
    healthy = mx.isfinite(mx.logsumexp(logits, axis=-1))
    return mx.where(healthy, tokens, FAILED)


def _sample_row(logits: mx.array, draw: Draw) -> mx.array:
    scaled = logits / draw.sampling.temperature
    if draw.sampling.top_p < 1.0:
        scaled = _keep_top_p(scaled, draw.sampling.top_p)
    return mx.random.categorical(scaled, key=_key(draw)).astype(mx.int32)


def _keep_top_p(logits: mx.array, top_p: float) -> mx.array:
    """Mask all but the smallest set of tokens whose probability reaches top_p (the first always stays)."""
    order = mx.argsort(-logits)
    probabilities = mx.softmax(logits[order], axis=-1)
    before = mx.cumsum(probabilities) - probabilities
    kept = mx.where(before < top_p, logits[order], -mx.inf)
    kept[0] = logits[order[0]]
    return mx.put_along_axis(logits, order, kept, axis=-1)


def _key(draw: Draw) -> mx.array:
    """A random key for one draw: splitmix64 over seed and index (Steele, Lea and Flood, 2014)."""
    z = (draw.sampling.seed + (draw.index + 1) * 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    z ^= z >> 31
    return mx.array([z >> 32, z & 0xFFFFFFFF], dtype=mx.uint32)
