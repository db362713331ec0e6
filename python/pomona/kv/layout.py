"""What each layer of a model keeps between calls, read off mlx-lm's own cache objects.

A short stock forward fills those objects, so the shapes of K and V come from the model itself and not
from a table of configurations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as stock

PROBE_TOKENS = 2


class UnsupportedCacheError(Exception):
    """A layer keeps something that blocks and snapshots can't hold."""


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
class CompositeLayer:
    """Several caches in one layer (attention beside a state-space block)."""

    members: tuple[Layer, ...]


Layer = AttentionLayer | RecurrentLayer | UnusedLayer | CompositeLayer


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
    def bytes_per_token(self) -> int:
        return sum(layer.bytes_per_token for layer in self.attention)


def read_layout(model: Any) -> CacheLayout:
    """Run two tokens through the stock caches and describe what they hold.

    Raises UnsupportedCacheError for cache kinds without a paged form.
    """
    caches = stock.make_prompt_cache(model)
    mx.eval(model(mx.zeros((1, PROBE_TOKENS), mx.int32), cache=caches))
    return CacheLayout(tuple(_describe(cache) for cache in caches))


def _describe(cache: Any) -> Layer:
    if isinstance(cache, stock.CacheList):
        return CompositeLayer(tuple(_describe(member) for member in cache.caches))
    if isinstance(cache, stock.ArraysCache):
        return RecurrentLayer(len(cache.cache))
    if isinstance(cache, stock.RotatingKVCache):
        if cache.keep:
            raise UnsupportedCacheError("a rotating cache that keeps its first tokens")
        return _attention(cache, window=cache.max_size)
    if type(cache) is stock.KVCache:
        return _attention(cache, window=0)
    raise UnsupportedCacheError(f"mlx-lm's {type(cache).__name__}")


def _attention(cache: Any, window: int) -> Layer:
    if cache.keys is None:
        return UnusedLayer()
    _, k_heads, _, k_dim = cache.keys.shape
    _, v_heads, _, v_dim = cache.values.shape
    return AttentionLayer(k_heads, k_dim, v_heads, v_dim, cache.keys.dtype, window)
