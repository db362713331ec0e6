#include "kernels/cpu/matmul.h"

#include <algorithm>

#include "kernels/cpu/variant.h"

namespace pomona::kernels {
namespace {

int64_t even_tile_rows(int64_t rows, int64_t most) {
  if (rows == 0) return 0;
  const int64_t tiles = (rows + most - 1) / most;
  return (rows + tiles - 1) / tiles;
}

}  // namespace

PackedLayout::PackedLayout(int64_t rows, int64_t depth)
    : rows_(rows), depth_(depth), tile_rows_(even_tile_rows(rows, kernels().matmul.tile_rows)) {}

void pack_tile(const PackedLayout& layout, int64_t tile, const float* rows, int64_t stride,
               float* packed) {
  const int64_t count = layout.rows_of(tile), depth = layout.depth();
  float* to = packed + layout.offset_of(tile);
  for (int64_t r = 0; r < count; r++) {
    const float* from = rows + (layout.first_row(tile) + r) * stride;
    for (int64_t k = 0; k < depth; k++) to[k * count + r] = from[k];
  }
}

void multiply(const PackedLayout& layout, const float* packed, std::span<const Unit> units,
              float* out) {
  alignas(64) thread_local float scratch[kMatmulScratch];
  kernels().matmul.multiply(layout, packed, units.data(), static_cast<int64_t>(units.size()),
                            scratch, out);
}

void decode_row(const Weights& w, int64_t row, float* out) {
  kernels().matmul.decode(w, row, 0, w.depth, out);
}

}  // namespace pomona::kernels
