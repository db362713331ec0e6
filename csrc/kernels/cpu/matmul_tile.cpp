// Compiled once per instruction set, with POMONA_VARIANT naming the namespace of the result.
//
// Lanes are output columns: a square of weight words is transposed in registers, so that a vector
// holds one word of each of kLanes weight rows, and its codes become kLanes weights of one depth.
// Few rows of activations are multiplied as the weights are unpacked; for more, a panel of
// kSumBlock unpacked depths is shared by all. Either way an element is the same chain of additions.

#include "kernels/cpu/matmul_tile.h"

#include "kernels/cpu/unpack.h"

namespace pomona::kernels {
namespace {

constexpr int kUnitVectors = kUnit / kLanes;

// Rows and vectors of the inner loop over a panel: as many sums as the registers hold.
#if defined(__AVX512F__)
constexpr int kPanelRows = 14, kPanelVectors = 2;
#elif defined(__AVX2__)
constexpr int kPanelRows = 6, kPanelVectors = 2;
#elif defined(__aarch64__)
constexpr int kPanelRows = 6, kPanelVectors = 4;
#else
constexpr int kPanelRows = 6, kPanelVectors = 2;
#endif
static_assert(kUnitVectors % kPanelVectors == 0);

// Up to this many rows the weights are used as they are unpacked: as many sums of two vectors as
// the registers hold beside them.
#if defined(__AVX512F__)
constexpr int kFewRows = 8;
#else
constexpr int kFewRows = 4;
#endif

// A single row needs more vectors side by side, to hide the latency of its sums.
constexpr int few_vectors(int rows) { return rows == 1 ? 4 : 2; }
static_assert(kUnitVectors % 2 == 0);
static_assert(kSumBlock <= kMaxDepth);

struct Product {
  const PackedLayout& layout;
  const float* packed;
  float* out;  // [units, rows, kUnit]
};

INLINE void put(float* to, Lanes sum, bool first_block) {
  store(to, first_block ? sum : load(to) + sum);
}

// V row groups, from number `group` on, against R rows of activations (all there are).
template <typename F, int R, int V>
void multiply_few(const Product& p, const Unit* units, int64_t group) {
  const int64_t last_unit = (group + V - 1) / kUnitVectors;
  const bool one_matrix = units[group / kUnitVectors].weights == units[last_unit].weights;
  const int64_t ahead = one_matrix ? V * kLanes : kUnit;
  RowGroup rows[V];
  float* to[V];
  for (int v = 0; v < V; v++) {
    const int64_t unit = (group + v) / kUnitVectors, within = (group + v) % kUnitVectors * kLanes;
    rows[v] = RowGroup(*units[unit].weights, units[unit].first + within, ahead);
    to[v] = p.out + unit * R * kUnit + within;
  }
  const int64_t depth = p.layout.depth();
  for (int64_t begin = 0; begin < depth; begin += kSumBlock) {
    const int64_t end = depth - begin < kSumBlock ? depth : begin + kSumBlock;
    Lanes sums[R][V] = {};
    unpack<F, V>(rows, begin, end, [&](int64_t k, const Lanes(&w)[V]) {
      const float* x = p.packed + k * R;
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        const Lanes factor = broadcast(x[r]);
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) sums[r][v] = fma(factor, w[v], sums[r][v]);
      }
    });
    for (int r = 0; r < R; r++) {
      for (int v = 0; v < V; v++) put(to[v] + r * kUnit, sums[r][v], begin == 0);
    }
  }
}

template <typename F, int R>
void multiply_few(const Product& p, const Unit* units, int64_t count) {
  constexpr int V = few_vectors(R);
  const int64_t groups = count * kUnitVectors;
  int64_t group = 0;
  for (; group + V <= groups; group += V) multiply_few<F, R, V>(p, units, group);
  for (; group < groups; group += 2) multiply_few<F, R, 2>(p, units, group);
}

// As multiply_few for the R rows there are; R counts down to it.
template <typename F, int R = kFewRows>
void multiply_few_rows(const Product& p, const Unit* units, int64_t count) {
  if constexpr (R > 0) {
    if (p.layout.rows() != R) return multiply_few_rows<F, R - 1>(p, units, count);
    multiply_few<F, R>(p, units, count);
  }
}

