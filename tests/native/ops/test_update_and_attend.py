"""update_and_attend against plain MLX, and its promise of equal bits."""

from __future__ import annotations

import random as random_module

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.native.ops import reference
from tests.native.ops.reference import Step, fill, random, shuffled_tables, step_of

from pomona import _ops

TOLERANCE = {mx.float32: 2e-5, mx.bfloat16: 1.6e-2, mx.float16: 2e-3}
DTYPES = list(TOLERANCE)

HEADS = [(9, 3), (4, 2), (8, 1), (4, 4), (32, 8)]
DIMS = [(32, 32), (64, 64), (80, 80), (128, 128), (256, 256), (576, 512), (7, 5)]


class Case:
    """A slab full of random history, its reference, and one call over it."""

    def __init__(self, step, heads, dims, dtype, *, blocks, length=1, seed=0, q_dtype=None) -> None:
        (self.q_heads, kv_heads), (k_dim, v_dim) = heads, dims
        batch = len(step.slots) // length
        self.step, self.scale = step, k_dim**-0.5
        self.slab = _ops.Slab(blocks, step.block_size, kv_heads, k_dim, kv_heads, v_dim, dtype)
        self.keys = random((blocks, step.block_size, kv_heads, k_dim), dtype, seed)
        self.values = random((blocks, step.block_size, kv_heads, v_dim), dtype, seed + 1)
        # A model computes [B, L, H, D] and swaps the axes: strided views, as here.
        self.q, self.k, self.v = (
            random((batch, length, h, d), t, seed + i).swapaxes(1, 2)
            for i, h, d, t in (
                (2, self.q_heads, k_dim, q_dtype or dtype),
                (3, kv_heads, k_dim, dtype),
                (4, kv_heads, v_dim, dtype),
            )
        )

    def run(self, window=0, sinks=None) -> mx.array:
        fill(self.slab, self.keys, self.values)
        return _ops.update_and_attend(
            self.q, self.k, self.v, self.slab, self.step.native(), self.scale, window, sinks
        )

    def check(self, window=0, sinks=None, tolerance=None) -> mx.array:
        out = self.run(window, sinks)
        mx.eval(out)
        keys = reference.update(self.keys, self.k, self.step)
        values = reference.update(self.values, self.v, self.step)
        expected = reference.attend(self.q, keys, values, self.step, self.scale, window, sinks)
        assert out.dtype == self.q.dtype
        assert out.shape == expected.shape
        difference = mx.abs(out.astype(mx.float32) - expected).max().item() if out.size else 0.0
        assert difference < (tolerance or TOLERANCE[self.q.dtype])
        assert mx.array_equal(self.slab.keys().astype(mx.float32), keys)
        assert mx.array_equal(self.slab.values().astype(mx.float32), values)
        return out


def mixed(block_size: int, seed: int = 0) -> tuple[Step, int]:
    """Decode rows and chunks of four sequences in one call, blocks shuffled."""
    spans = [(130, 1), (0, 75), (63, 2), (40, 30)]
    tables, blocks = shuffled_tables([h + n for h, n in spans], block_size, seed)
    rows = [(s, p) for s, (h, n) in enumerate(spans) for p in range(h, h + n)]
    return step_of(block_size, tables, rows), blocks


@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("heads", HEADS)
def test_heads(heads, block_size):
    step, blocks = mixed(block_size)
    Case(step, heads, (64, 64), mx.float32, blocks=blocks).check()


