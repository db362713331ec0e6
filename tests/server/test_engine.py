"""The engine with a worker that says what the test wants."""

import asyncio
import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from tests.server.scripted_worker import INFO

from pomona.conversation.conversation import (
    Conversation,
    GenerationRequest,
    Message,
    RawText,
    Role,
    Source,
    StopOptions,
    TextPart,
)
from pomona.conversation.errors import ContextLengthError, PomonaError, RowFailedError, WorkerLostError
from pomona.conversation.events import Event, Failed, Finished, Heartbeat, Started, StopReason, TextDelta
from pomona.link.client import RowStream
from pomona.link.messages import FinishReason, ModelInfo, RowUpdate, Submit
from pomona.server.engine import Engine, Limits, Worker
from pomona.text.model_text import ModelText
from pomona.text.prompt import Prompt, PromptBuilder

Script = list[RowUpdate | PomonaError]


class FakeWorker(Worker):
    """Answers each row with a script; remembers rows and cancellations."""

    def __init__(self, script: Script, info: ModelInfo = INFO) -> None:
        self._info = info
        self._script = script
        self.rows: list[Submit] = []
        self.cancelled: list[int] = []

    @property
    def info(self) -> ModelInfo:
        return self._info

    def submit(self, row: Submit) -> RowStream:
        self.rows.append(row)
        stream = RowStream(self, row.id)  # type: ignore[arg-type]  # stands in for the client
        for item in self._script:
            stream.put(item)
        return stream

    def cancel(self, row_id: int) -> None:
        self.cancelled.append(row_id)


@pytest.fixture(scope="module")
def text(folder: Path) -> ModelText:
    return ModelText.load(folder)


@pytest.fixture
def ids(text: ModelText) -> Callable[[str], list[int]]:
    return lambda string: text.tokenizer.encode(string).ids


def conversation(content: str) -> Conversation:
    return Conversation((Message(Role.USER, (TextPart(content),)),))


def request(content: str = "hi", **fields: Any) -> GenerationRequest:
    return GenerationRequest((conversation(content),), **fields)


def events_of(engine: Engine, request_: GenerationRequest, limit: int = 1000) -> list[Event]:
    async def run() -> list[Event]:
        events: list[Event] = []
        generator = engine.answer(request_)
        async for event in generator:
            events.append(event)
            if len(events) == limit:
                await generator.aclose()
        return events

    return asyncio.run(run())


def engine_of(text: ModelText, worker: FakeWorker, keep_alive_s: float = 60.0) -> Engine:
    return Engine(text, worker, Limits(keep_alive_s))


def test_updates_become_events(text: ModelText, ids: Callable[[str], list[int]]) -> None:
    worker = FakeWorker(
        [
            RowUpdate(1, prompt_done=5, cached_tokens=4),
            RowUpdate(1, tokens=ids("Hello 모")),
            RowUpdate(1, finish=FinishReason.LENGTH),
        ]
    )
    started, delta, finished = events_of(engine_of(text, worker), request())
    prompt_tokens = len(worker.rows[0].prompt())
    assert started == Started(prompt_tokens)
    assert delta == TextDelta("Hello 모")
    assert isinstance(finished, Finished)
    assert finished.reason is StopReason.LENGTH
    assert finished.usage.cached_tokens == 4
    assert finished.usage.completion_tokens == len(ids("Hello 모"))
    assert worker.cancelled == []


class ThreadsOfBuild:
    """Remembers in which thread prompts were built."""

    def __init__(self, prompts: PromptBuilder) -> None:
        self._prompts = prompts
        self.seen: set[threading.Thread] = set()

    def build(self, source: Source) -> Prompt:
        self.seen.add(threading.current_thread())
        return self._prompts.build(source)


@pytest.mark.parametrize(
    "sources",
    [
        (Conversation((Message(Role.USER, ()),) * 200),),
        (RawText("a"),) * 200,
        (RawText("a " * 3000),),
    ],
)
def test_what_takes_long_to_encode_does_not_hold_the_event_loop_up(
    text: ModelText, sources: tuple[Source, ...]
) -> None:
    info = msgspec.structs.replace(INFO, context_tokens=100_000)
    prompts = ThreadsOfBuild(text.prompts)
    watched = dataclasses.replace(text, prompts=cast(PromptBuilder, prompts))
    worker = FakeWorker([RowUpdate(1, finish=FinishReason.STOP)], info)
    events_of(engine_of(watched, worker), GenerationRequest(sources))
    assert prompts.seen
    assert threading.current_thread() not in prompts.seen


