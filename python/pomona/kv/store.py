"""One model's cached K/V: slabs for the bytes, a block pool and radix tree for who owns them, and the
recurrent snapshots that hang in the tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from pomona._core import BlockPool, RadixTree
from pomona._ops import Slab
from pomona.kv.layout import CacheLayout
from pomona.kv.readers import State

FIRST_BLOCKS = 16

Int32Array = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """What the tree had for a prompt. The caller holds a row reference on each block."""

    tokens: int
    blocks: Int32Array
    state: State | None


class KVStore:
    """Slabs start with `first_blocks` and grow by doubling as blocks with higher ids come into use.

    On the CPU they have the pool's full length from the start: the system commits memory only where it is
    written, while a growing slab would have to be copied and would stall the streams that run.

    All methods run on the worker's MLX thread.
    """

    def __init__(
        self,
        layout: CacheLayout,
        block_size: int,
        blocks: int,
        snapshot_bytes: int = 0,
        first_blocks: int | None = None,
    ) -> None:
        self.layout = layout
        self.block_size = block_size
        self.pool = BlockPool(blocks)
        self.tree = RadixTree(self.pool, block_size)
        if first_blocks is None:
            first_blocks = blocks if mx.default_device() == mx.cpu else FIRST_BLOCKS
        self.slabs = [
            Slab(
                min(first_blocks, blocks),
                block_size,
                layer.k_heads,
                layer.k_dim,
                layer.v_heads,
                layer.v_dim,
                layer.dtype,
            )
            for layer in layout.attention
        ]
        self.snapshots = SnapshotStore(self.tree, snapshot_bytes)

    @property
    def stateful(self) -> bool:
        """Whether a resume needs a snapshot and not only blocks."""
        return bool(self.layout.recurrent)

    @property
    def shared(self) -> bool:
        """Whether rows can go on from what others computed: opaque layers live and end with theirs."""
        return not self.layout.opaque

    @property
    def bytes_per_block(self) -> int:
        return self.layout.bytes_per_token * self.block_size

    @property
    def slab_blocks(self) -> int:
        return self.slabs[0].blocks if self.slabs else self.pool.capacity

    @property
    def must_grow(self) -> bool:
        """Blocks beyond the slabs' length are in use: `grow` before the next dispatch."""
        return self.pool.high_water > self.slab_blocks

    def grow(self) -> None:
        """Double the slabs until every block in use fits. No step may be in flight."""
        blocks = self.slab_blocks
        while blocks < self.pool.high_water:
            blocks *= 2
        for slab in self.slabs:
            slab.grow(min(blocks, self.pool.capacity))

    def match(self, tokens: Int32Array, limit: int) -> CachedPrefix:
        """Longest usable prefix of `tokens[:limit]`, with its blocks held for a row."""
        match = self.tree.match(tokens, limit, stateful=self.stateful)
        state = self.snapshots.get(match.snapshot) if self.stateful and match.tokens else None
        return CachedPrefix(match.tokens, match.blocks, state)

    def cached_tokens(self, tokens: Int32Array, limit: int) -> int:
        return self.tree.peek(tokens, limit, stateful=self.stateful)

    def publish(self, tokens: Int32Array, blocks: Int32Array) -> Int32Array:
        """Make computed tokens visible to other rows; returns the row's table from now on."""
        return self.tree.insert(tokens, blocks) if self.shared else blocks

    def publish_state(self, tokens: Int32Array, state: State) -> int:
        """Keep the recurrent state at the end of the published `tokens`; its handle, 0 if not kept."""
        return self.snapshots.add(tokens, state)

    def drop_state(self, handle: int) -> None:
        """Forget a state; it may have gone already."""
        self.snapshots.drop(handle)

    def evict(self, blocks: int) -> None:
        """Free idle blocks, if there are as many, and forget the snapshots that went with them."""
        self.snapshots.forget(self.tree.evict(blocks).snapshots)

    def clear(self) -> None:
        self.snapshots.forget(self.tree.clear().snapshots)


class SnapshotStore:
    """Recurrent states by handle, within a budget of bytes; the least recently used go first."""

    def __init__(self, tree: RadixTree, limit_bytes: int) -> None:
        self._tree = tree
        self.limit_bytes = limit_bytes
        self._states: dict[int, State] = {}
        self._next = 1
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._states)

    def get(self, handle: int) -> State:
        return self._states[handle]

    def add(self, tokens: Int32Array, state: State) -> int:
        """Keep a state, unless its prefix is not cached in full or it is larger than the whole budget."""
        if _nbytes(state) > self.limit_bytes:
            return 0
        handle = self._next
        replaced = self._tree.attach_snapshot(tokens, handle)
        if replaced < 0:
            return 0
        self._next += 1
        self._states[handle] = state
        self.nbytes += _nbytes(state)
        if replaced:
            self.forget([replaced])
        self._trim()
        return handle

    def drop(self, handle: int) -> None:
        if self._tree.drop_snapshot(handle):
            self.forget([handle])

    def forget(self, handles: list[int]) -> None:
        for handle in handles:
            self.nbytes -= _nbytes(self._states.pop(handle))

    def _trim(self) -> None:
        if self.nbytes <= self.limit_bytes:
            return
        for handle in self._tree.snapshots():
            self._tree.drop_snapshot(handle)
            self.forget([handle])
            if self.nbytes <= self.limit_bytes:
                return


def _nbytes(state: State) -> int:
    return sum(array.nbytes for layer in state for array in layer if isinstance(array, mx.array))
