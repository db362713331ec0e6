"""What substituted instances do when they are called: mixins that come before the instance's own class.

`_op` is the description that the op takes. `_dtype` is what the module's own code gives for activations in
the model's dtype: narrower ones are widened first, as MLX would by the dtypes of the parameters. Calls
that an op does not know (mlx-lm's caches, mask arrays) go to the module's own code.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from pomona import _ops
from pomona.kv.readers import PagedCache
from pomona.kv.seam import WindowMask


class Form(nn.Module):  # type: ignore[misc]  # mlx ships no types
    _op: Any
    _dtype: mx.Dtype

    def _widened(self, x: mx.array) -> mx.array:
        return x if x.dtype in (self._dtype, mx.float32) else x.astype(self._dtype)


class RmsNorm(Form):
    def __call__(self, x: mx.array) -> mx.array:
        return _ops.rms_norm(self._widened(x), self._op)


class Linear(Form):
    def __call__(self, x: mx.array) -> mx.array:
        return _ops.linear(self._widened(x), self._op)


class Embedding(Form):
    def __call__(self, ids: mx.array) -> mx.array:
        rows = _ops.embed(ids, self._op)
        return rows if rows.dtype == self._dtype else rows.astype(self._dtype)

    def as_linear(self, x: mx.array) -> mx.array:
        return _ops.linear(self._widened(x), self._op)


class Rope(Form):
    def __call__(self, x: mx.array, offset: int | mx.array = 0, **other: Any) -> mx.array:
        if other or x.ndim != 4:
            return super().__call__(x, offset=offset, **other)
        if isinstance(offset, mx.array):
            offset = mx.broadcast_to(offset, x.shape[:1]).astype(mx.int32)
        return _ops.rope(x, self._op, offset)


class GatedMlp(Form):
    def __call__(self, x: mx.array) -> mx.array:
        return _ops.gated_mlp(self._widened(x), self._op)


class ExpertMlp(Form):
    def __call__(self, x: mx.array) -> mx.array:
        return _ops.expert_mlp(self._widened(x), self._op)


class SwitchGlu(Form):
    def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
        return _ops.switch_glu(self._widened(x), self._op, indices)


class Attention(Form):
    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        if not _paged(mask, cache):
            return super().__call__(x, mask=mask, cache=cache)
        return _ops.attention_block(
            self._widened(x), self._op, cache.slab, cache.call.table, _window(mask, cache)
        )


class DecoderLayer(Form):
    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        if not _paged(mask, cache):
            return super().__call__(x, mask=mask, cache=cache)
        return _ops.decoder_layer(
            self._widened(x), self._op, cache.slab, cache.call.table, _window(mask, cache)
        )


def _paged(mask: Any, cache: Any) -> bool:
    return type(cache) is PagedCache and (mask is None or type(mask) is WindowMask)


def _window(mask: WindowMask | None, cache: PagedCache) -> int:
    """As the attention function reads it: the mask's own window comes first."""
    return cache.window if mask is None else mask.window
