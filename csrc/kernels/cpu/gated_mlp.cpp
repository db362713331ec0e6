#include "kernels/cpu/gated_mlp.h"

#include <algorithm>

#include "kernels/cpu/aligned_floats.h"
#include "kernels/cpu/variant.h"

namespace pomona::kernels {
namespace {

bool gated(const GatedMlp& mlp) { return mlp.gate.weights.data != nullptr; }

void add_bias(const float* bias, int64_t first, int64_t columns, int64_t rows, float* sums) {
  if (bias == nullptr) return;
  Epilogue{bias + first, 1.0f, no_rows(), target_of(sums, kUnit)}(0, columns, sums, rows);
}

}  // namespace

int64_t inner_work(const GatedMlp& mlp) {
  return (gated(mlp) ? 2 : 1) * mlp.inner() * mlp.up.weights.depth;
}

void inner_unit(const GatedMlp& mlp, const PackedLayout& layout, const float* packed, int64_t unit,
                const PackedLayout& inner_layout, float* inner) {
  thread_local AlignedFloats buffer;
  const int64_t rows = layout.rows(), first = unit * kUnit;
  const int64_t columns = std::min(kUnit, mlp.inner() - first);
  float* up = buffer.reserve(2 * rows * kUnit);
  float* gate = gated(mlp) ? up + rows * kUnit : nullptr;
  const Unit units[] = {{&mlp.up.weights, first}, {&mlp.gate.weights, first}};
  multiply(layout, packed, std::span(units, gate == nullptr ? 1 : 2), up);
  add_bias(mlp.up.bias, first, columns, rows, up);
  if (gate != nullptr) add_bias(mlp.gate.bias, first, columns, rows, gate);
  kernels().elementwise.activate(mlp.activation, gate, up, rows * kUnit, up);
  for (int64_t tile = 0; tile < inner_layout.tiles(); tile++) {
    const int64_t count = inner_layout.rows_of(tile);
    kernels().elementwise.pack(up + inner_layout.first_row(tile) * kUnit, kUnit, count, columns,
                               inner + inner_layout.offset_of(tile) + first * count);
  }
}

void gated_mlp(const GatedMlp& mlp, const PackedLayout& layout, const float* packed,
               Finish finish) {
  thread_local AlignedFloats buffer;
  const int64_t rows = layout.rows();
  const PackedLayout inner_layout(rows, mlp.inner());
  float* inner = buffer.reserve(inner_layout.floats());
  share(rows * inner_work(mlp), units_of(mlp.inner()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; u++) inner_unit(mlp, layout, packed, u, inner_layout, inner);
  });
  project(inner_layout, inner, {&mlp.down, 1}, finish);
}

}  // namespace pomona::kernels
