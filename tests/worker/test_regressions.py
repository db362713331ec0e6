"""Faults that were found by chance, each in the smallest form that still shows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from tests.worker.harness import ModelUnderTest, run, submission

from pomona.config import WorkerOptions
from pomona.link.messages import Sampling
from pomona.worker import model, runner
from pomona.worker.sampler import Draw, sample


@pytest.fixture(scope="module")
def subject(tiny_model: Callable[[str], Path]) -> ModelUnderTest:
    return ModelUnderTest(tiny_model("llama"))


def test_a_copied_block_waits_for_the_step_in_which_its_row_first_runs(subject: ModelUnderTest) -> None:
    """With more prefilling rows than the budget has tokens, a newcomer sits out its first steps."""
    engine = subject.engine(chunk=2)
    warm = subject.prompt(40, seed=1)
    run(engine, [submission(0, warm, 1)])
    fork = warm[:24] + subject.prompt(20, seed=5)  # leaves the cached path in the middle of a block
    others = [submission(i, subject.prompt(60, seed=10 + i), 4) for i in range(1, 4)]
    answer = run(engine, [*others, submission(9, fork, 12)])[9]
    assert answer.cached == 24
    subject.check(fork, answer.tokens)


def test_a_parked_row_does_not_count_its_own_past_as_cached(subject: ModelUnderTest) -> None:
    """A row that is parked in mid-prefill finds its own chunks again; they were not reused from anybody."""
    engine = subject.engine(pool_tokens=160, chunk=2, reserve_tokens=0)
    growing, newcomer = submission(1, subject.prompt(4, seed=1), 60), subject.prompt(100, seed=2)
    answer = run(engine, [growing, submission(2, newcomer, 3)])[2]
    assert engine.scheduler.counters.parked == 1
    assert engine.scheduler.counters.computed_tokens < 4 + 60 + 100 + 3 + 16  # it went on where it was
    assert answer.cached == 0
    subject.check(newcomer, answer.tokens)


def test_nobody_waits_for_a_prefix_that_cannot_be_shared(tiny_model: Callable[[str], Path]) -> None:
    """mlx-lm's own caches are never shared: equal prompts start side by side."""
    stock = ModelUnderTest(tiny_model("llama"), reader="stock")
    engine = stock.engine(chunk=16)
    prompt = stock.prompt(100, seed=1)
    for i in range(3):
        engine.scheduler.submit(submission(i, prompt, 3))
    engine.step()
    assert len(engine.scheduler.running) == 3
    run(engine, [])


@pytest.mark.parametrize("chunk", [8, 64])
def test_a_long_prefill_does_not_flood_the_snapshots(tiny_model: Callable[[str], Path], chunk: int) -> None:
    """Of the states between message ends few stay: another session's must not be pushed out by them."""
    hybrid = ModelUnderTest(tiny_model("qwen3_5"))
    engine = hybrid.engine(chunk=chunk)
    snapshots = engine.scheduler.store.snapshots
    session, long = hybrid.prompt(60, seed=1), hybrid.prompt(1000, seed=2)
    run(engine, [submission(1, session, 2)])
    snapshots.limit_bytes = snapshots.nbytes // len(snapshots) * (len(snapshots) + 14)
    run(engine, [submission(2, long, 2)])
    again = run(engine, [submission(3, session, 4), submission(4, long, 4)])
    assert again[3].cached == len(session) - 1
    assert again[4].cached == len(long) - 1
    fork = run(engine, [submission(5, [*long[:700], 7], 4)])[5]
    assert fork.cached >= 512
    hybrid.check([*long[:700], 7], fork.tokens)


def test_failing_readers_leave_no_tracebacks_in_the_log(
    tiny_model: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """deepseek_v3 does not run with the paged reader; the probe finds out, and that is no error."""
    with caplog.at_level("WARNING"):
        ModelUnderTest(tiny_model("deepseek_v3"))
    assert not caplog.records


def test_snapshots_have_their_share_of_the_memory_asked_for(tiny_model: Callable[[str], Path]) -> None:
    options = WorkerOptions(model=str(tiny_model("mamba2")), kv_memory_bytes=4_000_000)
    assert model.load(options).store.snapshots.limit_bytes == 1_000_000


def test_a_step_that_fails_in_sampling_leaves_recurrent_states_as_they_were(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are run again one by one, from the states they had before."""
    hybrid = ModelUnderTest(tiny_model("qwen3_5"))
    calls = 0

    def fail_once(logits: mx.array, draws: list[Draw]) -> mx.array:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise ValueError("sampling")
        return sample(logits, draws)

    monkeypatch.setattr(runner, "sample", fail_once)
    prompts = [hybrid.prompt(30, seed=1), hybrid.prompt(25, seed=2)]
    requests = [submission(i, prompt, 12) for i, prompt in enumerate(prompts)]
    answers = run(hybrid.engine(), requests, allowed_failures=1)
    for i, prompt in enumerate(prompts):
        assert answers[i].error is None
        hybrid.check(prompt, answers[i].tokens)


def test_a_row_that_always_fails_in_sampling_ends_alone(
    subject: ModelUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_seed_13(logits: mx.array, draws: list[Draw]) -> mx.array:
        if any(draw.rule.seed == 13 for draw in draws):
            raise ValueError("sampling")
        return sample(logits, draws)

    monkeypatch.setattr(runner, "sample", fail_seed_13)
    good = subject.prompt(30, seed=1)
    bad = submission(2, subject.prompt(25, seed=2), 12, sampling=Sampling(temperature=0.0, seed=13))
    answers = run(subject.engine(), [submission(1, good, 12), bad], arrivals=[0, 3], allowed_failures=1)
    assert "sampling" in (answers[2].error or "")
    assert answers[1].error is None
    subject.check(good, answers[1].tokens)