def test_text_held_back_is_given_out_at_the_end(text: ModelText, ids: Callable[[str], list[int]]) -> None:
    cut = ids("😀")[:-1]
    worker = FakeWorker([RowUpdate(1, tokens=cut), RowUpdate(1, finish=FinishReason.LENGTH)])
    assert events_of(engine_of(text, worker), request())[1] == TextDelta("\ufffd")


def test_a_parked_row_keeps_its_first_account(text: ModelText) -> None:
    worker = FakeWorker(
        [
            RowUpdate(1, prompt_done=4, cached_tokens=2),
            RowUpdate(1, prompt_done=1, cached_tokens=90),
            RowUpdate(1, finish=FinishReason.STOP),
        ]
    )
    end = events_of(engine_of(text, worker), request())[-1]
    assert isinstance(end, Finished)
    assert end.usage.cached_tokens == 2


def test_silence_and_wordless_progress_give_heartbeats(text: ModelText) -> None:
    worker = FakeWorker([RowUpdate(1, prompt_done=4)])
    _, beat, again = events_of(engine_of(text, worker, keep_alive_s=0.01), request(), limit=3)
    progress = 4 / len(worker.rows[0].prompt())
    assert (beat, again) == (Heartbeat(progress), Heartbeat(progress))
    assert worker.cancelled == [1]


def test_an_error_of_the_row_ends_the_answer(text: ModelText) -> None:
    worker = FakeWorker([RowUpdate(1, finish=FinishReason.ERROR, error="no memory")])
    end = events_of(engine_of(text, worker), request())[-1]
    assert isinstance(end, Failed)
    assert isinstance(end.error, RowFailedError)
    assert "no memory" in end.error.message


def test_a_lost_worker_ends_the_answer(text: ModelText) -> None:
    worker = FakeWorker([RowUpdate(1, tokens=[70]), WorkerLostError("gone")])
    end = events_of(engine_of(text, worker), request())[-1]
    assert isinstance(end, Failed)
    assert end.error.message == "gone"
    assert worker.cancelled == []


def test_long_and_short_prompts_are_the_same_path(text: ModelText) -> None:
    worker = FakeWorker([RowUpdate(1, finish=FinishReason.STOP)], roomy(100_000, 100_000))
    for content in ("word " * 10, "word " * 5000):
        events_of(engine_of(text, worker), request(content))
        prompt = text.tokenizer.decode(worker.rows[-1].prompt().tolist())
        assert prompt == f"user\n{content}\nassistant\n"


def roomy(context: int, pool: int) -> ModelInfo:
    return msgspec.structs.replace(INFO, context_tokens=context, pool_tokens=pool)


@pytest.mark.parametrize(
    ("context", "pool", "remedy"), [(8, 100, "the model's own limit"), (100, 8, "itself can take 100 tokens")]
)
def test_what_can_not_fit_is_refused_with_a_remedy(
    text: ModelText, context: int, pool: int, remedy: str
) -> None:
    worker = FakeWorker([], roomy(context, pool))
    with pytest.raises(ContextLengthError, match=remedy):
        events_of(engine_of(text, worker), request("too long for this"))
    assert worker.rows == []


def test_the_last_token_of_room_is_used(text: ModelText) -> None:
    prompt_tokens = len(text.prompts.build(conversation("hi")).ids)
    worker = FakeWorker([RowUpdate(1, finish=FinishReason.LENGTH)], roomy(prompt_tokens + 1, 10_000))
    events_of(engine_of(text, worker), request(stop=StopOptions(max_tokens=500)))
    assert worker.rows[0].max_tokens == 1
    worker = FakeWorker([], roomy(prompt_tokens, 10_000))
    with pytest.raises(ContextLengthError):
        events_of(engine_of(text, worker), request())
