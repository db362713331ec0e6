"""Every transform of sampling, and their combinations, against an independent one in numpy."""

from __future__ import annotations

from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.worker.sampling_oracle import acceptable, distribution, shaped

from pomona.link.messages import Sampling
from pomona.worker.penalties import make_shaper, shape_rows
from pomona.worker.sampler import FAILED, GREEDY, Draw, problem_with, rule_of, sample

VOCAB = 300

samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-6, 0.1, 0.7, 1.0, 2.0]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0]),
    top_k=st.sampled_from([0, 1, 2, 20, VOCAB, 10 * VOCAB]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.1, 3.0]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 0.5, 2.0]),
    frequency_penalty=st.sampled_from([-2.0, 0.0, 0.3, 2.0]),
    logit_bias=st.dictionaries(
        st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.0, 3.0, 100.0]), max_size=4
    ),
    seed=st.integers(0, 2**63 - 1),
    min_tokens=st.integers(0, 6),
)


class Case:
    """A row in mid-answer. `unread` counts tokens of the answer that only the device knows (0 or 1)."""

    def __init__(self, seed: int, sampling: Sampling, unread: int = 0, ties: bool = False) -> None:
        rng = np.random.default_rng(seed)
        self.logits = rng.normal(0, 3, VOCAB).astype(np.float32)
        if ties:
            self.logits = np.round(self.logits * 2) / 2
        self.prompt = rng.integers(0, VOCAB, 30).tolist()
        self.answer = rng.integers(0, 12, int(rng.integers(unread, 9))).tolist()
        self.stop_ids = {int(t) for t in np.argsort(-self.logits)[:2]}
        self.sampling = sampling
        self.known = len(self.answer) - unread

    def draw(self) -> Draw:
        ids = np.array(self.prompt, np.int32)
        shaper = make_shaper(self.sampling, frozenset(self.stop_ids), ids, VOCAB)
        rule = rule_of(self.sampling)
        if shaper is None:
            return Draw(rule, len(self.answer))
        unread = mx.array(self.answer[self.known :], mx.int32) if self.known < len(self.answer) else None
        answer = np.array(self.answer[: self.known], np.int32)
        return Draw(rule, len(self.answer), partial(shaper.apply, answer=answer, unread=unread))

    def expected(self) -> np.ndarray:
        return shaped(self.logits, self.sampling, self.prompt, self.answer, self.stop_ids)


def sample_cases(cases: list[Case]) -> list[int]:
    draws = [case.draw() for case in cases]
    logits, errors = shape_rows(mx.array(np.stack([c.logits for c in cases])), [d.shape for d in draws])
    assert not errors
    tokens: list[int] = sample(logits, draws).tolist()
    return tokens


@settings(derandomize=True, deadline=None, max_examples=400)
@given(st.integers(0, 2**32), samplings, st.booleans(), st.booleans())
def test_combinations_match_numpy(seed: int, sampling: Sampling, unread: bool, ties: bool) -> None:
    case = Case(seed, sampling, int(unread), ties)
    allowed = acceptable(case.expected(), sampling, len(case.answer))
    assert sample_cases([case])[0] in allowed
    assert len(allowed) <= 3 or ties


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2**32), samplings, st.booleans()), min_size=2, max_size=9))
def test_a_batch_gives_each_row_what_it_gets_alone(rows: list[tuple[int, Sampling, bool]]) -> None:
    cases = [Case(seed, sampling, int(unread)) for seed, sampling, unread in rows]
    assert sample_cases(cases) == [sample_cases([case])[0] for case in cases]


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.integers(0, 2**32), samplings)
def test_logits_are_shaped_as_in_numpy_bit_by_bit_with_or_without_an_unread_token(
    seed: int, sampling: Sampling
) -> None:
    known, lazy = Case(seed, sampling), Case(seed, sampling)
    lazy.known = max(0, len(lazy.answer) - 1)
    results = []
    for case in (known, lazy):
        out, _ = shape_rows(mx.array(case.logits[None]), [case.draw().shape])
        results.append(np.array(out)[0])
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(results[0], known.expected(), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 5},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"top_k": 20, "top_p": 0.8, "min_p": 0.02, "temperature": 1.3},
        {"repetition_penalty": 1.5, "frequency_penalty": 0.4, "presence_penalty": 1.0, "top_k": 40},
        {"logit_bias": {3: 2.0, 150: 4.0, 299: 5.0}, "top_p": 0.95},
    ],
    ids=str,
)
def test_frequencies_follow_the_distribution(fields: dict[str, Any]) -> None:
    count = 6000
    case = Case(4, Sampling(**fields))
    draw = case.draw()
    logits, _ = shape_rows(mx.array(case.logits[None]), [draw.shape])
    draws = [Draw(rule_of(Sampling(**fields, seed=77)), i) for i in range(count)]
    tokens = np.array(sample(mx.broadcast_to(logits, (count, VOCAB)), draws))
    expected = distribution(case.expected(), case.sampling)
    expected /= expected.sum()
    observed = np.bincount(tokens, minlength=VOCAB) / count
    assert not observed[expected == 0].any()
    # The expected L1 distance of a sample of n is at most sum(sqrt(p / n)).
    assert np.abs(observed - expected).sum() < 1.2 * np.sqrt(expected / count).sum()


