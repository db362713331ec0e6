"""StepPlanner against its twin."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.native.core.twins import PlannerTwin, ceil_div, ints

from pomona._core import StepPlanner

rows_of = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 1, 2]) | st.integers(0, 300),  # pending
        st.integers(0, 500),  # length
        st.integers(0, 40),  # held
        st.integers(0, 60),  # reserved
    ),
    max_size=8,
)
observations = st.lists(
    st.tuples(st.sampled_from([0, 3]) | st.integers(0, 5000), st.integers(0, 4), st.floats(0, 20)),
    max_size=12,
)
deterministic = settings(max_examples=300, derandomize=True, deadline=None)


@given(
    rows=rows_of,
    seen=observations,
    available=st.integers(0, 400),
    block_size=st.integers(1, 64),
    min_chunk=st.integers(1, 64),
    max_step_tokens=st.integers(1, 600),
)
@deterministic
def test_equals_twin(
    rows: list[tuple[int, int, int, int]],
    seen: list[tuple[int, int, float]],
    available: int,
    block_size: int,
    min_chunk: int,
    max_step_tokens: int,
) -> None:
    planner = StepPlanner(block_size, 0.25, min_chunk, max_step_tokens)
    twin = PlannerTwin(block_size, 0.25, min_chunk, max_step_tokens)
    for observation in seen:
        before = planner.prefill_budget
        planner.observe(*observation)
        twin.observe(*observation)
        assert min(min_chunk, max_step_tokens) <= planner.prefill_budget <= 2 * before + 1
    assert planner.prefill_rate == pytest.approx(twin.rate)
    assert planner.prefill_budget == pytest.approx(twin.budget, abs=1)

    twin.budget = planner.prefill_budget  # rounding is not what the rest is about
    pending, length, held, reserved = zip(*rows, strict=True) if rows else ((), (), (), ())
    plan = planner.plan(ints(*pending), ints(*length), ints(*held), ints(*reserved), available)
    assert plan.tokens.tolist() == twin.tokens(pending)
    assert plan.blocks.tolist() == twin.blocks(plan.tokens.tolist(), length, held)
    assert plan.shortage == twin.shortage(plan.blocks.tolist(), held, reserved, available)


@given(
    prompt=st.integers(0, 10**6),
    more=st.integers(0, 10**6),
    reserve=st.integers(0, 4096),
    block_size=st.integers(1, 256),
)
@deterministic
def test_reserves_prompt_and_a_bounded_answer(prompt: int, more: int, reserve: int, block_size: int) -> None:
    planner = StepPlanner(block_size, reserve_tokens=reserve)
    assert planner.reservation(prompt, more) == ceil_div(prompt + min(more, reserve), block_size)


@given(
    rows=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6),
    need=st.integers(0, 60),
    available=st.integers(0, 120),
)
@deterministic
def test_an_admitted_row_never_makes_others_short(
    rows: list[tuple[int, int]], need: int, available: int
) -> None:
    """Once admitted, all rows can grow to what they were promised, together."""
    planner = StepPlanner(1, min_chunk=10_000)
    held, reserved = zip(*rows, strict=True) if rows else ((), ())
    if not planner.admits(need, ints(*held), ints(*reserved), available):
        assert need + sum(max(0, r - h) for h, r in rows) > available
        return
    held, reserved = (*held, 0), (*reserved, need)
    growth = [max(0, r - h) for h, r in zip(held, reserved, strict=True)]
    plan = planner.plan(ints(*growth), ints(*held), ints(*held), ints(*reserved), available)
    assert plan.tokens.tolist() == growth
    assert plan.shortage == 0


def test_one_odd_measurement_does_not_explode_the_budget() -> None:
    planner = StepPlanner(64, budget_s=0.25, min_chunk=16)
    for _ in range(20):
        planner.observe(planner.prefill_budget, 0, planner.prefill_budget / 2000)
    assert planner.prefill_budget == pytest.approx(500, abs=1)
    planner.observe(500, 0, 1e-6)
    assert planner.prefill_budget <= 1001


def test_short_last_chunks_do_not_drag_the_rate_down() -> None:
    planner = StepPlanner(64)
    for _ in range(20):
        planner.observe(planner.prefill_budget, 0, planner.prefill_budget / 2000)
    for _ in range(20):
        planner.observe(2, 0, 0.02)  # 100 tokens a second, all of it fixed cost
    assert planner.prefill_rate > 1900


@pytest.mark.parametrize("position", range(4))
def test_rejects_negative_and_ragged_arrays(position: int) -> None:
    planner = StepPlanner(64)
    name = ["pending", "length", "held", "reserved"][position]
    arrays = [ints(2, 2) for _ in range(4)]
    arrays[position] = ints(2, -2)
    with pytest.raises(ValueError, match=f"{name} holds a negative number: -2"):
        planner.plan(*arrays, 10)
    arrays[position] = ints(2, 2, 2)
    with pytest.raises(ValueError, match="entries for"):
        planner.plan(*arrays, 10)
