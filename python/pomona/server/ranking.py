"""best_of: of the answers computed for each prompt, the most likely ones."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add

from pomona.conversation.events import Event, Failed, Finished, Heartbeat, TextDelta, Usage
from pomona.server.row_answer import RowAnswer


async def best(
    events: AsyncIterable[Event], answers: Sequence[RowAnswer], best_of: int, n: int
) -> AsyncIterator[Event]:
    """The events of the `n` best answers of each `best_of`, in order of their mean log probability.

    Nothing can be told before all have ended. Answers that are left out count in the usage all the same.
    """
    deltas: list[list[TextDelta]] = [[] for _ in answers]
    ends: list[Finished | None] = [None for _ in answers]
    async for event in events:
        match event:
            case TextDelta(choice=choice):
                deltas[choice].append(event)
            case Finished(choice=choice):
                ends[choice] = event
            case Heartbeat() | Failed():
                yield event
    for source in range(len(answers) // best_of):
        of_source = range(source * best_of, (source + 1) * best_of)
        finished = {i: end for i in of_source if (end := ends[i]) is not None}
        if len(finished) < best_of:  # the request has failed
            return
        ranked = sorted(finished, key=lambda i: -answers[i].mean_logprob)
        left_out = reduce(add, (finished[i].usage for i in ranked[n:]), Usage(0, 0))
        for k, i in enumerate(ranked[:n]):
            choice = source * n + k
            for delta in deltas[i]:
                yield replace(delta, choice=choice)
            usage = finished[i].usage + (left_out if k == 0 else Usage(0, 0))
            yield Finished(finished[i].reason, usage, choice)