// panel[k][column]: the unit's weights of depths [begin, end).
template <typename F>
void fill_panel(const Unit& unit, int64_t begin, int64_t end, float* panel) {
  for (int64_t column = 0; column < kUnit; column += 2 * kLanes) {
    const RowGroup rows[2] = {{*unit.weights, unit.first + column, kUnit},
                              {*unit.weights, unit.first + column + kLanes, kUnit}};
    float* to = panel + column - begin * kUnit;
    unpack<F, 2>(rows, begin, end, [&](int64_t k, const Lanes(&w)[2]) {
      store(to + k * kUnit, w[0]);
      store(to + k * kUnit + kLanes, w[1]);
    });
  }
}

// The same by way of `decode_values`; `rows` holds [kUnit, kSumBlock].
void fill_panel_slowly(const Unit& unit, int64_t begin, int64_t end, float* rows, float* panel) {
  const Weights& w = *unit.weights;
  for (int64_t i = 0; i < kUnit; i++) {
    const int64_t row = unit.first + i < w.rows ? unit.first + i : w.rows - 1;
    decode_values(w, row, begin, end, rows + i * kSumBlock);
  }
  const Weights dense{.rows = kUnit, .depth = kSumBlock, .data = rows};
  fill_panel<Format<Float32>>({&dense, 0}, 0, end - begin, panel);
}

template <int R, int V>
INLINE void multiply_panel(const float* x, int64_t depth, const float* panel, float* out,
                           bool first_block) {
  Lanes sums[R][V] = {};
  for (int64_t k = 0; k < depth; k++) {
    Lanes w[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) w[v] = load(panel + k * kUnit + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const Lanes factor = broadcast(x[k * R + r]);
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) sums[r][v] = fma(factor, w[v], sums[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) put(out + r * kUnit + v * kLanes, sums[r][v], first_block);
  }
}

template <int R = kPanelRows>
void multiply_tile(int64_t rows, const float* x, int64_t depth, const float* panel, float* out,
                   bool first_block) {
  if constexpr (R > 0) {
    if (rows != R) return multiply_tile<R - 1>(rows, x, depth, panel, out, first_block);
    for (int64_t column = 0; column < kUnit; column += kPanelVectors * kLanes) {
      multiply_panel<R, kPanelVectors>(x, depth, panel + column, out + column, first_block);
    }
  }
}

void multiply_many(const Product& p, const Unit& unit, float* scratch, float* out) {
  const int64_t depth = p.layout.depth();
  float* panel = scratch;
  for (int64_t begin = 0; begin < depth; begin += kSumBlock) {
    const int64_t end = depth - begin < kSumBlock ? depth : begin + kSumBlock;
    const bool known =
        with_format(*unit.weights, [&]<typename F>(F) { fill_panel<F>(unit, begin, end, panel); });
    if (!known) fill_panel_slowly(unit, begin, end, scratch + kUnit * kSumBlock, panel);
    for (int64_t tile = 0; tile < p.layout.tiles(); tile++) {
      const int64_t rows = p.layout.rows_of(tile);
      multiply_tile(rows, p.packed + p.layout.offset_of(tile) + begin * rows, end - begin, panel,
                    out + p.layout.first_row(tile) * kUnit, begin == 0);
    }
  }
}

bool same_format(const Unit& left, const Unit& right) {
  const Weights &a = *left.weights, &b = *right.weights;
  return a.code == b.code && a.type == b.type && a.bits == b.bits && a.group_size == b.group_size;
}

void multiply(const PackedLayout& layout, const float* packed, const Unit* units, int64_t count,
              float* scratch, float* out) {
  const Product p{layout, packed, out};
  if (layout.rows() <= kFewRows && same_format(units[0], units[count - 1])) {
    const bool known = with_format(*units[0].weights,
                                   [&]<typename F>(F) { multiply_few_rows<F>(p, units, count); });
    if (known) return;
  }
  for (int64_t u = 0; u < count; u++) {
    multiply_many(p, units[u], scratch, out + u * layout.rows() * kUnit);
  }
}

}  // namespace

namespace POMONA_VARIANT {

MatmulKernels matmul_kernels() { return {kPanelRows, multiply, decode_values}; }

}  // namespace POMONA_VARIANT
}  // namespace pomona::kernels
