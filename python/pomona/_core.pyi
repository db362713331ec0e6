"""Block pool, radix tree and step planner in C++ (csrc/core). No MLX, no Python objects inside.

Arrays cross as NumPy buffers without a copy and must be C-contiguous int32 vectors. Wrong arguments raise
ValueError and change nothing. A "row reference" is held by a running sequence, a "tree reference" by the
radix tree. Long calls let go of the GIL; a pool and its trees share one lock.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]

class OutOfBlocksError(RuntimeError):
    """The pool has fewer free blocks than were asked for. Nothing was allocated."""

class BlockPool:
    """Reference counts of one model's blocks. It holds numbers only: K/V bytes live in slabs.

    Each block is in exactly one state: in use (a row reference), idle (only tree references: kept
    until evicted), quarantined (no reference, but listed by a step still in flight), or free.
    """

    def __init__(self, blocks: int) -> None: ...
    @property
    def capacity(self) -> int: ...
    @property
    def free(self) -> int: ...
    @property
    def idle(self) -> int: ...
    @property
    def in_use(self) -> int: ...
    @property
    def quarantined(self) -> int: ...
    @property
    def available(self) -> int:
        """free + idle + quarantined: what rows can get once steps complete and the tree evicts."""
    @property
    def high_water(self) -> int:
        """One more than the highest block id ever handed out: how long the slabs must be."""
    def allocate(self, count: int, after: int = -1) -> Int32Array:
        """Take `count` free blocks, each with one row reference.

        Prefers the run that continues block `after`, then the smallest free run that fits, then
        the longest runs. Raises OutOfBlocksError when fewer than `count` are free.
        """
    def retain(self, blocks: Int32Array) -> None:
        """Add a row reference to each block (each must be in use or idle)."""
    def release(self, blocks: Int32Array) -> None:
        """Drop a row reference from each block."""
    def copy_on_write(self, block: int, after: int = -1) -> int:
        """Make `block` writable for the caller, who holds one row reference on it.

        Returns `block` itself when nobody else holds it; else a new block with one row reference,
        after noting the copy (block, new). The caller's reference on `block` moves to that note and
        is dropped when the step that takes the copy completes. A note is forgotten when its new
        block loses all references before a step has taken it.
        """
    def begin_step(self) -> int:
        """Open the next step and return its number. Blocks freed from now on wait for its end."""
    def take_copies(self, step: int, writes: Int32Array) -> Int32Array:
        """The noted copies into any of the blocks `writes`, shape [n, 2] (source, destination); step
        `step`, begun and not yet complete, makes them in this order before it writes there. The others
        wait for the step that does. A copy must not be taken before the one into its source.
        """
    def complete_step(self, step: int) -> None:
        """Steps up to `step` have run on the device: their quarantined blocks become free."""
    def row_references(self, block: int) -> int: ...
    def tree_references(self, block: int) -> int: ...

class Match:
    """The longest cached prefix found by `RadixTree.match`."""

    tokens: Final[int]
    """Matched tokens; the caller now holds a row reference on each block."""
    blocks: Final[Int32Array]
    """ceil(tokens / block_size) blocks; the last may be partly covered (copy it before writing)."""
    snapshot: Final[int]
    """Handle of the recurrent state at exactly `tokens`, or 0."""

class Eviction:
    """What `RadixTree.evict` and `clear` dropped."""

    blocks: Final[int]
    snapshots: Final[list[int]]

class RadixTree:
    """Maps token prefixes to blocks, inside namespaces. Edges are compressed, splits may fall inside a
    block. Eviction is leaf first, by segmented LRU: prefixes matched only once go before those
    matched again; long leaves are trimmed block by block from their end.
    """

    def __init__(self, pool: BlockPool, block_size: int) -> None: ...
    def match(self, tokens: Int32Array, limit: int, namespace: int = 0, stateful: bool = False) -> Match:
        """Longest cached prefix of `tokens[:limit]`, retained for a row and marked as used.

        `stateful` asks for the deepest prefix that carries a snapshot (models with recurrent layers).
        """
    def peek(self, tokens: Int32Array, limit: int, namespace: int = 0, stateful: bool = False) -> int:
        """Length of that prefix; retains and marks nothing."""
    def insert(self, tokens: Int32Array, blocks: Int32Array, namespace: int = 0) -> Int32Array:
        """Publish computed tokens. `blocks` holds ceil(len(tokens) / block_size) row-held blocks.

        Returns the row's table from now on: where the tree already had a full block for the same
        tokens, that block replaces the row's (the row reference moves over), so equal prefixes
        are stored once. The last, partly filled block always stays the row's own.
        """
    def attach_snapshot(self, tokens: Int32Array, snapshot: int, namespace: int = 0) -> int:
        """Hang a snapshot handle (> 0) on the prefix `tokens`, which must be cached in full.

        Returns the handle it replaced, or 0; -1 when the prefix is not cached. A handle hangs in one
        place at a time.
        """
    def drop_snapshot(self, snapshot: int) -> bool: ...
    def snapshots(self) -> list[int]:
        """Handles, least recently used (attached or returned by `match`) first."""
    def evict(self, blocks: int) -> Eviction:
        """Free at least `blocks` idle blocks if that many can be freed; fewer otherwise."""
    def clear(self, namespace: int | None = None) -> Eviction:
        """Drop everything no row uses (of one namespace)."""
    @property
    def nodes(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes of the index itself."""

class Plan:
    tokens: Final[Int32Array]
    """Tokens each row runs in this step (0: none)."""
    blocks: Final[Int32Array]
    """New blocks each row needs for them."""
    shortage: Final[int]
    """Blocks missing after all reservations are honoured; > 0: park a row and plan again."""

class StepPlanner:
    """Turns a time budget into tokens per row and keeps reservations honest. Holds only the rates."""

    def __init__(
        self,
        block_size: int,
        budget_s: float = 0.25,
        min_chunk: int = 16,
        max_step_tokens: int = 8192,
        reserve_tokens: int = 1024,
    ) -> None: ...
    @property
    def prefill_budget(self) -> int:
        """Prefill tokens of the next step: budget_s times the measured rate, at least min_chunk and at
        most max_step_tokens.
        """
    @property
    def prefill_rate(self) -> float:
        """Measured prefill tokens per second (0 before the first observation)."""
    def observe(self, prefill_tokens: int, decode_rows: int, seconds: float) -> None:
        """Feed back how long a step took."""
    def reservation(self, prompt_tokens: int, max_tokens: int) -> int:
        """Blocks to reserve for a new row: prompt + min(max_tokens, reserve_tokens)."""
    def admits(self, need: int, held: Int32Array, reserved: Int32Array, available: int) -> bool:
        """Whether `need` more blocks fit beside what running rows hold and have reserved."""
    def plan(
        self,
        pending: Int32Array,
        length: Int32Array,
        held: Int32Array,
        reserved: Int32Array,
        available: int,
    ) -> Plan:
        """Share one step among running rows, oldest first (all arrays have one entry per row).

        pending: tokens waiting to run (1: a decode row, always served; more: prefill, served max-min
        fairly from the prefill budget, or from twice as much while nothing decodes); length: tokens
        already computed; held: blocks in the row's table; reserved: blocks promised at admission.
        """

def common_prefix(a: Int32Array, b: Int32Array) -> int:
    """Number of equal leading tokens."""
