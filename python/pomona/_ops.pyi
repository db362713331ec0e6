"""MLX primitives over the CPU kernels (csrc/ops, csrc/kernels). Import mlx.core first.

Must be called on the thread that does all MLX work.
"""

from collections.abc import Sequence
from typing import Final

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]
Float32Array = NDArray[np.float32]

class Slab:
    """K and V storage of one attention layer, token-major: [blocks, block_size, heads, dim].

    The contents of a block are undefined until it is written.

    Ownership: the buffers belong to this object and are written in place by the primitives; they
    are never exposed to other MLX operations. K and V may differ in heads and width.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int,
        k_heads: int,
        k_dim: int,
        v_heads: int,
        v_dim: int,
        dtype: mx.Dtype,
    ) -> None: ...
    @property
    def blocks(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def grow(self, blocks: int) -> None:
        """Lengthen to `blocks`, keeping the contents. No step may be in flight."""
    def keys(self) -> mx.array:
        """A copy of K, for tests. No step may be in flight."""
    def values(self) -> mx.array: ...
    def address(self) -> tuple[int, int]:
        """Addresses of the K and V buffers, for tests."""

class StepTable:
    """Where each token row of one model call writes and what it sees; shared by all layers.

    tables:   int32 [S, M]  block table of each sequence (unused entries: -1)
    sequence: int32 [T]     which table a token row belongs to
    visible:  int32 [T]     keys the token row sees: positions [max(0, visible - window), visible);
                            all of them must lie before the table's first -1
    slots:    int32 [T]     where it writes its own K/V: block * block_size + offset (of equal slots
                            the last wins)
    copies:   int32 [C, 2]  blocks to copy (source, destination) before anything else, in order

    Raises ValueError on entries that point outside (negative slots, visible beyond the table, ...).
    """

    def __init__(
        self,
        block_size: int,
        tables: Int32Array,
        sequence: Int32Array,
        visible: Int32Array,
        slots: Int32Array,
        copies: Int32Array,
    ) -> None: ...
    @staticmethod
    def of_rows(
        block_size: int,
        blocks: Sequence[Int32Array],
        starts: Sequence[int],
        counts: Sequence[int],
        copies: Int32Array,
    ) -> StepTable:
        """The table of a step that runs tokens [start, start + count) of each row: all of them see what comes
        before them in their row and themselves, and write into the block of their position.

        blocks: each row's block table. The token rows of one row follow each other, in the rows' order.
        Raises ValueError like the constructor, and when a table is too short.
        """

def update_and_attend(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    slab: Slab,
    table: StepTable,
    scale: float,
    window: int = 0,
    sinks: mx.array | None = None,
) -> mx.array:
    """Write K/V of this call's token rows into the slab, then attend over the blocks.

    q: [B, Hq, L, D]; k: [B, Hk, L, D]; v: [B, Hk, L, Dv]; token row t = b * L + l, T = B * L.
    First the copies, then all writes, then the reads: a token row sees the keys written in the
    same call up to its `visible`. window 0: no window. sinks: [Hq], one logit per query head that joins the
    softmax without a value. Hq must be a multiple of Hk. Returns [B, Hq, L, Dv] in q's dtype,
    laid out in memory as [B, L, Hq, Dv].
    Sums are float32, in an order that depends only on the token row's own table and length. A row
    that sees nothing gets zeros. q may have another dtype than the slab; K and V heads must be equal.
    """

def update_and_gather(x: mx.array, slab: Slab, values: bool, table: StepTable) -> mx.array:
    """Write x [1, H, L, D] into K (or V) of the slab, then return that row's history as dense
    [1, H, visible of the last token row, D]. One sequence only (the gathered reader).
    Block copies of the table are made for the written half (K or V) only.
    """

class LogitEdits:
    """What one row does to its logits: bias, then penalties, then the mask. Copies its arrays. Immutable.

    bias_ids, bias: tokens, and what is added to their logits. ids, counts: distinct tokens that the row has
    had, and how often its answer holds each; unread: place in `edit_logits`' `unread` of one more token of
    the answer, or -1. Of all these, repetition divides a positive logit and multiplies another one, frequency
    is subtracted for each time that the answer holds the token, presence where it holds it at all. masked:
    tokens that become -inf. Ids outside the vocabulary are passed over.
    """

    def __init__(
        self,
        bias_ids: Int32Array,
        bias: Float32Array,
        ids: Int32Array,
        counts: Float32Array,
        masked: Int32Array,
        unread: int = -1,
        repetition: float = 1.0,
        frequency: float = 0.0,
        presence: float = 0.0,
    ) -> None: ...

def edit_logits(
    logits: mx.array, edits: Sequence[LogitEdits | None], unread: mx.array | None = None
) -> mx.array:
    """Logits [W, V] as float32, each row after its edits (None: as they are).

    unread: int32 [N], tokens that may not have been computed yet.
    """

class DrawRule:
    """How one row's tokens are drawn from its logits: temperature (below 1e-5: the likeliest token), then
    top_k (0: all), top_p, min_p. top_k and top_p keep every token that ties with the last one kept. The seed
    fixes the row's random numbers. Immutable.
    """

    def __init__(
        self, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, seed: int = 0
    ) -> None: ...
    temperature: Final[float]
    top_k: Final[int]
    top_p: Final[float]
    min_p: Final[float]
    seed: Final[int]

def choose(logits: mx.array, rules: Sequence[DrawRule], indices: Sequence[int]) -> mx.array:
    """A token int32 [W] for each row of logits [W, V] in float32, bfloat16 or float16; -1 where a row holds
    NaN, +inf or nothing but -inf.

    indices: how many tokens each row has drawn before. Raises ValueError for a rule whose temperature is NaN
    or whose top_p or min_p is not from 0 to 1. float32 inside. A row's token depends on its own logits, rule
    and index alone: splitmix64 over seed and index gives two numbers, the first chooses a block of 128 tokens
    by its probability, the second a token in it.
    """

class Weights:
    """A weight matrix as mlx.nn keeps it, for the products below: dense [rows, depth] in float32, bfloat16
    or float16, or packed by mx.quantize (affine with 2, 3, 4, 5, 6 or 8 bits; mxfp4, mxfp8, nvfp4). With a
    leading axis [experts, rows, depth] it is a stack of matrices (mlx-lm's switch layers).

    Holds the arrays, which must have been evaluated, and copies nothing. Raises ValueError when shapes and
    dtypes do not fit each other.

    bias: [rows], or [experts, rows].
    """

    def __init__(
        self,
        weight: mx.array,
        scales: mx.array | None = None,
        biases: mx.array | None = None,
        bias: mx.array | None = None,
        group_size: int = 0,
        bits: int = 0,
        mode: str = "affine",
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def experts(self) -> int:
        """0 for a single matrix."""
    def part(self, first: int, count: int) -> Weights:
        """Rows [first, first + count): one matrix of several that are stored as one."""

def linear(x: mx.array, weights: Weights) -> mx.array:
    """x [..., depth] times the transposed matrix, plus its bias: [..., rows] in x's dtype.

    Sums are float32 in one order per element, whatever the number of rows of x or threads.
    """

def embed(ids: mx.array, weights: Weights) -> mx.array:
    """Rows of the matrix by int32 or uint32 ids [...]: [..., depth] in the dtype of its values or scales
    (float32 for the mx formats). An id outside the matrix gives NaN.
    """

class Norm:
    """Root mean square norm over the last axis: x / sqrt(mean(x^2) + eps) * weight. weight None: ones."""

    def __init__(self, weight: mx.array | None, eps: float) -> None: ...

def rms_norm(x: mx.array, norm: Norm) -> mx.array:
    """The norm of x [..., dim] in x's dtype; float32 inside."""

class Rope:
    """Rotary positions: pairs of the first 2 * len(frequencies) values of a head are turned by
    position * frequency. traditional: pairs are neighbours, else a half apart. scale multiplies the turned
    values first (YaRN and longrope attention factors).
    """

    def __init__(self, frequencies: mx.array, traditional: bool = False, scale: float = 1.0) -> None: ...

def rope(x: mx.array, rope: Rope, offset: int | mx.array) -> mx.array:
    """x [B, H, L, D] turned by positions offset[b] + l (offset: an int, or int32 [B])."""

class Attention:
    """Weights of one attention block: projections, optional norms of each head's q and k, rope, output.

    q: [heads * head_dim, hidden]; k, v: [kv_heads * head_dim, hidden]; o: [hidden, heads * head_dim].
    sinks: [heads] logits that join the softmax without a value.
    """

    def __init__(
        self,
        q: Weights,
        k: Weights,
        v: Weights,
        o: Weights,
        heads: int,
        kv_heads: int,
        scale: float,
        rope: Rope | None = None,
        q_norm: Norm | None = None,
        k_norm: Norm | None = None,
        sinks: mx.array | None = None,
    ) -> None: ...

class GatedMlp:
    """down(activation(gate(x)) * up(x)); with gate None down(activation(up(x))).

    activation: "silu", "gelu" (erf), "gelu_tanh", "relu2" (squared) or "swiglu_oai" (gpt-oss: clipped gate
    and up, sigmoid of 1.702 gate, up + 1).
    """

    def __init__(self, gate: Weights | None, up: Weights, down: Weights, activation: str) -> None: ...

class Experts:
    """A GatedMlp over stacks of matrices, one per expert."""

    def __init__(self, gate: Weights, up: Weights, down: Weights, activation: str) -> None: ...

class ExpertMlp:
    """`top_k` experts for each token, chosen and weighted by a router.

    scoring: "softmax" (over all experts, then the top), "topk_softmax" (over the top logits) or "sigmoid".
    normalise: the weights of the top are divided by their sum. The experts' results are added in order of
    the experts' ids. shared: an MLP for every token, times sigmoid(shared_gate(x)) where there is a gate.
    """

    def __init__(
        self,
        router: Weights,
        experts: Experts,
        top_k: int,
        scoring: str,
        normalise: bool = False,
        shared: GatedMlp | None = None,
        shared_gate: Weights | None = None,
    ) -> None: ...

class DecoderLayer:
    """h = x + after_attention(attention(before_attention(x))); h + after_mlp(mlp(before_mlp(h))).

    Norms that are None do nothing. residual_scale multiplies what is added to x and to h.
    """

    def __init__(
        self,
        attention: Attention,
        mlp: GatedMlp | ExpertMlp,
        before_attention: Norm | None,
        before_mlp: Norm | None,
        after_attention: Norm | None = None,
        after_mlp: Norm | None = None,
        residual_scale: float = 1.0,
    ) -> None: ...

def decoder_layer(
    x: mx.array, layer: DecoderLayer, slab: Slab, table: StepTable, window: int = 0
) -> mx.array:
    """The layer over x [B, L, hidden] in one node, T = B * L token rows as the table says; K and V are
    written into the slab and attended as in `update_and_attend`. A token row's position is its `visible` - 1.
    Returns x's shape and dtype; float32 inside. A row's bits depend on its own history alone.
    """

def attention_block(
    x: mx.array, attention: Attention, slab: Slab, table: StepTable, window: int = 0
) -> mx.array:
    """Only the attention block, without norm and residual: [B, L, hidden] to [B, L, hidden]."""

def gated_mlp(x: mx.array, mlp: GatedMlp) -> mx.array:
    """x [..., hidden] to [..., hidden]."""

def expert_mlp(x: mx.array, mlp: ExpertMlp) -> mx.array:
    """x [..., hidden] to [..., hidden]."""

def switch_glu(x: mx.array, experts: Experts, indices: mx.array) -> mx.array:
    """Each row of x [..., hidden] through the experts that indices [..., k] (int32 or uint32) name:
    [..., k, hidden] in x's dtype, as mlx-lm's SwitchGLU.
    """

def logprobs(logits: mx.array, tokens: mx.array, top: int) -> tuple[mx.array, mx.array, mx.array]:
    """Log probabilities under log_softmax of logits [N, V], in float32.

    Of int32 tokens [N]: their own [N]; the ids of the `top` likeliest tokens, int32 [N, min(top, V)], the
    likeliest first and of equal ones the smaller id; and theirs. NaN for a token outside the vocabulary, and
    for a row whose largest logit is not finite.
    """

class Moment:
    """A point in time on the steady clock."""

    def __init__(self) -> None: ...
    @property
    def seconds(self) -> float:
        """When the stamped array had been computed; 0 before."""
    @staticmethod
    def now() -> float:
        """The same clock, now."""

def stamp(x: mx.array, moment: Moment) -> mx.array:
    """x unchanged; `moment` is set as soon as it has been computed, whatever this thread does then."""

def cpu_variant() -> str:
    """The kernel variant in use: "generic", "avx2", "avx512" or "neon".

    POMONA_CPU_VARIANT forces one; importing this module fails if this machine lacks it.
    """
