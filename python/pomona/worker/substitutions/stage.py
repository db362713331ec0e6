"""The stage on which a module and its substitution do the same: seeded inputs, and caches for attention."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models import cache as stock
from mlx_lm.models.base import create_causal_mask

from pomona import _ops
from pomona.kv.readers import Call, PagedCache
from pomona.kv.seam import WindowMask

BLOCK_SIZE = 4
# A prompt in two blocks that do not follow each other, then one token that sees less than all.
BLOCKS = (2, 0)
PROMPT_TOKENS = 6
WINDOW = 3


class Stage:
    """Inputs in `dtype`. A module is tried as it is first; `substituted` is set for the second time."""

    def __init__(self, dtype: mx.Dtype) -> None:
        self.dtype = dtype
        self.substituted = False
        self._shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        self._kv_dtype = dtype

    def normal(self, *shape: int) -> mx.array:
        """The same values at every call."""
        return mx.random.normal(shape, key=mx.random.key(7)).astype(self.dtype)

    def prompt_and_token(self, hidden: int) -> tuple[mx.array, mx.array]:
        x = self.normal(1, PROMPT_TOKENS + 1, hidden)
        return x[:, :PROMPT_TOKENS], x[:, PROMPT_TOKENS:]

    def attend(self, module: Any, hidden: int) -> list[mx.array]:
        """A prompt and then a token with a window, through mlx-lm's cache or through blocks."""
        prompt, token = self.prompt_and_token(hidden)
        if self.substituted:
            cache = self._paged_cache()
            return [
                self._in_blocks(module, prompt, 0, None, cache),
                self._in_blocks(module, token, PROMPT_TOKENS, WindowMask(WINDOW), cache),
            ]
        dense = stock.KVCache()
        mask = create_causal_mask(1, PROMPT_TOKENS, window_size=WINDOW)
        outputs = [
            module(prompt, mask="causal", cache=dense),
            module(token, mask=mask, cache=dense),
        ]
        self._shapes, self._kv_dtype = (dense.keys.shape, dense.values.shape), dense.keys.dtype
        return outputs

    def _paged_cache(self) -> PagedCache:
        assert self._shapes is not None, "the module as it is comes first"
        (_, k_heads, _, k_dim), (_, v_heads, _, v_dim) = self._shapes
        blocks = max(BLOCKS) + 1
        slab = _ops.Slab(blocks, BLOCK_SIZE, k_heads, k_dim, v_heads, v_dim, self._kv_dtype)
        return PagedCache(slab, 0, Call())

    def _in_blocks(
        self, module: Any, x: mx.array, start: int, mask: WindowMask | None, cache: PagedCache
    ) -> mx.array:
        """Every token a batch row of its own, as the runner packs them."""
        positions = np.arange(start, start + x.shape[1], dtype=np.int32)
        cache.call.table = _table(positions)
        cache.call.offset = mx.array(positions)
        output = module(x.swapaxes(0, 1), mask=mask, cache=cache).swapaxes(0, 1)
        # What it wrote into the blocks is no input that MLX could see.
        mx.eval(output)
        return output


def _table(positions: np.ndarray[Any, np.dtype[np.int32]]) -> _ops.StepTable:
    blocks = np.array([BLOCKS], np.int32)
    slots = blocks[0, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    return _ops.StepTable(
        BLOCK_SIZE, blocks, np.zeros_like(positions), positions + 1, slots, np.empty((0, 2), np.int32)
    )
