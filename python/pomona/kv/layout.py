"""What each layer of a model keeps between calls, read off mlx-lm's own cache objects.

A short stock forward, which is built but never computed, fills those objects: the shapes of K and V come from
the model itself and not from a table of configurations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import cache as stock

PROBE_TOKENS = 2
# mlx-lm's caches grow in steps of this many tokens; their bytes per token are read off a full step.
STOCK_STEP = 256


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """K and V of one layer. `window` 0: all history is visible."""

    k_heads: int
    k_dim: int
    v_heads: int
    v_dim: int
    dtype: mx.Dtype
    window: int = 0

    @property
    def bytes_per_token(self) -> int:
        return (self.k_heads * self.k_dim + self.v_heads * self.v_dim) * int(self.dtype.size)


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """A fixed number of state arrays, replaced at every call."""

    arrays: int


@dataclass(frozen=True, slots=True)
class UnusedLayer:
    """mlx-lm makes a cache that the model never fills (layers that share K/V)."""


@dataclass(frozen=True, slots=True)
class OpaqueLayer:
    """A cache kind without a paged form: mlx-lm's own object is kept, one per row."""

    bytes_per_token: int


@dataclass(frozen=True, slots=True)
class CompositeLayer:
    """Several caches in one layer (attention beside a state-space block)."""

    members: tuple[Layer, ...]


Layer = AttentionLayer | RecurrentLayer | UnusedLayer | OpaqueLayer | CompositeLayer


@dataclass(frozen=True, slots=True)
class CacheLayout:
    layers: tuple[Layer, ...]

    def _flat(self, layers: tuple[Layer, ...]) -> Iterator[Layer]:
        for layer in layers:
            if isinstance(layer, CompositeLayer):
                yield from self._flat(layer.members)
            else:
                yield layer

    @property
    def attention(self) -> list[AttentionLayer]:
        return [layer for layer in self._flat(self.layers) if isinstance(layer, AttentionLayer)]

    @property
    def recurrent(self) -> list[RecurrentLayer]:
        return [layer for layer in self._flat(self.layers) if isinstance(layer, RecurrentLayer)]

    @property
    def opaque(self) -> bool:
        """Whether some layer has no paged form."""
        return any(isinstance(layer, OpaqueLayer) for layer in self._flat(self.layers))

    def in_dtype(self, dtype: mx.Dtype) -> CacheLayout:
        """The same with K and V in another dtype."""
        return CacheLayout(tuple(_in_dtype(layer, dtype) for layer in self.layers))

    @property
    def bytes_per_token(self) -> int:
        counted = (AttentionLayer, OpaqueLayer)
        return sum(layer.bytes_per_token for layer in self._flat(self.layers) if isinstance(layer, counted))


def _in_dtype(layer: Layer, dtype: mx.Dtype) -> Layer:
    if isinstance(layer, AttentionLayer):
        return replace(layer, dtype=dtype)
    if isinstance(layer, CompositeLayer):
        return CompositeLayer(tuple(_in_dtype(member, dtype) for member in layer.members))
    return layer


def read_layout(model: Any) -> CacheLayout:
    """Run a few tokens through the stock caches and describe what they hold."""
    layout = CacheLayout(tuple(_describe(cache) for cache in _filled_caches(model, PROBE_TOKENS)))
    return opaque_layout(model) if layout.opaque else layout


def opaque_layout(model: Any) -> CacheLayout:
    """The same model with every layer left to mlx-lm's own caches."""
    caches = _filled_caches(model, STOCK_STEP)
    return CacheLayout(tuple(OpaqueLayer(_nbytes(cache) // STOCK_STEP) for cache in caches))


def _filled_caches(model: Any, tokens: int) -> list[Any]:
    """Nothing is computed: shapes and dtypes are known before."""
    caches: list[Any] = stock.make_prompt_cache(model)
    model(mx.zeros((1, tokens), mx.int32), cache=caches)
    return caches


def _nbytes(cache: Any) -> int:
    arrays = [value for _, value in tree_flatten(cache.state) if isinstance(value, mx.array)]
    return sum(array.nbytes for array in arrays)


def _describe(cache: Any) -> Layer:
    if isinstance(cache, stock.CacheList):
        return CompositeLayer(tuple(_describe(member) for member in cache.caches))
    if isinstance(cache, stock.ArraysCache):
        return RecurrentLayer(len(cache.cache))
    if isinstance(cache, stock.RotatingKVCache):
        return OpaqueLayer(0) if cache.keep else _attention(cache, window=cache.max_size)
    if type(cache) is stock.KVCache:
        return _attention(cache, window=0)
    return OpaqueLayer(0)


def _attention(cache: Any, window: int) -> Layer:
    if cache.keys is None:
        return UnusedLayer()
    _, k_heads, _, k_dim = cache.keys.shape
    _, v_heads, _, v_dim = cache.values.shape
    return AttentionLayer(k_heads, k_dim, v_heads, v_dim, cache.keys.dtype, window)
