"""Recurrent states of running rows, kept batched between steps while the same rows decode together."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import mlx.core as mx

from pomona.kv.readers import State


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

    def arrays(self, row_ids: Seq[int]) -> list[mx.array]:
        """All arrays behind these rows' states, to be evaluated with a step."""
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
