"""Several rows for one request: their seeds, their order, their common end."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.server.test_engine import FakeWorker, engine_of, events_of, request
from tests.text.test_infill import model

from pomona.conversation.conversation import (
    GenerationRequest,
    Infill,
    RawText,
    SamplingOptions,
    StopOptions,
)
from pomona.conversation.errors import (
    ContextLengthError,
    InvalidRequestError,
    RequestTimeoutError,
    RowFailedError,
)
from pomona.conversation.events import (
    Event,
    Failed,
    Finished,
    Started,
    StopReason,
    TextDelta,
    Usage,
)
from pomona.link.messages import FinishReason, RowUpdate
from pomona.server.engine import MAX_ROWS, Engine, Limits
from pomona.server.ranking import best
from pomona.server.row_answer import RowAnswer
from pomona.text.model_text import ModelText

DONE = [RowUpdate(1, prompt_done=2, cached_tokens=1), RowUpdate(1, tokens=[70], finish=FinishReason.STOP)]


@pytest.fixture(scope="module")
def text(folder: Path) -> ModelText:
    return ModelText.load(folder)


def raw(*prompts: str, **fields: Any) -> GenerationRequest:
    return GenerationRequest(tuple(map(RawText, prompts)), **fields)


def test_choices_are_indexed_by_prompt_then_answer(text: ModelText) -> None:
    worker = FakeWorker(DONE)
    events = events_of(engine_of(text, worker), raw("The", "A server", n=2, sampling=SamplingOptions(seed=7)))
    starts = [event for event in events if isinstance(event, Started)]
    assert events[:4] == starts
    assert [event.choice for event in starts] == [0, 1, 2, 3]
    assert [text.tokenizer.decode(row.prompt().tolist()) for row in worker.rows] == [
        *("The", "The"),
        *("A server", "A server"),
    ]
    # A prompt's answers are the same alone and among others.
    assert [row.sampling.seed for row in worker.rows] == [7, 8, 7, 8]
    ends = [event for event in events if isinstance(event, Finished)]
    usage = sum((end.usage for end in ends), Usage(0, 0))
    prompt_tokens = sum(len(text.tokenizer.encode(prompt).ids) for prompt in ("The", "A server"))
    assert usage == Usage(prompt_tokens, 4, cached_tokens=2)


def test_the_answers_of_a_prompt_share_what_may_be_long(text: ModelText) -> None:
    worker = FakeWorker(DONE)
    sampling, stop = SamplingOptions(logit_bias={1: 2.0}), StopOptions(ids=(70,))
    events_of(engine_of(text, worker), raw("The quick", n=2, sampling=sampling, stop=stop))
    first, second = worker.rows
    assert first.tokens is second.tokens
    assert first.stop_ids is second.stop_ids
    assert first.sampling.logit_bias is second.sampling.logit_bias
    assert (first.id, second.id) == (1, 2)


def test_without_a_seed_no_two_answers_are_the_same(text: ModelText) -> None:
    worker = FakeWorker(DONE)
    events_of(engine_of(text, worker), raw("The", "The", n=3))
    assert len({row.sampling.seed for row in worker.rows}) == 6


def test_a_row_that_meets_a_stop_string_is_cancelled(text: ModelText) -> None:
    ids = text.tokenizer.encode("one. two").ids
    worker = FakeWorker([RowUpdate(1, tokens=[id_]) for id_ in ids])
    events = events_of(engine_of(text, worker), request(stop=StopOptions(strings=(".",))))
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "one"
    end = events[-1]
    assert isinstance(end, Finished)
    assert end.reason is StopReason.STOP
    assert worker.cancelled == [1]


def test_stop_ids(text: ModelText) -> None:
    worker = FakeWorker(DONE)
    own = text.tokenizer.stop_ids
    for stop, expected in (
        (StopOptions(), own),
        (StopOptions(ids=(70, own[0])), [*own, 70]),
        (StopOptions(ids=(70,), ignore_eos=True), [70]),
    ):
        events_of(engine_of(text, worker), request(stop=stop))
        assert worker.rows[-1].stop_ids == expected


def test_the_middle_of_a_text_ends_at_its_markers_too(tmp_path: Path) -> None:
    markers = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
    text = model(tmp_path, *markers)
    worker = FakeWorker(DONE)
    events_of(engine_of(text, worker), GenerationRequest((Infill(RawText("a"), "b"),)))
    (row,) = worker.rows
    shown = text.tokenizer.decode(row.prompt().tolist(), special=True)
    assert shown == "<fim_prefix>a<fim_suffix>b<fim_middle>"
    assert {text.tokenizer.codec.token_to_id(marker) for marker in markers} <= set(row.stop_ids)
    assert set(text.tokenizer.stop_ids) <= set(row.stop_ids)


def test_one_failed_row_ends_the_request(text: ModelText) -> None:
    worker = FakeWorker([RowUpdate(1, finish=FinishReason.ERROR, error="no memory")])
    events = events_of(engine_of(text, worker), raw("a", n=4))
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, RowFailedError)
    assert sum(isinstance(event, Failed) for event in events) == 1


def test_closing_cancels_every_row(text: ModelText) -> None:
    worker = FakeWorker([RowUpdate(1, tokens=[70])])
    events_of(engine_of(text, worker), raw("a", n=3), limit=4)
    assert sorted(worker.cancelled) == [1, 2, 3]


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (raw("a", n=5), "n"),
        (raw("a", best_of=5), "best_of"),
        (raw(*(["a"] * (MAX_ROWS // 4 + 1)), n=4), "prompt"),
        (raw("a", sampling=SamplingOptions(logit_bias={512: 1})), "logit_bias"),
        (raw("a", stop=StopOptions(ids=(3, 512))), "stop_token_ids"),
        (raw("a", stop=StopOptions(min_tokens=1, ids=tuple(range(512)))), "stop_token_ids"),
    ],
)
def test_what_this_server_does_not_compute(text: ModelText, given: GenerationRequest, param: str) -> None:
    worker = FakeWorker(DONE)
    with pytest.raises(InvalidRequestError) as caught:
        events_of(Engine(text, worker, Limits(60.0, max_choices=4)), given)
    assert caught.value.param == param
    assert worker.rows == []


def test_prompts_are_limited(text: ModelText) -> None:
    engine = Engine(text, FakeWorker(DONE), Limits(60.0, max_prompt_tokens=3))
    events_of(engine, raw("a b"))
    with pytest.raises(ContextLengthError, match="max_prompt_tokens") as caught:
        events_of(engine, raw("a", "a b c d e f"))
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(("own", "setting"), [(0.05, None), (None, 0.05), (0.05, 60.0), (60.0, 0.05)])
def test_a_deadline_cancels_the_rows(text: ModelText, own: float | None, setting: float | None) -> None:
    worker = FakeWorker([RowUpdate(1, tokens=[70])])
    engine = Engine(text, worker, Limits(60.0, timeout_s=setting))

    async def run() -> list[Event]:
        return [event async for event in engine.answer(raw("a", n=2), own)]

    end = asyncio.run(run())[-1]
    assert isinstance(end, Failed)
    assert isinstance(end.error, RequestTimeoutError)
    assert "0.05 seconds" in end.error.message
    assert sorted(worker.cancelled) == [1, 2]


# ---------------------------------------------------------------- best_of


def ranked(events: list[Event], means: list[float], best_of: int, n: int) -> list[Event]:
    answers = cast(list[RowAnswer], [SimpleNamespace(mean_logprob=mean) for mean in means])

    async def source() -> AsyncIterator[Event]:
        for event in events:
            yield event

    async def run() -> list[Event]:
        return [event async for event in best(source(), answers, best_of, n)]

    return asyncio.run(run())


def candidate(choice: int, usage: Usage) -> list[Event]:
    return [TextDelta(f"text {choice}", choice), Finished(StopReason.STOP, usage, choice)]


def test_the_most_likely_answers_are_told() -> None:
    events = [event for i in range(6) for event in candidate(i, Usage(10 if i in (0, 3) else 0, i))]
    told = ranked(events, [-3, -1, -2, -1, -2, -3], best_of=3, n=2)
    assert [event.text for event in told if isinstance(event, TextDelta)] == [
        *("text 1", "text 2"),
        *("text 3", "text 4"),
    ]
    ends = [event for event in told if isinstance(event, Finished)]
    assert [end.choice for end in ends] == [0, 1, 2, 3]
    assert sum((end.usage for end in ends), Usage(0, 0)) == Usage(20, 15)


def test_a_failure_is_told_instead() -> None:
    failed = Failed(RowFailedError("m"))
    assert ranked([*candidate(0, Usage(1, 1)), failed], [0, 0], best_of=2, n=1) == [failed]


def test_candidates_are_scored_by_the_worker(text: ModelText) -> None:
    worker = FakeWorker(DONE)
    events_of(engine_of(text, worker), raw("a", best_of=2))
    assert [row.sampling.logprobs for row in worker.rows] == [0, 0]
