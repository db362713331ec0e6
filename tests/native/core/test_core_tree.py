"""RadixTree against its twin, with rows that compute, publish and end, and steps in flight.

The machine also plays the device: it knows what each block holds, poisons blocks that are handed out, and
so sees a prefix served from a block that was overwritten, freed or never written.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.native.core.twins import Space, TreeTwin, ceil_div, ints

from pomona._core import BlockPool, Match, RadixTree

CAPACITY = 32
EVERYTHING = 10**6

tokens_of = st.lists(st.integers(0, 1), min_size=1, max_size=14)  # two tokens: prompts share a lot
spaces = st.integers(0, 1)


@dataclass(eq=False)
class Row:
    space: Space
    tokens: list[int]  # computed
    table: list[int]
    cached: int  # matched or published so far
    owns_last: bool = False  # else it must copy its last block before it writes there


class TreeMachine(RuleBasedStateMachine):
    @initialize(block_size=st.integers(1, 5))
    def start(self, block_size: int) -> None:
        self.block_size = block_size
        self.pool = BlockPool(CAPACITY)
        self.tree = RadixTree(self.pool, block_size)
        self.twin = TreeTwin()
        self.contents: list[list[int | None]] = [[None] * block_size for _ in range(CAPACITY)]
        self.rows: list[Row] = []
        self.sources: dict[int, list[int]] = {}  # copied by a step in flight
        self.listed: dict[int, set[int]] = {}  # read or written by a step in flight
        self.next_snapshot = 1

    # --- The device ---

    def holds(self, tokens: list[int], table: list[int]) -> None:
        assert len(table) == ceil_div(len(tokens), self.block_size)
        read = [token for block in table for token in self.contents[block]]
        assert read[: len(tokens)] == tokens

    def allocate(self, count: int, after: int = -1) -> list[int]:
        blocks = self.pool.allocate(count, after).tolist()
        for block in blocks:
            assert not any(block in listed for listed in self.listed.values())
            self.contents[block] = [None] * self.block_size
        return blocks

    def compute(self, row: Row, tokens: list[int]) -> None:
        """One step: runs `tokens` of the row, which ends if there is no room for them."""
        table, length = row.table, len(row.tokens)
        copy_last = length % self.block_size != 0 and not row.owns_last
        count = ceil_div(length + len(tokens), self.block_size) - len(table)
        if count + copy_last > self.pool.free:
            self.evict(count + copy_last - self.pool.free)
        if count + copy_last > self.pool.free:
            self.end(row)
            return
        copied = []
        if copy_last:
            source = table[-1]
            shared = self.pool.row_references(source) > 1 or self.pool.tree_references(source) > 0
            table[-1] = self.pool.copy_on_write(source)
            assert (table[-1] != source) == shared
            if shared:
                copied.append((source, table[-1]))
        table += self.allocate(count, table[-1] if table else -1)

        step = self.pool.begin_step()
        assert [tuple(c) for c in self.pool.take_copies(step, ints(*table)).tolist()] == copied
        for source, copy in copied:
            self.contents[copy] = list(self.contents[source])
        self.sources[step] = [source for source, _ in copied]
        self.listed[step] = {*table, *self.sources[step]}
        for position, token in enumerate(tokens, length):
            self.contents[table[position // self.block_size]][position % self.block_size] = token
        row.tokens += tokens
        row.owns_last = True

    @precondition(lambda self: self.listed)
    @rule(data=st.data())
    def complete_step(self, data: st.DataObject) -> None:
        step = data.draw(st.sampled_from(sorted(self.listed)))
        self.pool.complete_step(step)
        self.listed = {s: blocks for s, blocks in self.listed.items() if s > step}
        self.sources = {s: blocks for s, blocks in self.sources.items() if s > step}

    # --- Rows ---

    def match(self, space: Space, tokens: list[int], limit: int, stateful: bool = False) -> Match:
        expected = self.twin.longest(space, tokens, limit, stateful)
        array = ints(*tokens)
        assert self.tree.peek(array, limit, namespace=space, stateful=stateful) == expected
        before = [self.pool.row_references(b) for b in range(CAPACITY)]
        match = self.tree.match(array, limit, namespace=space, stateful=stateful)
        assert match.tokens == expected
        assert match.snapshot == self.twin.snapshot_at(space, tokens[:expected])
        if match.snapshot:
            self.twin.use_snapshot(match.snapshot)
        blocks = match.blocks.tolist()
        self.holds(tokens[:expected], blocks)
        for block in range(CAPACITY):
            assert self.pool.row_references(block) == before[block] + blocks.count(block)
        return match

    @rule(prompts=st.lists(st.tuples(spaces, tokens_of, st.booleans()), min_size=1, max_size=5))
    def serve(self, prompts: list[tuple[Space, list[int], bool]]) -> None:
        """Whole requests one after another; some rows go on."""
        for space, tokens, ends in prompts:
            self.serve_one(space, tokens, ends)

    @precondition(lambda self: self.twin.cached)
    @rule(data=st.data(), tokens=tokens_of, ends=st.booleans())
    def follow_up(self, data: st.DataObject, tokens: list[int], ends: bool) -> None:
        space, prefix = data.draw(st.sampled_from(self.twin.leaves()))
        self.serve_one(space, [*prefix, *tokens], ends)

    def serve_one(self, space: Space, tokens: list[int], ends: bool) -> None:
        row = self.start_row(space, tokens, len(tokens), stateful=False)
        if row in self.rows:
            self.publish_first(row, len(row.tokens))
            if ends:
                self.end(row)

    @rule(space=spaces, tokens=tokens_of, limit=st.integers(0, 20), stateful=st.booleans())
    def admit(self, space: Space, tokens: list[int], limit: int, stateful: bool) -> None:
        self.start_row(space, tokens, limit, stateful)

    def start_row(self, space: Space, tokens: list[int], limit: int, stateful: bool) -> Row:
        match = self.match(space, tokens, limit, stateful)
        row = Row(space, tokens[: match.tokens], match.blocks.tolist(), match.tokens)
        self.rows.append(row)
        if rest := tokens[match.tokens :]:
            self.compute(row, rest)
        return row

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def decode(self, data: st.DataObject, tokens: list[int]) -> None:
        """The row writes on in its own last block, published or not."""
        self.compute(data.draw(st.sampled_from(self.rows)), tokens)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(self.rows))
        self.publish_first(row, data.draw(st.integers(0, len(row.tokens)) | st.just(len(row.tokens))))

    def publish_first(self, row: Row, count: int) -> None:
        blocks = ceil_div(count, self.block_size)
        table = self.tree.insert(ints(*row.tokens[:count]), ints(*row.table[:blocks]), row.space).tolist()
        if count % self.block_size:
            assert table[-1] == row.table[blocks - 1]
        row.table[:blocks] = table
        self.holds(row.tokens, row.table)
        self.twin.insert(row.space, row.tokens[:count])
        row.cached = max(row.cached, count)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.rows)))

    def end(self, row: Row) -> None:
        self.pool.release(ints(*row.table))
        self.rows.remove(row)

    # --- Snapshots ---

    @rule(space=spaces, tokens=tokens_of)
    def attach_anywhere(self, space: Space, tokens: list[int]) -> None:
        self.attach(space, tokens)

    @precondition(lambda self: self.twin.cached)
    @rule(data=st.data())
    def attach_to_cached(self, data: st.DataObject) -> None:
        space, prefix = data.draw(st.sampled_from(sorted(self.twin.cached)))
        self.attach(space, list(prefix))

    def attach(self, space: Space, tokens: list[int]) -> None:
        handle, self.next_snapshot = self.next_snapshot, self.next_snapshot + 1
        replaced = self.tree.attach_snapshot(ints(*tokens), handle, namespace=space)
        if (space, tuple(tokens)) not in self.twin.cached:
            assert replaced == -1
            return
        assert replaced == self.twin.snapshot_at(space, tokens)
        self.twin.snapshots.pop(replaced, None)
        self.twin.snapshots[handle] = (space, tuple(tokens))

    @rule(handle=st.integers(1, 20))
    def drop_snapshot(self, handle: int) -> None:
        assert self.tree.drop_snapshot(handle) == (self.twin.snapshots.pop(handle, None) is not None)

    # --- Eviction ---

    @rule(count=st.integers(0, 6) | st.just(EVERYTHING))
    def evict(self, count: int) -> None:
        unreferenced = self.pool.free + self.pool.quarantined
        eviction = self.tree.evict(count)
        self.check_dropped(eviction.snapshots)
        assert self.pool.free + self.pool.quarantined == unreferenced + eviction.blocks
        # Removing a branch may free the block it left in the common part on top of its own.
        assert eviction.blocks <= count + 1 if count else eviction.blocks == 0
        if eviction.blocks < count:
            self.nothing_evictable(self.twin.leaves())

    @rule(space=spaces | st.none())
    def clear(self, space: Space | None) -> None:
        unreferenced = self.pool.free + self.pool.quarantined
        others = {place for place in self.twin.cached if space is not None and place[0] != space}
        eviction = self.tree.clear(space)
        self.check_dropped(eviction.snapshots)
        assert others <= self.twin.cached
        assert self.pool.free + self.pool.quarantined == unreferenced + eviction.blocks
        self.nothing_evictable([leaf for leaf in self.twin.leaves() if leaf not in others])

    def check_dropped(self, snapshots: list[int]) -> None:
        """Brings the twin up to date: only ends of prefixes may be gone, and none a row needs."""
        self.twin.cached = {
            (space, prefix)
            for space, prefix in self.twin.cached
            if self.tree.peek(ints(*prefix), len(prefix), namespace=space) == len(prefix)
        }
        gone = [h for h, place in self.twin.snapshots.items() if place not in self.twin.cached]
        assert sorted(snapshots) == sorted(gone)
        for handle in gone:
            del self.twin.snapshots[handle]
        for row in self.rows:
            full = row.cached // self.block_size * self.block_size
            assert self.twin.longest(row.space, row.tokens, full) == full

    def nothing_evictable(self, leaves: list[tuple[Space, tuple[int, ...]]]) -> None:
        for space, prefix in leaves:
            match = self.match(space, list(prefix), len(prefix))
            self.pool.release(match.blocks)
            assert self.pool.row_references(int(match.blocks[-1])) > 0

    @rule()
    def audit(self) -> None:
        for space, prefix in self.twin.leaves():
            self.pool.release(self.match(space, list(prefix), len(prefix)).blocks)

    # --- Always ---

    @invariant()
    def agrees(self) -> None:
        assert self.tree.tokens == len(self.twin.cached)
        assert self.tree.nodes <= self.tree.tokens
        assert self.tree.snapshots() == list(self.twin.snapshots)
        for row in self.rows:
            self.holds(row.tokens, row.table)

    @invariant()
    def every_block_is_in_one_state(self) -> None:
        pool = self.pool
        expected = Counter(b for row in self.rows for b in row.table)
        expected.update(b for blocks in self.sources.values() for b in blocks)
        rows = [pool.row_references(b) for b in range(CAPACITY)]
        trees = [pool.tree_references(b) for b in range(CAPACITY)]
        assert rows == [expected[b] for b in range(CAPACITY)]
        assert pool.in_use == sum(r > 0 for r in rows)
        assert pool.idle == sum(r == 0 and t > 0 for r, t in zip(rows, trees, strict=True))
        assert pool.free + pool.quarantined == CAPACITY - pool.in_use - pool.idle
        assert self.listed or pool.quarantined == 0

    def teardown(self) -> None:
        if not hasattr(self, "tree"):
            return
        self.audit()
        for row in list(self.rows):
            self.end(row)
        for step in sorted(self.listed):
            self.pool.complete_step(step)
        self.tree.evict(EVERYTHING)
        assert (self.tree.nodes, self.tree.tokens, self.tree.snapshots()) == (0, 0, [])
        assert self.pool.free == CAPACITY


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=400, stateful_step_count=50, derandomize=True, deadline=None)


@pytest.mark.parametrize("block_size", [1, 4, 64])
@given(data=st.data())
@settings(max_examples=40, derandomize=True, deadline=None)
def test_one_off_requests_do_not_push_out_a_session(block_size: int, data: st.DataObject) -> None:
    """They share a preamble with each other, and start like the session."""
    pool = BlockPool(24)
    tree = RadixTree(pool, block_size)

    def request(tokens: list[int]) -> None:
        match = tree.match(ints(*tokens), len(tokens) - 1)
        matched = match.tokens // block_size
        pool.release(match.blocks[matched:])
        need = ceil_div(len(tokens), block_size) - matched
        if need > pool.free:
            tree.evict(need - pool.free)
        table = [*match.blocks[:matched].tolist(), *pool.allocate(need).tolist()]
        pool.release(tree.insert(ints(*tokens), ints(*table)))

    session = [7] * (12 * block_size)
    request(session)
    request([*session, 8])
    for number in range(data.draw(st.integers(1, 30))):
        shared = session[: data.draw(st.integers(0, 2 * block_size))] + [9] * block_size
        blocks = data.draw(st.integers(1, 4))
        request(shared + [100 + number] * (blocks * block_size))
    assert tree.peek(ints(*session), len(session)) >= len(session) - block_size
