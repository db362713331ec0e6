"""Log probabilities of the model's own distribution: of given tokens, and the most likely ones.

They are log_softmax of the raw logits in float32, before bias, penalties and temperature.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from pomona import _ops
from pomona.link.messages import TokenLogprobs


@dataclass(frozen=True, slots=True)
class LazyLogprobs:
    """Logprobs of n tokens that may not have been computed yet."""

    tokens: mx.array
    """int32 [n]"""
    logprobs: mx.array
    """float32 [n]"""
    top_tokens: mx.array
    """int32 [n, k], the most likely first."""
    top_logprobs: mx.array

    def arrays(self) -> list[mx.array]:
        return [self.logprobs, self.top_tokens, self.top_logprobs]

    def read(self) -> list[TokenLogprobs]:
        """Wait for them."""
        columns = (self.tokens, self.logprobs, self.top_tokens, self.top_logprobs)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [
            TokenLogprobs(token, logprob, list(zip(ids, values, strict=True)))
            for token, logprob, ids, values in rows
        ]


def logprobs_of(tokens: mx.array, logits: mx.array, top: int) -> LazyLogprobs:
    """Logprobs of tokens [n] and the `top` most likely ones under logits [n, V], lazily."""
    return LazyLogprobs(tokens, *_ops.logprobs(logits, tokens, min(top, logits.shape[-1])))
