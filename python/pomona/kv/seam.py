"""The one function of mlx-lm that pomona replaces: attention.

mlx-lm's model modules bind `mlx_lm.models.base.scaled_dot_product_attention` by name when they are
imported, so `install` must come before the first of them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models import base

from pomona import _ops

_stock_attention = base.scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class PagedKeys:
    """Stands for K and V of one layer: this call's new ones, and the slab that holds the history."""

    keys: mx.array  # [B, heads, L, dim]
    values: mx.array
    slab: _ops.Slab
    table: _ops.StepTable
    window: int


@dataclass(frozen=True, slots=True)
class WindowMask:
    """Stands for a causal mask with a window; the kernel applies both itself."""

    window: int


def attention(
    queries: mx.array,
    keys: mx.array | PagedKeys,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: mx.array | None = None,
) -> mx.array:
    """mlx-lm's attention function, which also takes paged keys."""
    if not isinstance(keys, PagedKeys):
        return _stock_attention(queries, keys, values, cache, scale, mask, sinks)
    if mask is not None and not isinstance(mask, WindowMask):
        raise TypeError("a mask array can't be applied to paged keys")
    window = mask.window if mask is not None else keys.window
    return _ops.update_and_attend(
        queries, keys.keys, keys.values, keys.slab, keys.table, float(scale), window, sinks
    )


def install() -> None:
    """Replace the function in `mlx_lm.models.base`. Calling it twice is harmless.

    Raises RuntimeError when a model module has already bound the stock function.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("mlx_lm.models.") and module is not base:
            bound = getattr(module, "scaled_dot_product_attention", attention)
            if bound is not attention:
                raise RuntimeError(f"{name} was imported before pomona's attention was installed")
    base.scaled_dot_product_attention = attention
