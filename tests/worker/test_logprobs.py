"""Logprobs of drawn and prompt tokens against log_softmax of stock mlx-lm's logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from tests.worker.harness import MARGIN, Collector, ModelUnderTest, run, submission

from pomona.link.messages import FinishReason, RowUpdate, Sampling, Submit, TokenLogprobs
from pomona.worker.engine import Engine
from pomona.worker.logprobs import logprobs_of

TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=["llama", "qwen3_5", "phi", "gpt_oss"])
def subject(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Iterator[ModelUnderTest]:
    """Packed rows, a hybrid, the gathered reader, another packed one with chunks of odd heads."""
    yield ModelUnderTest(tiny_model(request.param))
    mx.clear_cache()


@pytest.fixture(scope="module")
def llama(tiny_model: Callable[[str], Path]) -> ModelUnderTest:
    return ModelUnderTest(tiny_model("llama"))


class LogprobCollector(Collector):
    """Keeps logprobs too, and checks that they come with their tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: dict[int, list[TokenLogprobs]] = {}
        self.prompt: dict[int, list[TokenLogprobs]] = {}

    def take(self, updates: list[RowUpdate]) -> None:
        super().take(updates)
        for update in updates:
            if update.logprobs:
                assert [entry.token for entry in update.logprobs] == update.tokens
            self.drawn.setdefault(update.id, []).extend(update.logprobs)
            self.prompt.setdefault(update.id, []).extend(update.prompt_logprobs)


def collect(engine: Engine, requests: list[Submit]) -> LogprobCollector:
    collector = LogprobCollector()
    for request in requests:
        engine.scheduler.submit(request)
    while engine.busy:
        collector.take(engine.step())
    return collector


def expected(subject: ModelUnderTest, tokens: list[int]) -> np.ndarray:
    """log_softmax [positions, vocabulary] of mlx-lm's logits, in float64."""
    logits = np.array(subject.stock(mx.array([tokens]))[0]).astype(np.float64)
    top = logits.max(axis=-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))


def check(entries: list[TokenLogprobs], tokens: list[int], reference: np.ndarray, top: int) -> None:
    assert [entry.token for entry in entries] == tokens
    for entry, row in zip(entries, reference, strict=True):
        assert abs(entry.logprob - row[entry.token]) < TOLERANCE
        values = [value for _, value in entry.top]
        assert len(entry.top) == len({token for token, _ in entry.top}) == top
        assert values == sorted(values, reverse=True)
        np.testing.assert_allclose(values, [row[token] for token, _ in entry.top], atol=TOLERANCE)
        np.testing.assert_allclose(values, np.sort(row)[::-1][:top], atol=TOLERANCE)


@pytest.mark.parametrize("look_ahead", [True, False])
def test_drawn_tokens_against_mlx_lm(subject: ModelUnderTest, look_ahead: bool) -> None:
    """Rows that want none, 0, 3 and 3 logprobs share the steps; sampling does not change what is reported."""
    samplings = [
        Sampling(temperature=0.0),
        Sampling(temperature=1.3, top_p=0.9, seed=1, logprobs=0),
        Sampling(temperature=0.0, presence_penalty=1.0, logit_bias={50: 5.0}, logprobs=3),
        Sampling(temperature=0.7, top_k=30, seed=2, logprobs=3),
    ]
    prompts = [subject.prompt(20 + 13 * i, seed=i) for i in range(4)]
    requests = [
        submission(i, prompt, 15, sampling=sampling)
        for i, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True))
    ]
    collector = collect(subject.engine(chunk=32, look_ahead=look_ahead), requests)
    assert not collector.drawn[0]
    for i in (1, 2, 3):
        tokens = collector.answers[i].tokens
        assert len(tokens) == 15
        reference = expected(subject, prompts[i] + tokens)[len(prompts[i]) - 1 : -1]
        check(collector.drawn[i], tokens, reference, samplings[i].logprobs or 0)


@pytest.mark.parametrize("chunk", [1, 7, 17, 61, 4096])
def test_prompt_tokens_under_odd_chunks(subject: ModelUnderTest, chunk: int) -> None:
    lengths, tops = (70, 2, 1, 33, 12), (2, 0, 1, 5, None)
    prompts = [subject.prompt(length, seed=length) for length in lengths]
    requests = [
        submission(i, prompt, 3, prompt_logprobs=top)
        for i, (prompt, top) in enumerate(zip(prompts, tops, strict=True))
    ]
    collector = collect(subject.engine(chunk=chunk), requests)
    for i, (prompt, top) in enumerate(zip(prompts, tops, strict=True)):
        entries = collector.prompt[i]
        if top is None:
            assert not entries
        else:
            check(entries, prompt[1:], expected(subject, prompt)[:-1], top)
        subject.check(prompt, collector.answers[i].tokens)