def test_a_flat_vocabulary_is_drawn_evenly() -> None:
    """Small probabilities over a large vocabulary are not lost in float32."""
    size, count = 100_000, 300
    logits = mx.broadcast_to(mx.zeros((1, size)), (count, size))
    tokens = np.array(sample(logits, [Draw(rule_of(Sampling(seed=5)), i) for i in range(count)]))
    quarters = np.bincount(tokens // (size // 4), minlength=4)
    assert quarters.sum() == count
    assert quarters.min() > 50
    assert len(set(tokens.tolist())) > 290


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 1e-6, 1e-5])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    cases = [Case(i, Sampling(temperature=temperature, seed=i)) for i in range(20)]
    assert sample_cases(cases) == [int(np.argmax(case.logits)) for case in cases]


def test_top_k_of_one_is_greedy_and_a_top_k_beyond_the_vocabulary_changes_nothing() -> None:
    cases = [Case(i, Sampling(top_k=1, seed=i)) for i in range(20)]
    assert sample_cases(cases) == [int(np.argmax(case.logits)) for case in cases]
    for i in range(20):
        plain, wide = Case(i, Sampling(seed=i)), Case(i, Sampling(seed=i, top_k=10**12))
        assert sample_cases([plain]) == sample_cases([wide])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_of_100_forces_and_of_minus_100_bans(temperature: float) -> None:
    for seed in range(20):
        best = int(np.argmax(Case(seed, Sampling()).logits))
        banned = Case(seed, Sampling(temperature=temperature, seed=seed, logit_bias={best: -100.0}))
        forced = Case(seed, Sampling(temperature=temperature, seed=seed, logit_bias={7: 100.0}))
        assert sample_cases([banned])[0] != best
        assert sample_cases([forced])[0] == 7


def test_greedy_honours_penalties() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[:3] = (3.0, 2.9, 2.8)
    case = Case(0, Sampling(temperature=0.0, frequency_penalty=0.06))
    case.logits, case.prompt = logits, [0, 1]
    chosen = []
    for _ in range(6):
        case.answer, case.known = chosen, len(chosen)
        chosen = [*chosen, *sample_cases([case])]
    assert chosen == [0, 0, 1, 0, 1, 0]


def test_a_shape_that_fails_is_that_rows_error() -> None:
    def broken(logits: mx.array) -> mx.array:
        raise ValueError("broken")

    logits = mx.array(np.stack([Case(i, Sampling()).logits for i in range(3)]))
    out, errors = shape_rows(logits, [None, broken, None])
    assert [str(errors[i]) for i in errors] == ["broken"]
    assert list(errors) == [1]
    assert sample(out, [Draw(GREEDY, 0)] * 3).tolist() == mx.argmax(logits, axis=-1).tolist()


def test_a_row_without_any_token_left_fails_alone() -> None:
    values = np.stack([Case(i, Sampling()).logits for i in range(2)])
    values[0] = -np.inf
    for sampling in (Sampling(temperature=0.0), Sampling(), Sampling(top_p=0.5, top_k=3, min_p=0.1)):
        tokens = sample(mx.array(values), [Draw(rule_of(sampling), 0)] * 2).tolist()
        assert tokens[0] == FAILED
        assert tokens[1] >= 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, "vocabulary of 300"),
        ({"logit_bias": {-1: 1.0}}, "vocabulary of 300"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 2.0}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": float("inf")}, "presence_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"logprobs": -1}, "logprobs"),
    ],
    ids=str,
)
def test_what_cannot_be_sampled_is_named(fields: dict[str, Any], words: str) -> None:
    assert words in (problem_with(Sampling(**fields), frozenset(), VOCAB) or "")


def test_min_tokens_needs_a_token_that_does_not_stop() -> None:
    assert problem_with(Sampling(min_tokens=1), frozenset(range(VOCAB - 1)), VOCAB) is None
    assert "stop id" in (problem_with(Sampling(min_tokens=1), frozenset(range(VOCAB)), VOCAB) or "")
    assert problem_with(Sampling(), frozenset(range(VOCAB)), VOCAB) is None
