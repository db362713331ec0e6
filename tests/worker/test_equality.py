"""Greedy float32 output of the engine against mlx-lm's single-sequence generation, per architecture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from tests.worker.harness import ModelUnderTest, run, submission

from pomona.link.messages import FinishReason

ARCHITECTURES = (
    "llama",
    "qwen3",
    "gemma3_text",
    "gpt_oss",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5",
    "mamba2",
    "falcon_h1",
    "granitemoehybrid",
    "deepseek_v3",
    "gemma2",
    "phi",
)
# These also with mlx-lm's modules as they are.
PLAIN = ("llama", "phi")
READERS = {
    "deepseek_v3": "gathered",
    "gemma2": "gathered",
    # Its attention function touches K and V, but the fused block takes its place.
    "phi": "paged",
    "phi-plain": "gathered",
}

PROMPTS = (70, 9, 133, 33, 1, 48)
NEW = 20


@pytest.fixture(scope="module", params=(*ARCHITECTURES, *(f"{name}-plain" for name in PLAIN)))
def subject(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Iterator[ModelUnderTest]:
    name, _, plain = request.param.partition("-")
    yield ModelUnderTest(tiny_model(name), fused_ops="off" if plain else "auto")
    mx.clear_cache()


def test_reader_chosen_by_probe(request: pytest.FixtureRequest, subject: ModelUnderTest) -> None:
    name = request.node.callspec.params["subject"]
    assert subject.loaded.reader.value == READERS.get(name, "paged")
    assert subject.loaded.wanted is not None


def test_alone(subject: ModelUnderTest) -> None:
    for length in PROMPTS:
        prompt = subject.prompt(length, seed=length)
        answers = run(subject.engine(), [submission(1, prompt, NEW)])
        assert answers[1].finish is FinishReason.LENGTH
        assert len(answers[1].tokens) == NEW
        subject.check(prompt, answers[1].tokens)


@pytest.mark.parametrize("look_ahead", [True, False])
def test_batched_with_random_arrivals_cancellations_and_parkings(
    subject: ModelUnderTest, look_ahead: bool
) -> None:
    rng = np.random.default_rng(11)
    count = 10
    prompts = [subject.prompt(int(rng.integers(1, 120)), seed=100 + i) for i in range(count)]
    arrivals = rng.integers(0, 30, count).tolist()
    cancelled = {2: int(arrivals[2]) + 3, 7: int(arrivals[7]) + 9, 8: int(arrivals[8])}
    # Room for about four rows: the youngest are parked as the others grow.
    engine = subject.engine(pool_tokens=448, reserve_tokens=16, chunk=64, look_ahead=look_ahead)
    requests = [submission(i, prompt, 60) for i, prompt in enumerate(prompts)]
    answers = run(engine, requests, arrivals, cancelled)
    assert engine.scheduler.counters.parked > 0
    for i, prompt in enumerate(prompts):
        if i in cancelled:
            continue
        assert answers[i].finish is FinishReason.LENGTH
        assert len(answers[i].tokens) == 60
        subject.check(prompt, answers[i].tokens)


@pytest.mark.parametrize("chunk", [1, 7, 17, 61])
def test_chunked_at_odd_sizes(subject: ModelUnderTest, chunk: int) -> None:
    prompts = [subject.prompt(length, seed=length) for length in (70, 33)]
    requests = [submission(i, prompt, NEW) for i, prompt in enumerate(prompts)]
    answers = run(subject.engine(chunk=chunk), requests)
    for i, prompt in enumerate(prompts):
        subject.check(prompt, answers[i].tokens)


def test_after_a_prefix_hit(subject: ModelUnderTest) -> None:
    engine = subject.engine()
    prompt = subject.prompt(75, seed=1)
    first = run(engine, [submission(1, prompt, NEW, boundaries=_pack([40]))])[1]
    repeated = run(engine, [submission(2, prompt, NEW)])[2]
    assert repeated.cached == len(prompt) - 1
    subject.check(prompt, repeated.tokens)
    assert repeated.tokens == first.tokens

    turn = [*prompt, *first.tokens, *subject.prompt(13, seed=2)]
    answer = run(engine, [submission(3, turn, NEW)])[3]
    assert answer.cached >= len(prompt) - 1
    subject.check(turn, answer.tokens)

    # Leaves the cached path in the middle of a block.
    fork = [*prompt[:51], *subject.prompt(20, seed=3)]
    answer = run(engine, [submission(4, fork, NEW, boundaries=_pack([51]))])[4]
    assert answer.cached == (40 if engine.scheduler.store.stateful else 51)
    subject.check(fork, answer.tokens)


def test_beside_a_failing_row(subject: ModelUnderTest) -> None:
    """A row that makes the building of its call raise ends alone."""
    good = [subject.prompt(length, seed=length) for length in (50, 21)]
    alone = [run(subject.engine(), [submission(1, prompt, NEW)])[1].tokens for prompt in good]
    poison = min(set(range(400, 500)) - set(alone[0]) - set(alone[1]))
    engine = subject.engine(wrap_model=lambda model: _Faulty(model, poison))
    bad = [*subject.prompt(30, seed=9), poison]
    requests = [submission(0, good[0], NEW), submission(1, bad, NEW), submission(2, good[1], NEW)]
    answers = run(engine, requests, arrivals=[0, 3, 3], allowed_failures=1)
    assert answers[1].finish is FinishReason.ERROR
    assert "poison" in (answers[1].error or "")
    for i, prompt in ((0, good[0]), (2, good[1])):
        assert answers[i].finish is FinishReason.LENGTH
        subject.check(prompt, answers[i].tokens)
    # Rows that share a call are run again one by one; a call of one row fails by itself.
    assert engine.failed_steps <= 1


class _Faulty:
    """Raises while a call that holds the poison token is built."""

    def __init__(self, model: Callable[..., mx.array], poison: int) -> None:
        self._model = model
        self._poison = poison

    def __call__(self, ids: mx.array, cache: list[object]) -> mx.array:
        if self._poison in np.array(ids):
            raise ValueError("poison")
        return self._model(ids, cache=cache)


def _pack(boundaries: list[int]) -> bytes:
    return np.asarray(boundaries, "<i4").tobytes()
