from __future__ import annotations

import mlx.core as mx
import numpy as np

from pomona.kv.layout import CacheLayout, RecurrentLayer
from pomona.kv.store import KVStore

FLOATS = 100


def store(snapshot_bytes: int) -> KVStore:
    """A recurrent layer only, with one published prefix of 8 tokens in blocks of 4."""
    made = KVStore(CacheLayout((RecurrentLayer(1),)), 4, 8, snapshot_bytes)
    made.publish(np.arange(8, dtype=np.int32), made.pool.allocate(2))
    return made


def put(target: KVStore, tokens: int, floats: int) -> None:
    target.publish_state(np.arange(tokens, dtype=np.int32), [[mx.zeros((1, floats))]])


def test_the_least_recently_used_snapshots_make_room() -> None:
    kept = store(snapshot_bytes=2 * FLOATS * 4)
    for tokens in (2, 4, 6):
        put(kept, tokens, FLOATS)
    assert len(kept.snapshots) == 2
    assert kept.snapshots.nbytes == 2 * FLOATS * 4
    assert kept.cached_tokens(np.arange(3, dtype=np.int32), 3) == 0
    assert kept.cached_tokens(np.arange(8, dtype=np.int32), 8) == 6


def test_a_snapshot_beyond_the_budget_does_not_push_the_others_out() -> None:
    kept = store(snapshot_bytes=2 * FLOATS * 4)
    put(kept, 2, FLOATS)
    put(kept, 4, 3 * FLOATS)
    assert len(kept.snapshots) == 1
    assert kept.cached_tokens(np.arange(8, dtype=np.int32), 8) == 2
