"""Faults that were found by chance, each in the smallest form that still shows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.worker.harness import ModelUnderTest, run, submission


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
