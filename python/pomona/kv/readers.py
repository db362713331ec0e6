"""The cache objects handed to mlx-lm's unmodified models: how attention sees the blocks.

*paged*: `update_and_fetch` returns a stand-in that the attention function turns into one kernel call.
*gathered*: it returns dense arrays copied out of the blocks, for models whose code touches K and V.
*stock*: mlx-lm's own caches, one set per row (`row_states.StockRows`), where neither fits; nothing is shared.
Recurrent layers get mlx-lm's own ArraysCache, filled with the rows' states for the call.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as stock
from mlx_lm.models.base import create_causal_mask

from pomona import _ops
from pomona.kv.layout import AttentionLayer, CacheLayout, CompositeLayer, Layer, RecurrentLayer
from pomona.kv.seam import PagedKeys, WindowMask

State = list[list[mx.array]]
"""Arrays of each recurrent layer, batch axis first."""


class Reader(StrEnum):
    PAGED = "paged"
    GATHERED = "gathered"
    STOCK = "stock"


@dataclass(slots=True)
class Call:
    """What the layers must know about the model call being built."""

    table: _ops.StepTable | None = None
    offset: int | mx.array = 0
    """Position of the first token of each batch row: an int, or int32 [B]."""


@dataclass(slots=True)
class BlockCache:
    """One attention layer over its slab. `window` 0: all history is visible."""

    slab: _ops.Slab
    window: int
    call: Call

    @property
    def offset(self) -> int | mx.array:
        return self.call.offset


class PagedCache(BlockCache):
    """Read by the paged kernel."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[PagedKeys, None]:
        assert self.call.table is not None
        return PagedKeys(keys, values, self.slab, self.call.table, self.window), None

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> WindowMask | None:
        if return_array:
            raise TypeError("the model wants its mask as an array")
        window = window_size or self.window
        return WindowMask(window) if window else None


class GatheredCache(BlockCache):
    """Read as dense K and V of a single row, all history included."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        assert self.call.table is not None
        return (
            _ops.update_and_gather(keys, self.slab, False, self.call.table),
            _ops.update_and_gather(values, self.slab, True, self.call.table),
        )

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        start = int(self.call.offset)
        window = window_size or self.window or None
        if window is not None and start + N <= window:
            window = None
        if return_array or window is not None:
            return create_causal_mask(N, start, window_size=window)
        return None if N == 1 else "causal"


@dataclass(slots=True)
class ModelCaches:
    """The list that a model's `cache=` argument takes, and the handles to fill it before a call."""

    layers: list[Any]
    call: Call
    recurrent: list[stock.ArraysCache] = field(default_factory=list)

    def bind(self, table: _ops.StepTable, offset: int | mx.array, state: State | None) -> None:
        """Point every layer at the next call. `state` None: rows that start from nothing."""
        self.call.table = table
        self.call.offset = offset
        for i, cache in enumerate(self.recurrent):
            cache.cache = list(state[i]) if state is not None else [None] * len(cache.cache)

    def state(self) -> State:
        """The recurrent states after the call."""
        return [list(cache.cache) for cache in self.recurrent]


def make_caches(layout: CacheLayout, slabs: Seq[_ops.Slab], reader: Reader) -> ModelCaches:
    """Cache objects for a layout; `slabs` holds one entry per attention layer, in order."""
    kind = PagedCache if reader is Reader.PAGED else GatheredCache
    call = Call()
    remaining = iter(slabs)
    recurrent: list[stock.ArraysCache] = []

    def make(layer: Layer) -> Any:
        if isinstance(layer, AttentionLayer):
            return kind(next(remaining), layer.window, call)
        if isinstance(layer, RecurrentLayer):
            recurrent.append(stock.ArraysCache(layer.arrays))
            return recurrent[-1]
        if isinstance(layer, CompositeLayer):
            return stock.CacheList(*(make(member) for member in layer.members))
        return stock.KVCache()

    return ModelCaches([make(layer) for layer in layout.layers], call, recurrent)
