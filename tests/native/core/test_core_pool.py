"""BlockPool against its twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.native.core.twins import PoolTwin, ints

from pomona._core import BlockPool, OutOfBlocksError, RadixTree


class PoolMachine(RuleBasedStateMachine):
    """Rows hold blocks; a tree of one-token prefixes holds some of them, too."""

    @initialize(capacity=st.integers(1, 24))
    def start(self, capacity: int) -> None:
        self.pool = BlockPool(capacity)
        self.twin = PoolTwin(capacity)
        self.tree = RadixTree(self.pool, 1)
        self.rows: list[int] = []  # one entry for each row reference we hold
        self.published: list[int] = []  # blocks in the tree, oldest first
        self.next_token = 0

    def pick(self, data: st.DataObject, most: int = 4) -> list[int]:
        """Some of the references we hold, each at most once."""
        order = data.draw(st.permutations(self.rows))
        return order[: data.draw(st.integers(0, most))]

    @rule(data=st.data(), count=st.integers(0, 9))
    def allocate(self, data: st.DataObject, count: int) -> None:
        after = data.draw(st.integers(-1, self.twin.capacity - 1))
        if count > len(self.twin.free):
            with pytest.raises(OutOfBlocksError):
                self.pool.allocate(count, after)
            return
        blocks = self.pool.allocate(count, after).tolist()
        assert blocks == self.twin.allocate(count, after)
        self.rows += blocks

    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        blocks = self.pick(data) + [b for b in self.published if data.draw(st.booleans())]
        self.pool.retain(ints(*blocks))
        self.twin.rows.update(blocks)
        self.rows += blocks

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        blocks = self.pick(data, 9)
        self.pool.release(ints(*blocks))
        self.twin.release(blocks)
        for block in blocks:
            self.rows.remove(block)

    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        """A bad entry at the end of a list leaves no trace of those before it."""
        unheld = [b for b in range(self.twin.capacity) if not self.twin.held(b)]
        bad = data.draw(st.sampled_from([*unheld, -1, self.twin.capacity]))
        blocks = ints(*self.pick(data), bad)
        with pytest.raises(ValueError, match=f"block {bad} "):
            self.pool.retain(blocks)
        with pytest.raises(ValueError, match=f"block {bad} "):
            self.pool.release(blocks)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def copy_on_write(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.rows))
        after = data.draw(st.integers(-1, self.twin.capacity - 1))
        shared = self.twin.rows[block] > 1 or self.twin.trees[block] > 0
        if shared and not self.twin.free:
            with pytest.raises(OutOfBlocksError):
                self.pool.copy_on_write(block, after)
            return
        copy = self.pool.copy_on_write(block, after)
        assert copy == self.twin.copy_on_write(block, after)
        assert (copy != block) == shared
        self.rows.remove(block)
        self.rows.append(copy)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.rows))
        assert self.tree.insert(ints(self.next_token), ints(block)).tolist() == [block]
        self.next_token += 1
        self.published.append(block)
        self.twin.trees[block] += 1

    @rule(count=st.integers(0, 5))
    def evict(self, count: int) -> None:
        freed = 0
        for block in list(self.published):
            if freed < count and self.twin.rows[block] == 0:
                self.published.remove(block)
                self.twin.tree_release(block)
                freed += not self.twin.held(block)
        assert self.tree.evict(count).blocks == freed

    @rule()
    def begin_step(self) -> None:
        self.twin.begun += 1
        assert self.pool.begin_step() == self.twin.begun

    @rule(data=st.data())
    def take_copies(self, data: st.DataObject) -> None:
        step = data.draw(st.integers(self.twin.completed, self.twin.begun + 1))
        if not self.twin.completed < step <= self.twin.begun:
            with pytest.raises(ValueError, match="not in flight"):
                self.pool.take_copies(step, ints())
            return
        writes = self.pick(data, 9)
        copies = self.pool.take_copies(step, ints(*writes))
        assert copies.dtype == np.int32
        assert copies.shape == (len(copies), 2)
        assert [tuple(c) for c in copies.tolist()] == self.twin.take_copies(step, writes)

    @rule(data=st.data())
    def complete_step(self, data: st.DataObject) -> None:
        step = data.draw(st.integers(0, self.twin.begun + 1))
        if step > self.twin.begun:
            with pytest.raises(ValueError, match="never begun"):
                self.pool.complete_step(step)
            return
        self.pool.complete_step(step)
        self.twin.complete_step(step)

    @invariant()
    def equals_twin(self) -> None:
        pool, twin = self.pool, self.twin
        for block in range(twin.capacity):
            assert pool.row_references(block) == twin.rows[block]
            assert pool.tree_references(block) == twin.trees[block]
        assert pool.free == len(twin.free)
        assert pool.idle == len(twin.idle)
        assert pool.in_use == len(twin.in_use)
        assert pool.quarantined == len(twin.waiting)
        assert pool.free + pool.idle + pool.in_use + pool.quarantined == pool.capacity == twin.capacity
        assert pool.available == pool.free + pool.idle + pool.quarantined
        assert pool.high_water == twin.high_water


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=150, stateful_step_count=40, derandomize=True, deadline=None)
