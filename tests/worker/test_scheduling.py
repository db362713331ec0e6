"""Sharing, parking, cancellation and memory of the engine, on a tiny llama (and a hybrid)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from tests.worker.harness import Collector, ModelUnderTest, check_idle, run, submission

from pomona.link.messages import FinishReason, Sampling
from pomona.worker.engine import Engine
from pomona.worker.scheduler import RowRefusedError


@pytest.fixture(scope="module")
def subject(tiny_model: Callable[[str], Path]) -> ModelUnderTest:
    return ModelUnderTest(tiny_model("llama"))


@pytest.fixture(scope="module")
def hybrid(tiny_model: Callable[[str], Path]) -> ModelUnderTest:
    return ModelUnderTest(tiny_model("qwen3_5"))


def prefilled(engine: Engine) -> int:
    """Tokens that have gone through the model, whatever kind of row they belonged to."""
    return engine.scheduler.counters.computed_tokens


def test_eight_requests_share_one_prefix(subject: ModelUnderTest) -> None:
    """Live sharing: one computes the 2,000-token prefix, seven wait for it, all hold its blocks."""
    prefix = subject.prompt(2000, seed=0)

    alone = subject.engine(pool_tokens=8192)
    peak_alone = _peak_blocks(alone, [prefix])
    computed_alone = prefilled(alone)

    together = subject.engine(pool_tokens=8192)
    peak = _peak_blocks(together, [prefix] * 8)
    assert peak <= 1.15 * peak_alone
    # Seven times: the last prompt token (it always runs) and the answer.
    assert prefilled(together) - computed_alone <= 7 * (1 + 8 + 1)


def _peak_blocks(engine: Engine, prompts: list[list[int]]) -> int:
    for i, prompt in enumerate(prompts):
        engine.scheduler.submit(submission(i, prompt, 8))
    peak = 0
    collector = Collector()
    while engine.busy:
        collector.take(engine.step())
        peak = max(peak, engine.scheduler.store.pool.in_use)
    assert all(answer.finish is FinishReason.LENGTH for answer in collector.answers.values())
    assert len({tuple(answer.tokens) for answer in collector.answers.values()}) == 1
    check_idle(engine)
    return peak


def test_a_row_waits_for_a_prefix_in_flight_and_goes_on_alone_when_that_row_ends(
    subject: ModelUnderTest,
) -> None:
    prefix = subject.prompt(400, seed=1)
    engine = subject.engine(chunk=64)
    engine.scheduler.submit(submission(1, [*prefix, 77], 4))
    collector = Collector()
    collector.take(engine.step())
    engine.scheduler.submit(submission(2, [*prefix, 99], 4))
    collector.take(engine.step())
    assert [row.id for row in engine.scheduler.running] == [1]
    engine.scheduler.cancel(1)
    while engine.busy:
        collector.take(engine.step())
    answer = collector.answers[2]
    assert answer.finish is FinishReason.LENGTH
    assert 64 <= answer.cached < 400
    subject.check([*prefix, 99], answer.tokens)


def test_growing_rows_are_parked_and_resumed(subject: ModelUnderTest) -> None:
    """Four rows of 200 prompt tokens that want 32,000 more run at once in a pool of 1,200 tokens."""
    settings = {"block_size": 16, "pool_tokens": 1200, "reserve_tokens": 64, "first_blocks": 8}
    prompts = [subject.prompt(200, seed=20 + i) for i in range(4)]
    requests = [submission(i, prompt, 32_000) for i, prompt in enumerate(prompts)]
    alone = [run(subject.engine(**settings), [request])[request.id] for request in requests]

    engine = subject.engine(**settings)
    for request in requests:
        engine.scheduler.submit(request)
    collector = Collector()
    collector.take(engine.step())
    collector.take(engine.step())
    assert len(engine.scheduler.running) == 4
    while engine.busy:
        collector.take(engine.step())
    check_idle(engine)
    assert engine.scheduler.counters.parked >= 3
    for i, prompt in enumerate(prompts):
        answer = collector.answers[i]
        assert answer.finish is FinishReason.LENGTH
        assert len(answer.tokens) == engine.scheduler.limit_tokens - len(prompt)
        assert answer.tokens == alone[i].tokens or subject.check(prompt, answer.tokens) >= 0


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("kind", ["attention", "hybrid"])
def test_cancelling_frees_blocks_within_one_step(
    subject: ModelUnderTest, hybrid: ModelUnderTest, phase: str, kind: str
) -> None:
    model = subject if kind == "attention" else hybrid
    chunk = 48
    engine = model.engine(chunk=chunk)
    prompt = model.prompt(300, seed=5)
    engine.scheduler.submit(submission(1, prompt, 50))
    steps = 4 if phase == "prefill" else 12
    for _ in range(steps):
        engine.step()
    row = engine.scheduler.running[0]
    assert row.prefilling == (phase == "prefill")
    done = row.confirmed
    engine.scheduler.cancel(1)
    engine.step()
    check_idle(engine)

    answer = run(engine, [submission(2, prompt, 4)])[2]
    assert answer.cached >= min(done, len(prompt) - 1) - chunk
    model.check(prompt, answer.tokens)


def test_a_cancelled_waiting_row_never_runs(subject: ModelUnderTest) -> None:
    engine = subject.engine(max_rows=1)
    requests = [submission(i, subject.prompt(20, seed=i), 5) for i in range(3)]
    answers = run(engine, requests, cancellations={1: 2})
    assert set(answers) == {0, 2}


def test_stop_id_ends_the_row_and_is_not_sent(subject: ModelUnderTest) -> None:
    prompt = subject.prompt(30, seed=6)
    tokens = run(subject.engine(), [submission(1, prompt, 12)])[1].tokens
    stop = tokens[5]
    answer = run(subject.engine(), [submission(1, prompt, 12, stop_ids=[stop])])[1]
    assert answer.finish is FinishReason.STOP
    assert answer.tokens == tokens[: tokens.index(stop)]


@pytest.mark.parametrize("look_ahead", [True, False])
def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch(subject: ModelUnderTest, look_ahead: bool) -> None:
    sampling = Sampling(temperature=0.9, top_p=0.8, seed=1234)
    prompt = subject.prompt(40, seed=7)
    alone = run(subject.engine(), [submission(1, prompt, 24, sampling=sampling)])[1].tokens
    requests = [submission(1, prompt, 24, sampling=sampling)] + [
        submission(i, subject.prompt(10 * i, seed=i), 30, sampling=Sampling(1.0, 1.0, i)) for i in range(2, 9)
    ]
    answers = run(subject.engine(look_ahead=look_ahead), requests, arrivals=[3, 0, 1, 2, 3, 4, 5, 6])
    assert answers[1].tokens == alone
    other = Sampling(temperature=0.9, top_p=0.8, seed=1235)
    assert run(subject.engine(), [submission(1, prompt, 24, sampling=other)])[1].tokens != alone


def test_not_a_number_ends_only_its_row(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """Token 450's embedding is NaN (the head is not tied to it): only the row that holds it fails."""
    poisoned = shutil.copytree(tiny_model("gpt_oss"), tmp_path / "poisoned")
    weights = mx.load(str(poisoned / "model.safetensors"))
    embedding = weights["model.embed_tokens.weight"]
    rows = mx.arange(embedding.shape[0])[:, None]
    weights["model.embed_tokens.weight"] = mx.where(rows == 450, mx.nan, embedding)
    mx.save_safetensors(str(poisoned / "model.safetensors"), weights, metadata={"format": "mlx"})
    subject = ModelUnderTest(poisoned)
    good = [subject.prompt(30, seed=8), subject.prompt(70, seed=10)]
    bad = [*subject.prompt(20, seed=9), 450]
    requests = [submission(0, good[0], 10), submission(1, bad, 10), submission(2, good[1], 10)]
    answers = run(subject.engine(), requests, arrivals=[0, 2, 2])
    assert answers[1].finish is FinishReason.ERROR
    assert "not a number" in (answers[1].error or "")
    for i, prompt in ((0, good[0]), (2, good[1])):
        assert answers[i].finish is FinishReason.LENGTH
        subject.check(prompt, answers[i].tokens)


