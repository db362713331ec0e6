"""Each reader forced on models that would get a better one: the same tokens come out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.worker.harness import ModelUnderTest, run, submission

from pomona.config import WorkerOptions
from pomona.worker.model import ModelLoadError, load


@pytest.mark.parametrize(
    ("architecture", "reader"),
    [
        ("llama", "gathered"),
        ("gemma3_text", "gathered"),
        ("granitemoehybrid", "gathered"),
        ("llama", "stock"),
        ("gemma3_text", "stock"),
        ("qwen3_5", "stock"),
        ("deepseek_v3", "stock"),
    ],
)
def test_forced_reader(tiny_model: Callable[[str], Path], architecture: str, reader: str) -> None:
    subject = ModelUnderTest(tiny_model(architecture), reader=reader)
    assert subject.loaded.reader.value == reader
    rng = np.random.default_rng(3)
    prompts = [subject.prompt(int(rng.integers(1, 90)), seed=i) for i in range(5)]
    requests = [submission(i, prompt, 40) for i, prompt in enumerate(prompts)]
    engine = subject.engine(pool_tokens=208, reserve_tokens=16, chunk=50)
    answers = run(engine, requests, arrivals=[0, 0, 3, 8, 9], cancellations={3: 15})
    assert engine.scheduler.counters.parked > 0
    for i in (0, 1, 2, 4):
        assert len(answers[i].tokens) == 40
        subject.check(prompts[i], answers[i].tokens)


def test_a_reader_that_does_not_fit_is_refused(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(ModelLoadError, match=r"deepseek_v3.*paged reader"):
        load(WorkerOptions(model=str(tiny_model("deepseek_v3")), reader="paged", pool_tokens=1024))
