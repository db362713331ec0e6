"""One row's updates to text, stop strings, log probabilities and usage."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pomona.conversation.conversation import GenerationRequest, RawText, StopOptions
from pomona.conversation.events import Event, Finished, StopReason, TextDelta, TokenLogprob
from pomona.link.messages import FinishReason, RowUpdate, TokenLogprobs
from pomona.server.row_answer import Place, RowAnswer
from pomona.text.model_text import ModelText

FIRST = Place(0, 0)
# The fixture is read only.
any_example = settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
# Whole characters, parts of them, and special tokens.
answers = st.text("ab .\né모😀", max_size=12)
stop_strings = st.lists(st.text("ab .\né모😀", min_size=1, max_size=4), max_size=3)
sizes = st.lists(st.integers(1, 4), max_size=20)


@pytest.fixture(scope="module")
def text(folder: Path) -> ModelText:
    return ModelText.load(folder)


def updates(
    ids: list[int], sizes_: Iterable[int], finish: FinishReason = FinishReason.STOP
) -> list[RowUpdate]:
    rest = iter(ids)
    pieces = [list(itertools.islice(rest, size)) for size in [*sizes_, len(ids)]]
    sent = [
        RowUpdate(1, tokens=piece, logprobs=[TokenLogprobs(id_, -id_ / 8) for id_ in piece])
        for piece in pieces
        if piece
    ]
    return [RowUpdate(1, prompt_done=2, cached_tokens=1), *sent, RowUpdate(1, finish=finish)]


def answer_of(text: ModelText, prompt: str = "The quick", place: Place = FIRST, **fields: Any) -> RowAnswer:
    source = RawText(prompt)
    return RowAnswer(GenerationRequest((source,), **fields), text.prompts.build(source), place, text)


def run(answer: RowAnswer, given_: list[RowUpdate]) -> tuple[str, list[TokenLogprob], Finished]:
    events: list[Event] = []
    for update in given_:
        if not answer.ended:
            events += answer.take(update)
    deltas = [event for event in events if isinstance(event, TextDelta)]
    end = events[-1]
    assert answer.ended
    assert isinstance(end, Finished)
    assert len(deltas) == len(events) - 1
    logprobs = [item for delta in deltas for item in delta.logprobs]
    return "".join(delta.text for delta in deltas), logprobs, end


def whole_cut(whole: str, strings: list[str]) -> int | None:
    return min((start for string in strings if (start := whole.find(string)) >= 0), default=None)


@given(answers, stop_strings, sizes)
@any_example
def test_a_stop_string_under_every_chunking(
    text: ModelText, whole: str, strings: list[str], sizes_: list[int]
) -> None:
    ids = text.tokenizer.encode(whole).ids
    answer = answer_of(text, stop=StopOptions(strings=tuple(strings)), logprobs=0)
    shown, logprobs, end = run(answer, updates(ids, sizes_, FinishReason.LENGTH))
    cut = whole_cut(whole, strings)
    assert shown == whole[:cut]
    assert end.reason is (StopReason.LENGTH if cut is None else StopReason.STOP)
    assert b"".join(item.token for item in logprobs)[: len(shown.encode())] == shown.encode()
    if cut is None:
        assert [item.token for item in logprobs] == [text.tokenizer.codec.token_bytes(id_) for id_ in ids]
        assert end.usage.completion_tokens == len(ids)
    else:
        assert all(item.offset < cut for item in logprobs)
        assert len(logprobs) <= end.usage.completion_tokens <= len(ids)


@given(answers, sizes)
@any_example
def test_offsets_are_positions_in_the_text(text: ModelText, whole: str, sizes_: list[int]) -> None:
    shown, logprobs, _ = run(answer_of(text, logprobs=0), updates(text.tokenizer.encode(whole).ids, sizes_))
    seen = b""
    for item in logprobs:
        before = seen.decode(errors="ignore")
        # A token that holds the end of one character and the start of another waits for the second.
        assert item.offset <= len(before)
        if before.encode() == seen:
            assert item.offset == len(before)
        seen += item.token
    assert shown == whole


def test_tokens_are_counted_up_to_the_one_that_completes_a_stop_string(text: ModelText) -> None:
    ids = text.tokenizer.encode("a. b. c").ids
    for size in range(1, len(ids) + 1):
        stop = StopOptions(strings=(" b",))
        shown, _, end = run(answer_of(text, stop=stop), updates(ids, [size] * len(ids)))
        assert shown == "a."
        assert end.usage.completion_tokens == len(text.tokenizer.encode("a. b").ids)


def test_stop_strings_wait_for_min_tokens(text: ModelText) -> None:
    ids = text.tokenizer.encode("a.a.a.a.").ids
    for min_tokens in range(len(ids)):
        stop = StopOptions(strings=("a",), min_tokens=min_tokens)
        shown, _, _ = run(answer_of(text, stop=stop), updates(ids, []))
        before = text.tokenizer.decode(ids[:min_tokens])
        assert shown == before + text.tokenizer.decode(ids[min_tokens:]).partition("a")[0]


def test_logprobs_go_with_the_first_character_of_their_token(text: ModelText) -> None:
    """Those of an incomplete character, and those of a possible stop string, wait."""
    ids = text.tokenizer.encode("a😀bc").ids
    answer = answer_of(text, stop=StopOptions(strings=("bx",)), logprobs=0)
    seen = [answer.take(RowUpdate(1, tokens=[id_], logprobs=[TokenLogprobs(id_, -1)])) for id_ in ids]
    deltas = [event for events in seen for event in events if isinstance(event, TextDelta)]
    assert [(delta.text, b"".join(item.token for item in delta.logprobs)) for delta in deltas] == [
        ("a", b"a"),
        ("😀", "😀".encode()),
        ("bc", b"bc"),
    ]


def test_an_incomplete_character_at_the_end(text: ModelText) -> None:
    ids = text.tokenizer.encode("a😀").ids[:-1]
    shown, logprobs, _ = run(answer_of(text, logprobs=0), updates(ids, []))
    assert shown == "a\ufffd"
    assert b"".join(item.token for item in logprobs) == b"a" + "😀".encode()[: -len("😀".encode()[3:])]


def prompt_logprobs(text: ModelText, prompt: str) -> list[TokenLogprobs]:
    return [
        TokenLogprobs(id_, -0.5, [(id_, -0.5), (70, -2)]) for id_ in text.tokenizer.encode(prompt).ids[1:]
    ]


def test_an_echo_counts_the_special_tokens_that_were_written_out(text: ModelText) -> None:
    prompt = "<|im_start|>user é<|im_end|>b"
    update = RowUpdate(1, prompt_done=9, prompt_logprobs=prompt_logprobs(text, prompt))
    (delta,) = answer_of(text, prompt, echo=True, logprobs=0).take(update)
    assert isinstance(delta, TextDelta)
    assert delta.text == prompt
    wanted = (b"<|im_start|>", b"<|im_end|>", b"b")
    offsets = [(item.token, item.offset) for item in delta.logprobs if item.token in wanted]
    assert offsets == [(b"<|im_start|>", 0), (b"<|im_end|>", 18), (b"b", 28)]


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_an_echo_with_logprobs(text: ModelText, pieces: int) -> None:
    prompt = "The quick 😀 jumps"
    known = prompt_logprobs(text, prompt)
    size = -(-len(known) // pieces)
    sent = [
        RowUpdate(1, prompt_done=2, prompt_logprobs=known[i : i + size]) for i in range(0, len(known), size)
    ]
    answer = answer_of(text, prompt, echo=True, logprobs=1)
    shown, logprobs, end = run(answer, [*sent, *updates(text.tokenizer.encode("ab").ids, [])])
    assert shown == prompt + "ab"
    assert b"".join(item.token for item in logprobs).decode() == shown
    assert [item.logprob for item in logprobs][:2] == [None, -0.5]
    assert [len(item.top) for item in logprobs][:2] == [0, 1]
    ids = text.tokenizer.encode("ab").ids
    assert [item.offset for item in logprobs][-len(ids)] == len(prompt)
    assert end.usage.completion_tokens == len(ids)


def test_an_echo_of_nothing_but_the_prompt(text: ModelText) -> None:
    answer = answer_of(text, "The quick", echo=True, stop=StopOptions(max_tokens=0))
    shown, logprobs, end = run(answer, updates([70], [1]))
    assert (shown, logprobs) == ("The quick", [])
    assert end.reason is StopReason.LENGTH
    assert end.usage.completion_tokens == 0


def test_the_first_answer_of_a_prompt_counts_it(text: ModelText) -> None:
    one, two = (run(answer_of(text, place=Place(0, i), n=2), updates([70], []))[2] for i in (0, 1))
    total = one.usage + two.usage
    assert (one.choice, two.choice) == (0, 1)
    assert total.prompt_tokens == len(text.prompts.build(RawText("The quick")).ids)
    assert (total.completion_tokens, total.cached_tokens) == (2, 1)


def test_the_mean_logprob(text: ModelText) -> None:
    answer = answer_of(text, n=1, best_of=2)
    _, logprobs, _ = run(answer, updates([70, 80], []))
    assert logprobs == []
    assert answer.mean_logprob == (-70 / 8 - 80 / 8) / 2