@pytest.mark.parametrize("block_size", [16, 64, 24])
@pytest.mark.parametrize("dims", DIMS)
def test_dims(dims, block_size):
    step, blocks = mixed(block_size)
    Case(step, (4, 2), dims, mx.float32, blocks=blocks).check()


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("window", [0, 1, 40, 64, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_windows_and_sinks(dtype, window, sinks):
    step, blocks = mixed(64)
    logits = random((9,), dtype, 7) * 3 if sinks else None
    Case(step, (9, 3), (80, 48), dtype, blocks=blocks).check(window, logits)


@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_may_differ_in_dtype_from_the_slab(dtype):
    step, blocks = mixed(64)
    case = Case(step, (4, 2), (64, 64), dtype, blocks=blocks, q_dtype=mx.float32)
    assert case.check().dtype == mx.float32


def test_half_precision_extremes():
    """Subnormal and large halves survive; what does not fit becomes infinity."""
    step = step_of(16, np.zeros((1, 1), np.int32), [(0, 0)])
    slab = _ops.Slab(1, 16, 1, 16, 1, 16, mx.float16)
    bits = [0x0001, 0x03FF, 0x0400, 0x7BFF, 0x8001, 0x8000, 0xFBFF, 0x3C00] * 2
    v = mx.array(np.array(bits, np.uint16).view(np.float16)).reshape(1, 1, 1, 16)
    out = _ops.update_and_attend(mx.ones_like(v), mx.ones_like(v), v, slab, step.native(), 1.0)
    assert out.tolist() == v.tolist()
    wide = _ops.update_and_attend(
        mx.ones_like(v), mx.ones_like(v), mx.full(v.shape, mx.inf, mx.float16), slab, step.native(), 1.0
    )
    assert wide.tolist() == [[[[float("inf")] * 16]]]


@pytest.mark.parametrize("strided", [True, False])
def test_rows_of_more_than_one_token(strided):
    """B = 3, L = 20: token row t is (t // L, t % L)."""
    tables, blocks = shuffled_tables([50, 90, 30], 16, 3)
    rows = [(s, h + i) for s, h in enumerate([30, 70, 0]) for i in range(20)]
    case = Case(step_of(16, tables, rows), (9, 3), (64, 64), mx.float32, blocks=blocks, length=20)
    if not strided:
        case.q, case.k, case.v = (mx.contiguous(x) for x in (case.q, case.k, case.v))
    out = case.check()
    # Memory is token-major, so the model's transpose and reshape are views.
    merged = out.swapaxes(1, 2).reshape(3, 20, -1)
    assert np.array(out).strides == (20 * 9 * 64 * 4, 64 * 4, 9 * 64 * 4, 4)
    assert np.array_equal(np.array(merged).reshape(3, 20, 9, 64), np.array(out).swapaxes(1, 2))


def test_last_axis_may_be_strided():
    step, blocks = mixed(16)
    for dtype in (mx.float32, mx.float16):
        case = Case(step, (4, 2), (32, 32), dtype, blocks=blocks)
        case.q, case.k, case.v = (mx.repeat(x, 2, axis=3)[..., ::2] for x in (case.q, case.k, case.v))
        case.check()


def test_result_is_an_ordinary_array():
    step, blocks = mixed(16)
    case = Case(step, (4, 2), (32, 32), mx.float32, blocks=blocks)
    out = case.run()
    assert mx.allclose((out + 1).sum(), out.sum() + out.size, rtol=1e-4)
    assert mx.array_equal(mx.contiguous(out), out)


def test_shared_blocks():
    """Two sequences read the same first blocks and write into their own."""
    tables = np.array([[5, 2, 7, -1], [5, 2, 0, 3]], np.int32)
    step = step_of(16, tables, [(0, 33), (0, 34), (1, 40), (1, 60)])
    Case(step, (4, 2), (64, 64), mx.float32, blocks=8).check()


@pytest.mark.parametrize("dtype", DTYPES)
def test_copy_on_write(dtype):
    """Copies come first and in order, so a chain moves one block twice; then the row writes."""
    step = step_of(16, np.array([[1, 4, -1]], np.int32), [(0, 20), (0, 21)])
    step.copies = np.array([[2, 3], [3, 4], [0, 2]], np.int32)
    Case(step, (4, 2), (64, 64), dtype, blocks=5).check()


def test_padded_rows_see_nothing():
    """visible 0 gives zeros, with a sink too."""
    tables = np.array([[0, -1]], np.int32)
    nothing = np.zeros(3, np.int32)
    step = Step(16, tables, nothing, nothing, np.array([16, 17, 18], np.int32))
    case = Case(step, (4, 2), (32, 32), mx.float32, blocks=2)
    assert not case.check().any()
    assert not case.check(sinks=mx.ones(4)).any()


def test_no_rows():
    nothing = np.zeros(0, np.int32)
    step = Step(16, np.zeros((0, 0), np.int32), nothing, nothing, nothing)
    case = Case(step, (4, 2), (32, 32), mx.float32, blocks=2)
    assert case.check().shape == (0, 4, 1, 32)


def test_large_scores_do_not_overflow():
    step, blocks = mixed(64)
    case = Case(step, (4, 2), (64, 64), mx.float32, blocks=blocks)
    case.q = case.q * 100
    # Scores of some hundreds: a rounding error of theirs moves the result a thousand times more.
    case.check(sinks=mx.array([500.0, -500.0, 0.0, 30.0]), tolerance=1e-3)


@pytest.mark.parametrize("window", [0, 20])
def test_unseen_values_never_reach_a_row(window):
    """Everything outside [visible - window, visible) is NaN, in the blocks of the table as well."""
    tables, blocks = shuffled_tables([100, 100], 16, 1)
    step = step_of(16, tables, [(0, p) for p in range(60, 70)] + [(1, 99)])
    case = Case(step, (4, 2), (64, 64), mx.float32, blocks=blocks)
    clean = np.array(case.run(window))
    seen = {
        int(tables[s, p // 16] * 16 + p % 16)
        for s, last in ((0, 70), (1, 100))
        for p in range(max(0, last - 10 * (s == 0) - window) if window else 0, last)
    }
    for half in ("keys", "values"):
        poisoned = np.array(getattr(case, half))
        flat = poisoned.reshape(-1, *poisoned.shape[2:])
        flat[[slot for slot in range(len(flat)) if slot not in seen]] = np.nan
        setattr(case, half, mx.array(poisoned))
    assert np.array_equal(np.array(case.run(window)), clean)


def test_a_row_does_not_see_a_broken_later_row():
    tables, blocks = shuffled_tables([40], 16, 1)
    step = step_of(16, tables, [(0, p) for p in range(40)])
    case = Case(step, (4, 2), (64, 64), mx.float32, blocks=blocks)
    clean = np.array(case.run())
    broken = mx.arange(40)[:, None, None, None] == 25
    case.k, case.v = (mx.where(broken, mx.array(mx.nan), x) for x in (case.k, case.v))
    out = np.array(case.run())
    assert np.array_equal(out[:25], clean[:25])
    assert np.isnan(out[25:]).all()


# Equal bits ---------------------------------------------------------------------------------


def outputs(calls, tables, blocks, block_size, heads, dims, dtype, tokens, window, sinks):
    """Run calls of rows (sequence, position) over an empty slab; results by row."""
    slab = _ops.Slab(blocks, block_size, heads[1], dims[0], heads[1], dims[1], dtype)
    found = {}
    for rows in calls:
        q, k, v = (mx.stack([tokens[row][i] for row in rows])[:, None].swapaxes(1, 2) for i in range(3))
        table = step_of(block_size, tables, rows).native()
        out = np.array(
            _ops.update_and_attend(q, k, v, slab, table, dims[0] ** -0.5, window, sinks).astype(mx.float32)
        )
        found |= {row: out[i] for i, row in enumerate(rows)}
    return found


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=3),
    heads=st.sampled_from([(9, 3), (4, 4), (8, 1), (4, 2)]),
    dims=st.sampled_from([(64, 64), (40, 24), (128, 128), (16, 100)]),
    block_size=st.sampled_from([16, 64]),
    window=st.sampled_from([0, 0, 30]),
    with_sinks=st.booleans(),
    dtype=st.sampled_from([mx.float32, mx.float32, mx.bfloat16, mx.float16]),
    seed=st.integers(0, 1000),
)
def test_a_row_gives_the_same_bits_however_it_is_packed(
    lengths, heads, dims, block_size, window, with_sinks, dtype, seed
):
    tables, blocks = shuffled_tables(lengths, block_size, 0)
    tokens = {}
    for s, length in enumerate(lengths):
        q = random((length, heads[0], dims[0]), dtype, 3 * s)
        k = random((length, heads[1], dims[0]), dtype, 3 * s + 1)
        v = random((length, heads[1], dims[1]), dtype, 3 * s + 2)
        tokens |= {(s, p): (q[p], k[p], v[p]) for p in range(length)}
    sinks = random((heads[0],), mx.float32, 99) if with_sinks else None
    fixed = (tables, blocks, block_size, heads, dims, dtype, tokens, window, sinks)

    alone = outputs([[row] for row in tokens], *fixed)
    whole = outputs([list(tokens)], *fixed)
    # Chunks of random lengths of all sequences side by side, in a random order of sequences.
    draw = random_module.Random(seed)
    calls, done = [], [0] * len(lengths)
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        rows = []
        for s in draw.sample(range(len(lengths)), len(lengths)):
            chunk = min(draw.choice([0, 1, 1, 7, 33, 64, 100]), lengths[s] - done[s])
            rows += [(s, p) for p in range(done[s], done[s] + chunk)]
            done[s] += chunk
        if rows:
            calls.append(rows)
    chunked = outputs(calls, *fixed)

    for row in tokens:
        assert np.array_equal(alone[row], whole[row])
        assert np.array_equal(alone[row], chunked[row])


def test_a_long_row_gives_the_same_bits_with_and_without_threads():
    """Enough work for the pool in the packed call, too little alone."""
    lengths = [900] * 6
    tables, blocks = shuffled_tables(lengths, 64, 0)
    rows = [(s, 899) for s in range(6)]
    step = step_of(64, tables, rows)
    packed = Case(step, (9, 3), (64, 64), mx.float32, blocks=blocks)
    together = np.array(packed.run())
    for i, row in enumerate(rows):
        case = Case(step_of(64, tables, [row]), (9, 3), (64, 64), mx.float32, blocks=blocks)
        case.q, case.k, case.v = (x[i : i + 1] for x in (packed.q, packed.k, packed.v))
        assert np.array_equal(np.array(case.run())[0], together[i])


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    spans=st.lists(st.tuples(st.integers(0, 140), st.integers(1, 40)), min_size=1, max_size=4),
    heads=st.sampled_from(HEADS),
    dims=st.tuples(st.sampled_from([8, 33, 64, 80]), st.sampled_from([8, 33, 64, 80])),
    block_size=st.sampled_from([1, 5, 16, 64]),
    window=st.sampled_from([0, 0, 10, 64]),
    with_sinks=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_any_call_agrees_with_plain_mlx(spans, heads, dims, block_size, window, with_sinks, dtype):
    tables, blocks = shuffled_tables([h + n for h, n in spans], block_size, 0)
    rows = [(s, p) for s, (h, n) in enumerate(spans) for p in range(h, h + n)]
    sinks = random((heads[0],), mx.float32, 5) if with_sinks else None
    step = step_of(block_size, tables, rows)
    Case(step, heads, dims, dtype, blocks=blocks).check(window, sinks)


# Errors -------------------------------------------------------------------------------------


def good_call() -> dict:
    tables = np.array([[0, 1, -1]], np.int32)
    return {
        "q": mx.zeros((2, 4, 1, 32)),
        "k": mx.zeros((2, 2, 1, 32)),
        "v": mx.zeros((2, 2, 1, 48)),
        "slab": _ops.Slab(2, 16, 2, 32, 2, 48, mx.float32),
        "table": step_of(16, tables, [(0, 3), (0, 4)]).native(),
        "scale": 1.0,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": mx.zeros((4, 2, 32))}, r"q, k and v must be \[B, H, L, D\]"),
        ({"q": mx.zeros((2, 3, 1, 32))}, "q has 3 heads, not a multiple of the slab's 2"),
        ({"q": mx.zeros((2, 4, 1, 16))}, "q has width 16, the slab's K has 32"),
        ({"k": mx.zeros((2, 4, 1, 32))}, r"k has shape \(2,4,1,32\), expected \[2, 2, 1, 32\]"),
        ({"v": mx.zeros((2, 2, 1, 32))}, r"v has shape \(2,2,1,32\), expected \[2, 2, 1, 48\]"),
        ({"k": mx.zeros((2, 2, 1, 32), mx.float16)}, "k and v are float16 and float32, the slab is float32"),
        ({"q": mx.zeros((2, 4, 1, 32), mx.int32)}, "q must be float32, bfloat16 or float16, got int32"),
        (
            {"slab": _ops.Slab(1, 16, 2, 32, 2, 48, mx.float32)},
            "the table names block 1, the slab has 1 blocks",
        ),
        (
            {"slab": _ops.Slab(2, 8, 2, 32, 2, 48, mx.float32)},
            "the table's blocks hold 16 tokens, the slab's 8",
        ),
        (
            {"slab": _ops.Slab(2, 16, 2, 32, 1, 48, mx.float32), "v": mx.zeros((2, 1, 1, 48))},
            "2 heads of K but 1 of V",
        ),
        ({"window": -1}, "window must not be negative"),
        ({"sinks": mx.zeros(3)}, r"sinks must be one logit per query head, \[4\], got shape \(3\)"),
        (
            {"q": mx.zeros((3, 4, 1, 32)), "k": mx.zeros((3, 2, 1, 32)), "v": mx.zeros((3, 2, 1, 48))},
            "q has 3 token rows, the table has 2",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    mx.eval(_ops.update_and_attend(**good_call()))
    with pytest.raises(ValueError, match=message):
        _ops.update_and_attend(**good_call() | change)