def test_a_long_prompt_is_scored_in_bounded_chunks(llama: ModelUnderTest) -> None:
    prompt = llama.prompt(700, seed=1)
    sizes = []
    engine = llama.engine()
    engine.scheduler.submit(submission(1, prompt, 2, prompt_logprobs=1))
    collector = LogprobCollector()
    while engine.busy:
        updates = engine.step()
        sizes += [len(update.prompt_logprobs) for update in updates]
        collector.take(updates)
    assert max(sizes) <= 128
    check(collector.prompt[1], prompt[1:], expected(llama, prompt)[:-1], 1)


def test_a_cached_prompt_is_scored_again_and_still_shared(subject: ModelUnderTest) -> None:
    engine = subject.engine()
    prompt = subject.prompt(60, seed=4)
    run(engine, [submission(1, prompt, 2)])
    collector = collect(engine, [submission(2, prompt, 2, prompt_logprobs=1)])
    check(collector.prompt[2], prompt[1:], expected(subject, prompt)[:-1], 1)
    assert collector.answers[2].cached == 0
    assert run(engine, [submission(3, prompt, 2)])[3].cached == len(prompt) - 1


def test_parked_rows_report_each_token_once(subject: ModelUnderTest) -> None:
    requests = [
        submission(
            *(i, subject.prompt(60 + i, seed=20 + i), 50),
            sampling=Sampling(temperature=0.9, seed=i, logprobs=1),
            prompt_logprobs=1,
        )
        for i in range(5)
    ]
    engine = subject.engine(pool_tokens=448, reserve_tokens=16, chunk=23)
    collector = collect(engine, requests)
    assert engine.scheduler.counters.parked > 0
    for request in requests:
        prompt, tokens = request.prompt().tolist(), collector.answers[request.id].tokens
        reference = expected(subject, prompt + tokens)[:-1]
        check(collector.prompt[request.id], prompt[1:], reference[: len(prompt) - 1], 1)
        check(collector.drawn[request.id], tokens, reference[len(prompt) - 1 :], 1)


def test_a_row_parked_in_mid_prompt_goes_on_where_it_was(llama: ModelUnderTest) -> None:
    """Small reservations, tiny chunks: rows are parked before their prompts are done."""
    requests = [submission(i, llama.prompt(150, seed=40 + i), 40, prompt_logprobs=0) for i in range(4)]
    engine = llama.engine(pool_tokens=480, reserve_tokens=16, chunk=16)
    for request in requests:
        engine.scheduler.submit(request)
    collector, parked_early = LogprobCollector(), False
    for step in range(100_000):
        if not engine.busy:
            break
        if step == 9:
            # As memory pressure would do it.
            collector.take(engine.settle())
            row = engine.scheduler.running[-1]
            parked_early = 0 < row.scored < row.prompt_tokens - 1
            engine.scheduler._make_room([row])
        collector.take(engine.step())
    assert parked_early
    for request in requests:
        prompt = request.prompt().tolist()
        check(collector.prompt[request.id], prompt[1:], expected(llama, prompt)[:-1], 0)


def test_a_stop_id_and_the_overrun_after_it_have_no_logprobs(llama: ModelUnderTest) -> None:
    prompt = llama.prompt(30, seed=6)
    sampling = Sampling(temperature=0.0, logprobs=1)
    tokens = run(llama.engine(), [submission(1, prompt, 12)])[1].tokens
    stop = tokens[5]
    collector = collect(llama.engine(), [submission(1, prompt, 12, sampling=sampling, stop_ids=[stop])])
    assert collector.answers[1].finish is FinishReason.STOP
    assert [entry.token for entry in collector.drawn[1]] == tokens[: tokens.index(stop)]


def test_greedy_tokens_agree_with_the_harness_oracle(llama: ModelUnderTest) -> None:
    """The same numbers by mlx-lm's own generate_step."""
    prompt = llama.prompt(40, seed=9)
    sampling = Sampling(temperature=0.0, logprobs=1)
    collector = collect(llama.engine(), [submission(1, prompt, 10, sampling=sampling)])
    for i, entry in enumerate(collector.drawn[1]):
        _, logprobs = llama.next_token(prompt + collector.answers[1].tokens[:i])
        assert abs(entry.logprob - logprobs[entry.token].item()) < TOLERANCE
        assert entry.logprob > entry.top[0][1] - MARGIN


def test_as_many_as_the_vocabulary_has() -> None:
    logits = np.random.default_rng(1).normal(0, 3, (2, 10)).astype(np.float32)
    first, second = logprobs_of(mx.array([3, 4]), mx.array(logits), 25).read()
    assert (first.token, second.token) == (3, 4)
    assert [token for token, _ in first.top] == np.argsort(-logits[0]).tolist()
    assert abs(sum(np.exp(value) for _, value in second.top) - 1) < 1e-6


def test_extreme_logits_have_finite_logprobs() -> None:
    logits = mx.array(np.array([[1e30, 0.0, -np.inf], [-1e4, -1e4, -1e4]], np.float32))
    peaked, flat = logprobs_of(mx.array([0, 2]), logits, 1).read()
    assert peaked.logprob == 0.0
    assert abs(flat.logprob + np.log(3)) < 1e-2
