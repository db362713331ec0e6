"""Naive twins of pomona._core: too slow to serve, simple enough to be right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Space = int
Prefix = tuple[int, ...]


def ints(*values: int) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass
class PoolTwin:
    """Counts references and keeps the free blocks as a plain set."""

    capacity: int
    rows: Counter[int] = field(default_factory=Counter)
    trees: Counter[int] = field(default_factory=Counter)
    waiting: dict[int, int] = field(default_factory=dict)  # quarantined block -> step
    noted: list[tuple[int, int]] = field(default_factory=list)
    sources: list[tuple[int, int]] = field(default_factory=list)  # (step, source)
    begun: int = 0
    completed: int = 0
    high_water: int = 0

    def held(self, block: int) -> bool:
        return self.rows[block] > 0 or self.trees[block] > 0

    @property
    def free(self) -> set[int]:
        return {b for b in range(self.capacity) if not self.held(b) and b not in self.waiting}

    @property
    def idle(self) -> set[int]:
        return {b for b in range(self.capacity) if self.trees[b] > 0 and self.rows[b] == 0}

    @property
    def in_use(self) -> set[int]:
        return {b for b in range(self.capacity) if self.rows[b] > 0}

    def runs(self) -> list[list[int]]:
        runs: list[list[int]] = []
        for block in sorted(self.free):
            if runs and runs[-1][-1] == block - 1:
                runs[-1].append(block)
            else:
                runs.append([block])
        return runs

    def allocate(self, count: int, after: int = -1) -> list[int]:
        taken: list[int] = []
        while len(taken) < count:
            runs, need = self.runs(), count - len(taken)
            following = [r for r in runs if not taken and after >= 0 and r[0] == after + 1]
            fitting = sorted((r for r in runs if len(r) >= need), key=len)
            longest = sorted(runs, key=len, reverse=True)
            run = (following or fitting or longest)[0]
            for block in run[:need]:
                self.rows[block] += 1
                taken.append(block)
        self.high_water = max([self.high_water, *(b + 1 for b in taken)])
        return taken

    def release(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.rows[block] -= 1
            assert self.rows[block] >= 0
            self.dropped(block)

    def tree_release(self, block: int) -> None:
        self.trees[block] -= 1
        assert self.trees[block] >= 0
        self.dropped(block)

    def dropped(self, block: int) -> None:
        if self.held(block):
            return
        if self.begun > self.completed:
            self.waiting[block] = self.begun
        for note in [n for n in self.noted if n[1] == block]:
            self.noted.remove(note)
            self.release([note[0]])

    def copy_on_write(self, block: int, after: int) -> int:
        if self.rows[block] == 1 and self.trees[block] == 0:
            return block
        copy = self.allocate(1, after)[0]
        self.noted.append((block, copy))
        return copy

    def take_copies(self, step: int, writes: Sequence[int]) -> list[tuple[int, int]]:
        taken = [note for note in self.noted if note[1] in writes]
        self.noted = [note for note in self.noted if note not in taken]
        self.sources += [(step, source) for source, _ in taken]
        return taken

    def complete_step(self, step: int) -> None:
        self.completed = max(self.completed, step)
        done = [s for s in self.sources if s[0] <= step]
        self.sources = [s for s in self.sources if s[0] > step]
        self.release(source for _, source in done)
        self.waiting = {b: s for b, s in self.waiting.items() if s > step}


@dataclass
class TreeTwin:
    """Every cached prefix by itself, and the snapshots from least to most recently used."""

    cached: set[tuple[Space, Prefix]] = field(default_factory=set)
    snapshots: dict[int, tuple[Space, Prefix]] = field(default_factory=dict)

    def insert(self, space: Space, tokens: Sequence[int]) -> None:
        self.cached |= {(space, tuple(tokens[:n])) for n in range(1, len(tokens) + 1)}

    def longest(self, space: Space, tokens: Sequence[int], limit: int, stateful: bool = False) -> int:
        places = set(self.snapshots.values()) if stateful else self.cached
        fits = [n for n in range(1, min(limit, len(tokens)) + 1) if (space, tuple(tokens[:n])) in places]
        return max(fits, default=0)

    def snapshot_at(self, space: Space, tokens: Sequence[int]) -> int:
        return next((h for h, place in self.snapshots.items() if place == (space, tuple(tokens))), 0)

    def use_snapshot(self, handle: int) -> None:
        self.snapshots[handle] = self.snapshots.pop(handle)

    def leaves(self) -> list[tuple[Space, Prefix]]:
        inner = {(space, prefix[:-1]) for space, prefix in self.cached}
        return sorted(self.cached - inner)


@dataclass
class PlannerTwin:
    """Hands tokens out one by one, and blocks one row after another."""

    block_size: int
    budget_s: float
    min_chunk: int
    max_step_tokens: int
    rate: float = 0.0
    budget: float = 0.0
    decode_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.budget = min(4.0 * self.min_chunk, self.max_step_tokens)

    def observe(self, prefill_tokens: int, decode_rows: int, seconds: float) -> None:
        if seconds < 1e-9:
            return
        if prefill_tokens == 0:
            if decode_rows:
                before = self.decode_s.get(decode_rows, seconds)
                self.decode_s[decode_rows] = before + 0.3 * (seconds - before)
            return
        decode = 0.0
        if decode_rows and self.decode_s:
            nearest = min(self.decode_s, key=lambda rows: (abs(rows - decode_rows), rows))
            decode = self.decode_s[nearest]
        sample = prefill_tokens / max(seconds - decode, 0.1 * seconds)
        if self.rate:
            self.rate += 0.3 * min(1.0, prefill_tokens / self.budget) * (sample - self.rate)
        else:
            self.rate = sample
        budget = min(2 * self.budget, self.budget_s * self.rate)
        self.budget = min(max(budget, self.min_chunk), self.max_step_tokens)

    def tokens(self, pending: Sequence[int]) -> list[int]:
        tokens = [int(p == 1) for p in pending]
        left = int(self.budget) if any(tokens) else 2 * int(self.budget)
        left = min(left, self.max_step_tokens - sum(tokens))
        while left > 0 and tokens != list(pending):
            for row in range(len(pending)):
                if left > 0 and tokens[row] < pending[row]:
                    tokens[row] += 1
                    left -= 1
        return tokens

    def blocks(self, tokens: Sequence[int], length: Sequence[int], held: Sequence[int]) -> list[int]:
        return [
            max(0, ceil_div(n + t, self.block_size) - h) for t, n, h in zip(tokens, length, held, strict=True)
        ]

    def shortage(
        self, blocks: Sequence[int], held: Sequence[int], reserved: Sequence[int], available: int
    ) -> int:
        common = available
        for h, r in zip(held, reserved, strict=True):
            common -= max(0, r - h)
        for need, h, r in zip(blocks, held, reserved, strict=True):
            common -= max(0, need - max(0, r - h))
        return max(0, -common)