def test_refusals_name_the_numbers(subject: ModelUnderTest) -> None:
    engine = subject.engine(pool_tokens=256)
    with pytest.raises(RowRefusedError, match=r"300 tokens and at most 239 fit"):
        engine.scheduler.submit(submission(1, subject.prompt(300, seed=1), 5))
    with pytest.raises(RowRefusedError, match="no tokens"):
        engine.scheduler.submit(submission(2, [], 5))
    with pytest.raises(RowRefusedError, match="vocabulary of 512"):
        engine.scheduler.submit(submission(3, [512], 5))
    check_idle(engine)


def test_slabs_grow_only_as_blocks_come_into_use(subject: ModelUnderTest) -> None:
    engine = subject.engine(pool_tokens=8192, first_blocks=16)
    store = engine.scheduler.store
    before = store.slab_blocks
    run(engine, [submission(1, subject.prompt(100, seed=1), 4)])
    assert store.slab_blocks == before
    prompt = subject.prompt(1000, seed=2)
    answer = run(engine, [submission(2, prompt, 4)])[2]
    assert before < store.slab_blocks < store.pool.capacity
    subject.check(prompt, answer.tokens)


def test_least_recently_used_prefixes_are_evicted(subject: ModelUnderTest) -> None:
    engine = subject.engine(pool_tokens=512, reserve_tokens=16)
    used_twice, used_once = subject.prompt(150, seed=1), subject.prompt(150, seed=2)
    run(engine, [submission(1, used_twice, 2)])
    run(engine, [submission(2, used_twice, 2)])
    run(engine, [submission(3, used_once, 2)])
    run(engine, [submission(4, subject.prompt(300, seed=3), 2)])
    answers = run(engine, [submission(5, used_twice, 2)])
    assert answers[5].cached == len(used_twice) - 1
    assert engine.scheduler.store.cached_tokens(np.array(used_once, np.int32), 150) < 150
