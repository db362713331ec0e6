from __future__ import annotations

import mlx.core as mx
from hypothesis import given, settings
from hypothesis import strategies as st

from pomona.kv.readers import State
from pomona.kv.row_states import StateBank

ROWS = st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True)


def state(values: list[int]) -> State:
    return [
        [mx.array(values)[:, None], mx.array(values)[:, None, None] * 10],
        [mx.array(values)[:, None] * 100],
    ]


def values(found: State) -> list[int]:
    first = found[0][0][:, 0].tolist()
    assert found[0][1][:, 0, 0].tolist() == [10 * v for v in first]
    assert found[1][0][:, 0].tolist() == [100 * v for v in first]
    return first


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.tuples(ROWS, st.booleans(), st.integers(0, 5)), max_size=12))
def test_rows_keep_their_states_through_batches(steps: list[tuple[list[int], bool, int]]) -> None:
    bank, model, fresh = StateBank(), dict[int, int](), 0
    for row_ids, read, dropped in steps:
        if read and all(row_id in model for row_id in row_ids):
            found = bank.get(row_ids)
            assert found is not None
            assert values(found) == [model[row_id] for row_id in row_ids]
        else:
            new = list(range(fresh, fresh + len(row_ids)))
            fresh += len(row_ids)
            bank.put(row_ids, state(new))
            model.update(zip(row_ids, new, strict=True))
        bank.drop(dropped)
        model.pop(dropped, None)
        for row_id in range(6):
            assert (row_id in bank) == (row_id in model)


def test_a_row_without_a_state_starts_from_nothing() -> None:
    assert StateBank().get([7]) is None


def test_a_snapshot_does_not_keep_the_batch_alive() -> None:
    rows, floats = 8, 1 << 18
    bank = StateBank()
    batch = mx.random.normal((rows, floats))
    mx.eval(batch)
    with_batch = mx.get_active_memory()
    bank.put(range(rows), [[batch]])
    snapshot = bank.snapshot(3)
    assert snapshot is not None
    expected = batch[3:4].tolist()
    for row in range(rows):
        bank.drop(row)
    del batch
    assert mx.get_active_memory() <= with_batch - (rows - 2) * floats * 4
    assert snapshot[0][0].tolist() == expected
