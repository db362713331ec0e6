"""Sampled rows in the engine: the same tokens alone, in a batch, when parked, with and without look-ahead;
and each token against mlx-lm's logits by the numpy oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tests.worker.harness import Answer, Collector, ModelUnderTest, check_idle, run, submission
from tests.worker.sampling_oracle import acceptable, shaped

from pomona._ops import LogitEdits
from pomona.link.messages import FinishReason, Sampling, Submit
from pomona.worker import penalties
from pomona.worker.scheduler import RowRefusedError

NEW = 50
VOCAB = 512


@pytest.fixture(scope="module")
def subject(tiny_model: Callable[[str], Path]) -> ModelUnderTest:
    return ModelUnderTest(tiny_model("llama"))


def random_sampling(rng: np.random.Generator) -> Sampling:
    """Each field is on in about half of the rows."""

    def maybe(low: float, high: float, off: float) -> float:
        return float(rng.uniform(low, high)) if rng.random() < 0.5 else off

    bias_ids = rng.integers(0, VOCAB, 3).tolist() if rng.random() < 0.5 else []
    return Sampling(
        temperature=maybe(0.3, 1.5, 0.0) if rng.random() < 0.5 else 1.0,
        top_p=maybe(0.3, 0.99, 1.0),
        top_k=int(maybe(2, 60, 0)),
        min_p=maybe(0.0, 0.2, 0.0),
        repetition_penalty=maybe(0.8, 1.5, 1.0),
        presence_penalty=maybe(-1, 1.5, 0.0),
        frequency_penalty=maybe(-0.2, 1, 0.0),
        logit_bias={token: float(rng.uniform(-3, 3)) for token in bias_ids},
        seed=int(rng.integers(0, 2**62)),
        min_tokens=int(maybe(1, 20, 0)),
        logprobs=[None, None, 0, 3][rng.integers(4)],
    )


def random_requests(subject: ModelUnderTest, seed: int) -> list[Submit]:
    rng = np.random.default_rng(seed)
    requests = []
    for i in range(8):
        sampling = random_sampling(rng)
        prompt = subject.prompt(int(rng.integers(20, 60)), seed=seed * 100 + i)
        stop_ids = rng.integers(0, VOCAB, 2).tolist()
        requests.append(submission(i, prompt, NEW, sampling=sampling, stop_ids=stop_ids))
    return requests


@pytest.mark.parametrize("seed", range(5))
def test_the_same_alone_in_a_batch_parked_and_with_or_without_look_ahead(
    subject: ModelUnderTest, seed: int
) -> None:
    requests = random_requests(subject, seed)
    alone = {r.id: run(subject.engine(), [r])[r.id] for r in requests}
    assert _texts(run(subject.engine(look_ahead=False), requests)) == _texts(alone)
    arrivals = np.random.default_rng(seed).integers(0, 12, 8).tolist()
    for look_ahead in (True, False):
        # Room for about four rows: the youngest are parked as the others grow.
        engine = subject.engine(pool_tokens=208, reserve_tokens=16, chunk=64, look_ahead=look_ahead)
        answers = run(engine, requests, arrivals)
        assert engine.scheduler.counters.parked > 0
        assert _texts(answers) == _texts(alone)
    for request in requests:
        check_with_oracle(subject, request, alone[request.id])


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt_oss", "qwen3_moe"])
def test_not_a_bit_depends_on_neighbours_chunks_or_cached_prefixes(
    tiny_model: Callable[[str], Path], name: str
) -> None:
    """Log probabilities are compared without tolerance: sums have one order where whole layers are ops."""
    model = ModelUnderTest(tiny_model(name))
    prompts = [model.prompt(length, seed=length) for length in (70, 9, 1, 33, 90, 17, 40, 5)]
    requests = [
        submission(i, prompt, 12, sampling=Sampling(temperature=1.0, seed=i, logprobs=3))
        for i, prompt in enumerate(prompts)
    ]
    alone = {r.id: run(model.engine(), [r])[r.id] for r in requests}
    warm = model.engine()
    run(warm, [submission(10 + i, prompt[: len(prompt) // 2 + 1], 2) for i, prompt in enumerate(prompts)])
    late = [0, 0, 1, 2, 2, 3, 4, 5]
    for engine, arrivals in (
        (model.engine(), None),
        (model.engine(chunk=7), None),
        (model.engine(chunk=61, block_size=4, look_ahead=False), late),
        (model.engine(pool_tokens=208, reserve_tokens=16, chunk=32), late),
        (warm, None),
    ):
        answers = run(engine, requests, arrivals)
        assert _texts(answers) == _texts(alone)
        assert all(answers[r.id].logprobs == alone[r.id].logprobs for r in requests)
    assert all(len(answer.logprobs) == 12 for answer in alone.values())


def test_a_hybrid_model_samples_the_same_when_parked(tiny_model: Callable[[str], Path]) -> None:
    hybrid = ModelUnderTest(tiny_model("qwen3_5"))
    requests = random_requests(hybrid, seed=5)
    alone = {r.id: run(hybrid.engine(), [r])[r.id] for r in requests}
    engine = hybrid.engine(pool_tokens=208, reserve_tokens=16, chunk=64)
    answers = run(engine, requests)
    assert engine.scheduler.counters.parked > 0
    assert _texts(answers) == _texts(alone)
    for request in requests:
        check_with_oracle(hybrid, request, answers[request.id])


def _texts(answers: dict[int, Answer]) -> dict[int, tuple[list[int], Any]]:
    return {row_id: (answer.tokens, answer.finish) for row_id, answer in answers.items()}


def check_with_oracle(subject: ModelUnderTest, request: Submit, answer: Answer) -> None:
    """Every token is one that numpy may draw from mlx-lm's logits after the same tokens."""
    prompt, stop_ids = request.prompt().tolist(), set(request.stop_ids)
    logits = np.array(subject.stock(mx.array([prompt + answer.tokens]))[0])
    for i in range(len(answer.tokens) + (answer.finish is FinishReason.STOP)):
        given = answer.tokens[:i]
        values = shaped(logits[len(prompt) + i - 1], request.sampling, prompt, given, stop_ids)
        allowed = acceptable(values, request.sampling, i, slack=1e-3)
        if i < len(answer.tokens):
            assert answer.tokens[i] in allowed
        else:
            assert allowed & stop_ids


