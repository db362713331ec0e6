"""What running rows keep between steps beside their blocks.

`StateBank`: recurrent states, kept batched while the same rows decode together. `StockRows`: mlx-lm's own
caches, for models that have no paged form.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, Protocol

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import cache as stock

from pomona.kv.readers import State


class RowStates(Protocol):
    def snapshot(self, row_id: int) -> State | None:
        """The row's state as a value that can be kept, or None."""

    def restore(self, row_id: int, state: State) -> None:
        """Start a row from a snapshot."""

    def arrays(self, row_ids: Seq[int]) -> list[mx.array]:
        """All arrays behind these rows' states, to be evaluated with a step."""

    def drop(self, row_id: int) -> None: ...


class StateBank:
    """Maps row ids to recurrent states. A state of one row has batch size 1."""

    def __init__(self) -> None:
        self._single: dict[int, State] = {}
        self._batch_ids: tuple[int, ...] = ()
        self._batch: State = []

    def __contains__(self, row_id: int) -> bool:
        return row_id in self._single or row_id in self._batch_ids

    def get(self, row_ids: Seq[int]) -> State | None:
        """States of these rows as one batch, in this order; None when the (only) row has none yet."""
        wanted = tuple(row_ids)
        if wanted == self._batch_ids:
            return self._batch
        if len(wanted) == 1 and wanted[0] not in self:
            return None
        self._split()
        states = [self._single[row_id] for row_id in wanted]
        if len(states) == 1:
            return states[0]
        return [
            [mx.concatenate(arrays, axis=0) for arrays in zip(*layer, strict=True)]
            for layer in zip(*states, strict=True)
        ]

    def put(self, row_ids: Seq[int], state: State) -> None:
        """Replace the states of these rows by a batch."""
        if len(row_ids) == 1:
            self.drop(row_ids[0])
            self._single[row_ids[0]] = state
            return
        if tuple(row_ids) != self._batch_ids:
            self._split()
            for row_id in row_ids:
                self._single.pop(row_id, None)
        self._batch_ids, self._batch = tuple(row_ids), state

    def snapshot(self, row_id: int) -> State | None:
        state = self.get([row_id])
        if state is None:
            return None
        # A view would keep the whole batch alive for as long as the snapshot is kept.
        own = [[mx.contiguous(array) for array in layer] for layer in state]
        mx.eval(own)
        return own

    def restore(self, row_id: int, state: State) -> None:
        self.put([row_id], state)

    def arrays(self, row_ids: Seq[int]) -> list[mx.array]:
        states = [self._single[row_id] for row_id in row_ids if row_id in self._single]
        if self._batch_ids:
            states.append(self._batch)
        return [array for state in states for layer in state for array in layer]

    def drop(self, row_id: int) -> None:
        if row_id in self._batch_ids:
            self._split()
        self._single.pop(row_id, None)

    def _split(self) -> None:
        """Take the batch apart into rows."""
        for i, row_id in enumerate(self._batch_ids):
            self._single[row_id] = [[array[i : i + 1] for array in layer] for layer in self._batch]
        self._batch_ids, self._batch = (), []


class StockRows:
    """A set of mlx-lm's caches per row. They can't be snapshotted: a parked row starts over."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._rows: dict[int, list[Any]] = {}

    def caches(self, row_id: int) -> list[Any]:
        if row_id not in self._rows:
            self._rows[row_id] = stock.make_prompt_cache(self._model)
        return self._rows[row_id]

    def snapshot(self, row_id: int) -> State | None:
        return None

    def restore(self, row_id: int, state: State) -> None:
        raise NotImplementedError("stock caches have no snapshots")

    def arrays(self, row_ids: Seq[int]) -> list[mx.array]:
        held = [cache.state for row_id in row_ids for cache in self._rows.get(row_id, [])]
        return [value for _, value in tree_flatten(held) if isinstance(value, mx.array)]

    def drop(self, row_id: int) -> None:
        self._rows.pop(row_id, None)
