"""Sampling in numpy and float64, written apart from the worker's: which tokens a draw may give.

A draw's random numbers are splitmix64's. Where rounding could decide (the number falls on the border of two
tokens, top_p on the border of the nucleus), both tokens are accepted.
"""

from __future__ import annotations

import numpy as np

from pomona.link.messages import Sampling

BLOCK = 128


def shaped(
    logits: np.ndarray, s: Sampling, prompt: list[int], answer: list[int], stop_ids: set[int]
) -> np.ndarray:
    """The logits that are sampled: bias, repetition, presence and frequency, min_tokens."""
    out = logits.astype(np.float64)
    for token, bias in s.logit_bias.items():
        out[token] += bias
    for token in set(prompt) | set(answer):
        out[token] *= s.repetition_penalty if out[token] <= 0 else 1 / s.repetition_penalty
    for token in set(answer):
        out[token] -= s.presence_penalty + s.frequency_penalty * answer.count(token)
    if len(answer) < s.min_tokens:
        for token in stop_ids:
            out[token] = -np.inf
    return out


def distribution(shaped_logits: np.ndarray, s: Sampling, top_p_slack: float = 0.0) -> np.ndarray:
    """Probabilities after temperature, top_k, top_p and min_p."""
    x = shaped_logits / s.temperature
    p = np.exp(x - x.max())
    p /= p.sum()
    falling = np.sort(p)[::-1]
    if 0 < s.top_k < len(p):
        falling = falling[: s.top_k]
    least = falling[-1]
    if s.top_p < 1:
        reach = (s.top_p + top_p_slack) * falling.sum()
        total = 0.0
        for value in falling:
            least = value
            total += value
            if total >= reach:
                break
    least = max(least, s.min_p * p.max())
    # Ties stay; equal logits give equal numbers here.
    return np.where(p >= least * (1 - 1e-7), p, 0.0)


def acceptable(shaped_logits: np.ndarray, s: Sampling, index: int, slack: float = 1e-5) -> set[int]:
    """The tokens that the draw with this index may give."""
    if s.temperature < 1e-5 or s.top_k == 1:
        return set(np.flatnonzero(shaped_logits >= shaped_logits.max() - slack).tolist())
    u, v = uniforms(s.seed, index)
    found: set[int] = set()
    for top_p_slack in (-slack, 0.0, slack) if s.top_p < 1 else (0.0,):
        p = distribution(shaped_logits, s, top_p_slack)
        p = np.pad(p, (0, -len(p) % BLOCK)).reshape(-1, BLOCK)
        for block in _containing(p.sum(axis=1), u, slack):
            found |= {block * BLOCK + i for i in _containing(p[block], v, slack)}
    return found


def uniforms(seed: int, index: int) -> tuple[float, float]:
    state = (seed + (index + 1) * 0x9E3779B97F4A7C15) % 2**64
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
    state ^= state >> 31
    bits = f"{state:064b}"
    return int(bits[:24], 2) / 2**24, int(bits[24:48], 2) / 2**24


def _containing(weights: np.ndarray, u: float, slack: float) -> list[int]:
    upper = np.cumsum(weights) / weights.sum()
    lower = np.concatenate([[0.0], upper[:-1]])
    return np.flatnonzero((weights > 0) & (lower <= u + slack) & (u - slack < upper)).tolist()
