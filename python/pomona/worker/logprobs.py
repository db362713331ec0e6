"""Log probabilities of the model's own distribution: of given tokens, and the most likely ones.

They are log_softmax of the raw logits in float32, before bias, penalties and temperature.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from pomona.link.messages import TokenLogprobs


@dataclass(frozen=True, slots=True)
class LazyLogprobs:
    """Logprobs of n tokens that may not have been computed yet."""

    tokens: mx.array
    """int32 [n]"""
    logprobs: mx.array
    """float32 [n]"""
    top_tokens: mx.array
    """int32 [n, k], in no order."""
    top_logprobs: mx.array

    def arrays(self) -> list[mx.array]:
        return [self.logprobs, self.top_tokens, self.top_logprobs]

    def read(self) -> list[TokenLogprobs]:
        """Wait for them."""
        values = (self.tokens, self.logprobs, self.top_tokens, self.top_logprobs)
        tokens, logprobs, top_tokens, top_logprobs = (np.array(value) for value in values)
        order = np.lexsort((top_tokens, -top_logprobs), axis=-1)
        top_tokens = np.take_along_axis(top_tokens, order, axis=-1)
        top_logprobs = np.take_along_axis(top_logprobs, order, axis=-1)
        tops = zip(top_tokens.tolist(), top_logprobs.tolist(), strict=True)
        return [
            TokenLogprobs(token, logprob, list(zip(ids, values, strict=True)))
            for token, logprob, (ids, values) in zip(tokens.tolist(), logprobs.tolist(), tops, strict=True)
        ]


def logprobs_of(tokens: mx.array, logits: mx.array, top: int) -> LazyLogprobs:
    """Logprobs of tokens [n] and the `top` most likely ones under logits [n, V], lazily."""
    logits = logits.astype(mx.float32)
    normaliser = mx.logsumexp(logits, axis=-1, keepdims=True)
    own = (mx.take_along_axis(logits, tokens[:, None], axis=-1) - normaliser)[:, 0]
    top = min(top, logits.shape[-1])
    if not top:
        return LazyLogprobs(tokens, own, mx.zeros((len(tokens), 0), mx.int32), mx.zeros((len(tokens), 0)))
    top_tokens = mx.argpartition(-logits, top - 1, axis=-1)[:, :top].astype(mx.int32)
    top_logprobs = mx.take_along_axis(logits, top_tokens, axis=-1) - normaliser
    return LazyLogprobs(tokens, own, top_tokens, top_logprobs)