@pytest.mark.parametrize("look_ahead", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stop_ids_wait_for_min_tokens(subject: ModelUnderTest, look_ahead: bool, temperature: float) -> None:
    """The stop ids are all but 12 of the vocabulary: the row stops as soon as it may."""
    prompt = subject.prompt(20, seed=1)
    allowed = set(range(100, 112))
    stop_ids = [token for token in range(VOCAB) if token not in allowed]
    bias = {0: 90.0}
    for min_tokens in (0, 1, 7):
        sampling = Sampling(temperature=temperature, min_tokens=min_tokens, seed=3, logit_bias=bias)
        engine = subject.engine(look_ahead=look_ahead)
        answer = run(engine, [submission(1, prompt, 30, sampling=sampling, stop_ids=stop_ids)])[1]
        assert answer.finish is FinishReason.STOP
        assert len(answer.tokens) == min_tokens
        assert set(answer.tokens) <= allowed


def test_min_tokens_ends_no_row_by_itself(subject: ModelUnderTest) -> None:
    sampling = Sampling(temperature=0.0, min_tokens=50)
    answer = run(subject.engine(), [submission(1, subject.prompt(9, seed=2), 12, sampling=sampling)])[1]
    assert answer.finish is FinishReason.LENGTH
    assert len(answer.tokens) == 12


def test_repetition_counts_the_prompt_and_the_token_in_flight(subject: ModelUnderTest) -> None:
    """A penalty this large makes every greedy token a new one, in the prompt or not."""
    prompt = subject.prompt(50, seed=3)
    sampling = Sampling(temperature=0.0, repetition_penalty=1e9)
    tokens = run(subject.engine(), [submission(1, prompt, 60, sampling=sampling)])[1].tokens
    assert len(set(tokens)) == 60
    assert not set(tokens) & set(prompt)


def test_refusals_are_sentences_and_leave_nothing(subject: ModelUnderTest) -> None:
    engine = subject.engine()
    for fields, words in [
        ({"sampling": Sampling(logit_bias={VOCAB: 1.0})}, r"logit_bias has ids outside .* of 512: \[512\]"),
        ({"sampling": Sampling(top_p=float("nan"))}, "top_p must lie between 0 and 1"),
        ({"prompt_logprobs": -1}, "prompt_logprobs must not be negative"),
    ]:
        with pytest.raises(RowRefusedError, match=words):
            engine.scheduler.submit(submission(1, [5], 3, **fields))
    assert not engine.busy
    check_idle(engine)


def test_a_row_whose_sampling_fails_ends_alone(
    subject: ModelUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [subject.prompt(20 + i, seed=i) for i in range(3)]
    requests = [submission(i, prompt, 10) for i, prompt in enumerate(prompts)]
    broken = submission(9, prompts[0], 10, sampling=Sampling(presence_penalty=1.0))
    edits = penalties.LogitShaper.edits

    def fail_in_flight(self: Any, answer: np.ndarray, unread: int) -> LogitEdits:
        if len(answer) == 3:
            raise ValueError("no such shape")
        return edits(self, answer, unread)

    monkeypatch.setattr(penalties.LogitShaper, "edits", fail_in_flight)
    engine = subject.engine()
    collector = Collector()
    for request in [*requests, broken]:
        engine.scheduler.submit(request)
    while engine.busy:
        collector.take(engine.step())
    check_idle(engine)
    assert collector.answers[9].finish is FinishReason.ERROR
    assert "no such shape" in (collector.answers[9].error or "")
    for i, prompt in enumerate(prompts):
        assert collector.answers[i].finish is FinishReason.LENGTH
        subject.check(prompt, collector.answers[i].tokens)
