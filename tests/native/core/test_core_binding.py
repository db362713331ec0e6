"""What crosses between Python and pomona._core."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.native.core.twins import ints

import pomona._core as core


def test_out_of_blocks_is_a_runtime_error_with_numbers() -> None:
    assert issubclass(core.OutOfBlocksError, RuntimeError)
    pool = core.BlockPool(2)
    with pytest.raises(core.OutOfBlocksError, match="3 blocks were asked for, 2 are free"):
        pool.allocate(3)
    assert pool.free == 2


BAD_ARRAYS = {
    "int64": (np.arange(4), "of another dtype"),
    "uint32": (np.arange(4, dtype=np.uint32), "of another dtype"),
    "float": (np.ones(4, dtype=np.float32), "of another dtype"),
    "strided": (np.arange(8, dtype=np.int32)[::2], "strided"),
    "reversed": (np.arange(8, dtype=np.int32)[::-1], "strided"),
    "matrix": (np.zeros((2, 2), dtype=np.int32), "of 2 dimensions"),
    "scalar": (np.array(1, dtype=np.int32), "of 0 dimensions"),
}


@pytest.mark.parametrize("kind", BAD_ARRAYS)
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("blocks", lambda pool, tree, a: pool.retain(a)),
        ("blocks", lambda pool, tree, a: pool.release(a)),
        ("tokens", lambda pool, tree, a: tree.match(a, 4)),
        ("tokens", lambda pool, tree, a: tree.peek(a, 4)),
        ("tokens", lambda pool, tree, a: tree.insert(a, ints(0))),
        ("blocks", lambda pool, tree, a: tree.insert(ints(0), a)),
        ("tokens", lambda pool, tree, a: tree.attach_snapshot(a, 1)),
        ("b", lambda pool, tree, a: core.common_prefix(ints(0), a)),
        ("reserved", lambda pool, tree, a: core.StepPlanner(64).admits(1, ints(0), a, 4)),
    ],
)
def test_rejects_arrays_it_would_have_to_convert(
    kind: str, name: str, call: Callable[[core.BlockPool, core.RadixTree, np.ndarray], object]
) -> None:
    array, reason = BAD_ARRAYS[kind]
    pool = core.BlockPool(4)
    tree = core.RadixTree(pool, 4)
    with pytest.raises(ValueError, match=f"{name} must be a C-contiguous int32 vector, not {reason}"):
        call(pool, tree, array)


def test_rejects_negative_numbers() -> None:
    pool = core.BlockPool(4)
    tree = core.RadixTree(pool, 4)
    for call in (
        lambda: core.BlockPool(-1),
        lambda: core.RadixTree(pool, 0),
        lambda: pool.allocate(-1),
        lambda: pool.allocate(1, -2),
        lambda: pool.copy_on_write(-1),
        lambda: pool.row_references(-1),
        lambda: pool.complete_step(-1),
        lambda: tree.match(ints(1), -1),
        lambda: tree.peek(ints(1), -1),
        lambda: tree.insert(ints(1), ints(-1)),
        lambda: tree.attach_snapshot(ints(1), -1),
        lambda: tree.evict(-1),
        lambda: core.StepPlanner(0),
        lambda: core.StepPlanner(64, budget_s=-1),
        lambda: core.StepPlanner(64).observe(-1, 0, 1.0),
        lambda: core.StepPlanner(64).reservation(1, -1),
        lambda: core.StepPlanner(64).admits(-1, ints(), ints(), 4),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            call()


def test_takes_what_numpy_hands_over() -> None:
    """Read-only buffers, empty arrays, slices and NumPy integers."""
    pool = core.BlockPool(np.int64(8))
    tree = core.RadixTree(pool, 4)
    blocks = pool.allocate(np.int32(2))
    tokens = np.frombuffer(np.arange(8, dtype=np.int32).tobytes(), dtype=np.int32)
    assert not tokens.flags.writeable
    assert tree.insert(tokens, blocks).tolist() == blocks.tolist()
    assert pool.copy_on_write(blocks[0], after=blocks[1]) == 2
    assert tree.match(tokens[2:2], 5).tokens == 0
    assert tree.match(tokens[::5][:1], 5, namespace=2**64 - 1).tokens == 0
    assert tree.insert(ints(), ints()).shape == (0,)
    pool.retain(ints())


def test_results_outlive_what_made_them() -> None:
    pool = core.BlockPool(8)
    tree = core.RadixTree(pool, 4)
    table = tree.insert(np.arange(8, dtype=np.int32), pool.allocate(2))
    match = tree.match(np.arange(8, dtype=np.int32), 8)
    del pool
    gc.collect()
    assert tree.peek(np.arange(8, dtype=np.int32), 8) == 8  # the tree keeps its pool
    del tree
    gc.collect()
    assert table.tolist() == match.blocks.tolist() == [0, 1]
    table[0] = 5  # the caller's own
    assert match.blocks.tolist() == [0, 1]
    for name in ("tokens", "blocks", "snapshot"):
        with pytest.raises(AttributeError):
            setattr(match, name, 0)


def test_a_tree_that_goes_lets_go_of_its_blocks() -> None:
    pool = core.BlockPool(8)
    tree = core.RadixTree(pool, 4)
    pool.release(tree.insert(np.arange(8, dtype=np.int32), pool.allocate(2)))
    assert pool.idle == 2
    del tree
    gc.collect()
    assert pool.free == 8


@given(
    a=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=300),
    cut=st.integers(0, 300),
    b=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5),
)
@settings(max_examples=200, derandomize=True, deadline=None)
def test_common_prefix(a: list[int], cut: int, b: list[int]) -> None:
    b = a[:cut] + b
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert core.common_prefix(ints(*a), ints(*b)) == expected


def test_threads_may_share_a_pool() -> None:
    """Long calls let go of the GIL: others still find the pool and tree in order."""
    pool = core.BlockPool(2000)
    tree = core.RadixTree(pool, 16)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            for _ in range(30):
                tokens = np.concatenate([np.zeros(5000, np.int32), random.integers(0, 9, 5000, np.int32)])
                row = pool.allocate(625)
                row = tree.insert(tokens, row)
                match = tree.match(tokens, 10_000)
                assert match.tokens == 10_000
                pool.release(match.blocks)
                pool.release(row)
                assert tree.nbytes > 0
                tree.evict(5000)
        except BaseException as error:  # a thread's failure is the test's
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert pool.in_use == 0
    tree.clear()
    assert pool.free == 2000


def test_the_index_is_compact_and_quick_to_search() -> None:
    """Long edges grown chunk by chunk stay under 8 bytes a token."""
    pool = core.BlockPool(2000)
    tree = core.RadixTree(pool, 64)
    tokens = np.random.default_rng(0).integers(0, 50_000, 100_000, np.int32)
    table = pool.allocate(1563)
    for count in (*range(512, 100_000, 512), 100_000):
        blocks = -(-count // 64)
        table[:blocks] = tree.insert(tokens[:count], table[:blocks])
    assert (tree.nodes, tree.tokens) == (1, 100_000)
    assert tree.nbytes < 5 * tree.tokens
    assert tree.match(tokens, 100_000).blocks.tolist() == table.tolist()
